// The model's forward pass: embed, blocks, mixer, head; and the MTP head's. Written once over
// kernels::Ops, top to bottom like the model card; it holds no policy and no state of its own. The
// caller gives rows grouped into segments of one role, each with its sequence's state, and commits
// what it keeps through pending_rows.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "kernels/ops.h"
#include "model/state.h"
#include "model/weights.h"
#include "tensor/buffer.h"

namespace flashlane::model {

// Receives values inside the network (tests, counting). Names as in tests/fixtures:
// "layer3_streams".
class Probe {
 public:
  virtual ~Probe() = default;
  // Before each forward of the trunk or the MTP head; the spans live until it ends.
  virtual void begin(const kernels::Batch& /*batch*/) {}
  virtual void floats(std::string_view name, const float* values, int rows, int width) = 0;
  virtual void ints(std::string_view name, const int32_t* values, int rows, int width) = 0;
};

// Step buffers for at most max_rows rows; made once at load.
class Activations {
 public:
  // `memory`: the backend's.
  Activations(const ModelShape& shape, int max_rows, Memory& memory = host_memory());

  int max_rows() const { return max_rows_; }
  size_t bytes() const { return buffer_.bytes() + ngram_rows.size() * sizeof(int64_t); }

  float* streams;     // [max_rows, wide]: the residual; after forward, the input of head and MTP
  float* mixed;       // [max_rows, hidden]
  float* inject;      // [max_rows, streams]
  float* block_out;   // [max_rows, hidden]
  float* scratch[5];  // projections; widths in forward.cc
  int32_t* expert_ids;
  float* expert_gates;
  kernels::Selection selection;
  float* other_streams;  // [max_rows, wide]: mtp_forward writes here and swaps it with streams
  std::vector<int64_t> ngram_rows;  // [max_rows, heads] of one n-gram layer; the host's
  // Views of the segments' states for the layer at hand.
  std::vector<kernels::GdnState> gdn_states;
  std::vector<kernels::PleState> ple_states;
  std::vector<const int32_t*> tables;

 private:
  int max_rows_;
  Buffer buffer_;
};

// One sequence's part of a forward. `tokens` is its whole token history up to and including its
// last row here (n-gram ids look back past the segment's start).
struct SegmentInput {
  SequenceState* state = nullptr;
  std::span<const int32_t> history;
};

class Model {
 public:
  Model(std::unique_ptr<Weights> weights, std::unique_ptr<kernels::Ops> ops);

  const ModelShape& shape() const { return weights_->shape; }
  const Weights& weights() const { return *weights_; }
  kernels::Ops& ops() { return *ops_; }
  const kernels::BackendInfo& backend() const { return ops_->info(); }

  // Runs the trunk. On return act.streams holds the wide residual of every row. kv_base: the pool.
  void forward(Activations& act, const kernels::Batch& batch, std::span<const SegmentInput> inputs,
               const StateLayout& layout, std::byte* kv_base, Probe* probe = nullptr);

  // logits[i, :] = head(mixer(wide[i])) for `rows` consecutive wide rows. logits: [rows,
  // vocabulary].
  void head(Activations& act, float* logits, const float* wide, int rows, Probe* probe = nullptr);

  // Runs the MTP head's rows (`wide` must not lie in act.other_streams): batch.tokens[i] is the
  // token after row i's position, wide [rows, wide] the trunk's streams of that position or the
  // head's own output of the row before. On return act.streams holds the head's output streams.
  // Positions are rows of the head's own cache.
  void mtp_forward(Activations& act, const float* wide, const kernels::Batch& batch,
                   std::span<const SegmentInput> inputs, const StateLayout& layout,
                   std::byte* kv_base, Probe* probe = nullptr);
  void mtp_head(Activations& act, float* logits, const float* wide, int rows,
                Probe* probe = nullptr);

  // Applies pending rows, so that the state stands alone.
  void settle(SequenceState& state);

 private:
  void run_head(Activations& act, float* logits, const float* wide, int rows,
                const kernels::HyperWeights& mixer, std::string_view name, Probe* probe);
  void check_batch(const Activations& act, const kernels::Batch& batch,
                   std::span<const SegmentInput> inputs) const;

  std::unique_ptr<Weights> weights_;
  std::unique_ptr<kernels::Ops> ops_;
};

// The limits that a backend must reserve for this shape.
kernels::OpsLimits ops_limits(const ModelShape& shape, int max_rows, int context);

}  // namespace flashlane::model
