// Matrix products on the GPU: out[row, n] = weight[n, :] · bf16(x[row, :]), for all rows or for
// those that chose an expert of a bank. One arithmetic for 1 row or thousands: a row's bits depend
// on nothing beside it (order of sums: product_tile.cuh, docs/row_rule.md).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/matrix.h"

namespace flashlane::kernels::cuda {

// Columns of half a step, and of the smallest group of an affine weight.
inline constexpr int kUnit = 32;
// Affine and bf16 weights lie in tiles of so many weight rows, which go by steps of columns.
inline constexpr int kTileRows = 16;
inline constexpr int kStepCols = 64;
// Most rows of x that the products of a decode step are made for.
inline constexpr int kFewRows = 16;
inline constexpr int kPlainBits = 16;  // bf16 values instead of codes

// call(bits), the bits of a code as a constant; with_bits also for kPlainBits.
template <typename Call>
void with_code_bits(int bits, const Call& call) {
  switch (bits) {
    case 2:
      return call(std::integral_constant<int, 2>());
    case 3:
      return call(std::integral_constant<int, 3>());
    case 4:
      return call(std::integral_constant<int, 4>());
    case 5:
      return call(std::integral_constant<int, 5>());
    case 6:
      return call(std::integral_constant<int, 6>());
    default:
      return call(std::integral_constant<int, 8>());
  }
}
template <typename Call>
void with_bits(int bits, const Call& call) {
  if (bits == kPlainBits) return call(std::integral_constant<int, kPlainBits>());
  with_code_bits(bits, call);
}

// A prepared bank on the device.
struct DeviceMatrix {
  Layout layout = Layout::kF32;
  DType scale_dtype = DType::kBf16;
  int bits = 0;  // of a code, or kPlainBits
  int group = 0;
  int64_t rows = 0;  // of one matrix
  int64_t cols = 0;
  int64_t count = 0;
  std::byte* values = nullptr;
  std::byte* scales = nullptr;  // tiled: scales and biases

  constexpr bool tiled() const { return layout == Layout::kAffine || layout == Layout::kBf16; }
  constexpr bool two_groups() const { return group == kStepCols / 2; }  // of a step
  constexpr bool wide_scales() const { return scale_dtype != DType::kBf16; }
  constexpr int tiles() const { return static_cast<int>((rows + kTileRows - 1) / kTileRows); }
  constexpr int steps() const { return static_cast<int>((cols + kStepCols - 1) / kStepCols); }
  // A tile's step: `bits` words of each lane of a warp.
  constexpr size_t step_bytes() const { return size_t{128} * static_cast<size_t>(bits); }
  // Scale and bias of one group of a tile's rows.
  constexpr size_t group_bytes() const { return size_t{kTileRows} * (wide_scales() ? 8 : 4); }
  constexpr size_t step_scale_bytes() const {  // of all groups of a tile's step
    return layout == Layout::kAffine ? (two_groups() ? 2 : 1) * group_bytes() : 0;
  }
  constexpr size_t plain_row_bytes() const {
    return static_cast<size_t>(cols) * (layout == Layout::kF32 ? 4 : 2);
  }
  constexpr size_t values_bytes() const {  // of one matrix
    if (!tiled()) return static_cast<size_t>(rows) * plain_row_bytes();
    return static_cast<size_t>(tiles()) * static_cast<size_t>(steps()) * step_bytes();
  }
  constexpr size_t scales_bytes() const {
    return static_cast<size_t>(tiles()) * static_cast<size_t>(steps()) * step_scale_bytes();
  }
};

// Stored rows of some matrices, on the device, one behind the other.
struct StoredRows {
  const std::byte* values = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;
};
// Puts them into their tiles.
void launch_tile_rows(cudaStream_t stream, const DeviceMatrix& to, const MatrixPart& part,
                      const StoredRows& stored);

// Which rows of x go with which matrix of a bank: pairs of a row and one of its experts. Pair p
// reads row p / pairs_per_row of x and writes row p of out.
struct ExpertLists {
  const int32_t* starts = nullptr;  // [experts + 1]
  const int32_t* list = nullptr;    // pairs grouped by expert, ascending; null: all rows, matrix 0
  int pairs_per_row = 1;
};

// Any number of rows. launch_product chooses among the kernels for few rows, for many, and for
// f32 and f16 weights, which are not tiled.
struct Product {
  DeviceMatrix weight;
  const float* x = nullptr;  // [.., cols]
  float* out = nullptr;      // [.., rows of the weight]
  int row_count = 0;         // with lists: of pairs
  ExpertLists lists = {};
  // What the order of sums depends on beside the weight's shape: its chunks, which divide its
  // steps, and whether it is one of a kGated pair.
  int chunks = 1;
  bool gated = false;
  // Of a gated pair that fuses(), its up: out is silu(weight · x) * (second · x).
  DeviceMatrix second = {};
  // For many rows: room of the caller's own, of many_room_floats, which x is packed in, so that
  // products with the same x, number of its rows and columns can follow with x_is_packed.
  float* room = nullptr;
  bool x_is_packed = false;

