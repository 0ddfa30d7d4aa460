// Cases that the kernel tests share: random weights in every format, small shapes (round ones and
// ones that fit no vector), ops over rows without state, and layers with state whose sequences can
// be run in any cut. Everything is a function of a seed, so that two backends get the same numbers.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace flashlane::kernels::test {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next();
  int below(int limit) { return static_cast<int>(next() % static_cast<uint64_t>(limit)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  float uniform(float low, float high);
  std::vector<float> values(int64_t count, float low, float high);
  // As values, each representable in bf16.
  std::vector<float> bf16_values(int64_t count, float low, float high);

 private:
  uint64_t state_;
};

struct Format {
  std::string name;
  Layout layout = Layout::kF32;
  int bits = 0;
  int group = 0;
  DType scale_dtype = DType::kBf16;
};
std::vector<Format> all_formats();
Format format_named(const std::string& name);

// Owns the bytes that weights point to.
class Store {
 public:
  const float* floats(std::vector<float> values);
  // A bank of random weights of about ±0.5/√cols, its matrices `gap` rows apart beyond their own.
  Matrix matrix(Random& random, const Format& format, int64_t count, int64_t rows, int64_t cols,
                int64_t gap = 0);

 private:
  std::deque<std::vector<float>> floats_;
  std::deque<std::vector<std::byte>> bytes_;
};

struct Backend {
  std::string name;  // "reference", "cpu_avx2"
  std::function<std::unique_ptr<Ops>(int threads)> make;
  bool threaded = false;
};
// Every backend and level that this machine can run. Reserved for the largest case here.
std::vector<Backend> backends();

// An op whose output row depends on one input row and the weights alone.
struct RowOp {
  std::string name;
  int in_width = 0;
  int out_width = 0;
  std::function<void(Ops& ops, float* out, const float* in, int row_count)> run;
};
struct RowSizes {
  int streams, hidden, low_rank, experts, top_experts, width, shared_width, outputs;
};
inline constexpr RowSizes kRoundSizes = {4, 256, 128, 7, 3, 128, 128, 144};
// Products long enough to be summed in slices, whoever cuts them.
inline constexpr RowSizes kDeepSizes = {4, 512, 320, 5, 2, 512, 512, 48};
// Widths of whole groups of 32 that 64 does not divide, and one expert a row.
inline constexpr RowSizes kHalfSizes = {4, 96, 32, 5, 1, 32, 160, 24};
// Of plain formats alone: no width is a multiple of anything.
inline constexpr RowSizes kOddSizes = {3, 73, 19, 5, 2, 21, 35, 37};
// All row ops with weights from `seed`, prepared for `ops`.
std::vector<RowOp> row_ops(Ops& ops, Store& store, const Format& format, const RowSizes& sizes,
                           uint64_t seed);

// A sequence's state of one layer.
struct LayerState {
  std::vector<float> recurrent, history, keys, deltas, decays;
  std::vector<int32_t> table;
};
struct LayerSegment {
  LayerState* state = nullptr;
  int row_count = 0;
  int start_position = 0;
  int pending_rows = 0;
};

// A layer with state. Inputs and outputs of a row are one run of floats each.
class LayerCase {
 public:
  virtual ~LayerCase() = default;
  virtual std::string name() const = 0;
  virtual int in_width() const = 0;
  virtual int out_width() const = 0;
  virtual LayerState new_state(Random& random) = 0;
  virtual void run(Ops& ops, float* out, const float* in, Role role,
                   const std::vector<LayerSegment>& segments) = 0;
  // The state as it stands after `positions` kept rows, in one form whatever the storage.
  virtual std::vector<float> snapshot(Ops& ops, LayerState& state, int pending_rows,
                                      int positions) = 0;
};
inline constexpr int kMostPositions = 128;

struct CacheForm {
  DType dtype = DType::kF32;
  int page_rows = 4;
};
// DeltaNet, n-gram layer and attention, in a round and an odd shape. The form is the cache's alone.
std::vector<std::unique_ptr<LayerCase>> layer_cases(uint64_t seed, const CacheForm& form);

}  // namespace flashlane::kernels::test