  bool fuses() const;
  int64_t many_room_floats() const;
  int x_rows() const { return lists.list == nullptr ? row_count : row_count / lists.pairs_per_row; }
  // Whether it goes to the kernels for many rows in any case.
  bool packs_x() const {
    return weight.tiled() && (row_count > kFewRows || lists.list != nullptr || chunks > 1 || gated);
  }
};
// room: product_room_floats.
int64_t product_room_floats(const Product& product);
void launch_product(cudaStream_t stream, const Product& product, float* room);
void launch_many_rows(cudaStream_t stream, const Product& product);

// Products of at most kFewRows rows that are launched as one, each with what follows it.
enum class Epilogue : uint8_t {
  kNone,
  kGated,  // silu(v) * v of the second weight
  kMix,    // hyper-connection: mean over streams c of sigmoid(v[c, d]) * normed[row, c, d]
};
struct FewEntry {
  DeviceMatrix weight;
  DeviceMatrix second = {};  // kGated
  const float* x = nullptr;
  float* out = nullptr;  // of several chunks: [chunks, rows, ..], each chunk's own
  Epilogue epilogue = Epilogue::kNone;
  // The rows that chose an expert, from their ids: pair p of [rows * top] as in ExpertLists.
  bool listed = false;
  int pairs_per_row = 1;
  int chunks = 1;
};
// What the products of a hyper-connection read make of x, or do beside it (CudaOps::hyper_read).
struct HyperStep {
  int streams = 1;
  int hidden = 0;
  // Down and inject, a stream a chunk: x is made of the streams here, and kept as `normed`.
  const float* from = nullptr;  // [rows, streams, hidden], or null
  const float* gain = nullptr;  // [streams * hidden]
  float eps = 0;
  float* normed = nullptr;  // [rows, streams, hidden]
  // kMix: x is silu(the chunks' sums / streams), inject 2 sigmoid(its chunks' sums / streams).
  const float* low = nullptr;           // [streams, rows, low_rank]
  const float* inject_parts = nullptr;  // [streams, rows, streams], or null
  float* inject = nullptr;              // [rows, streams]
};
// Most rows whose x is made by every block that multiplies it.
inline constexpr int kNormedRows = 4;
inline constexpr int kMostFewEntries = 6;
struct FewProducts {
  int entry_count = 0;
  FewEntry entries[kMostFewEntries] = {};
  int row_count = 0;
  const int32_t* ids = nullptr;  // [row_count * top], where an entry is listed
  int top = 0;
  // The launch after this one may count on what came before this one, since it begins only when
  // this one has waited. And: ids were there before what was launched just before. Not both, since
  // who counts on that may end without having waited.
  bool keeps_next_back = false;
  bool ids_before = false;
  HyperStep hyper = {};

  void add(const FewEntry& entry) { entries[entry_count++] = entry; }
};
// Whether all is as the kernels for few rows need it.
bool can_launch_few(const FewProducts& products);
// All entries, in as few launches as their formats allow. room: few_room_floats, aligned to 16.
int64_t few_room_floats(const FewProducts& products);
void launch_few_rows(cudaStream_t stream, const FewProducts& products, float* room);

}  // namespace flashlane::kernels::cuda
