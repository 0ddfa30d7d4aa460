#include "model/forward.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/int_math.h"
#include "model/block.h"

namespace flashlane::model {

using kernels::Batch;

Model::Model(std::unique_ptr<Weights> weights, std::unique_ptr<kernels::Ops> ops)
    : weights_(std::move(weights)), ops_(std::move(ops)) {}

// embed → blocks (n-gram layer, mixer, experts) → the wide residual.
void Model::forward(Activations& act, const Batch& batch, std::span<const SegmentInput> inputs,
                    const StateLayout& layout, std::byte* kv_base, Probe* probe) {
  check_batch(act, batch, inputs);
  if (probe != nullptr) probe->begin(batch);
  Step step{*ops_, act, batch, inputs, layout, kv_base, probe};
  for (const PleLayer& ple : weights_->ple) ask_for_ngram_rows(step, ple, *weights_->source);
  ops_->embed(act.streams, batch.tokens, shape().streams, weights_->embedding);
  int delta_index = 0;
  int sparse_index = 0;
  for (int i = 0; i < shape().layers; ++i) {
    const LayerWeights& layer = weights_->layers[static_cast<size_t>(i)];
    step.name = "layer" + std::to_string(i) + "_";
    if (layer.ple >= 0) ngram_block(step, weights_->ple[static_cast<size_t>(layer.ple)], layer.ple);
    const bool delta = layer.kind == LayerKind::kDelta;
    run_layer(step, layer, delta ? delta_index++ : sparse_index++);
    step.report("streams", act.streams, shape().wide());
  }
}

// X[c] = fc_hidden · norm(wide)[c] + fc_embedding · norm(embedding) → one sparse layer.
void Model::mtp_forward(Activations& act, const float* wide, const Batch& batch,
                        std::span<const SegmentInput> inputs, const StateLayout& layout,
                        std::byte* kv_base, Probe* probe) {
  CHECK(weights_->has_mtp);
  check_batch(act, batch, inputs);
  const MtpHead& head = weights_->mtp;
  if (probe != nullptr) probe->begin(batch);
  Step step{*ops_, act, batch, inputs, layout, kv_base, probe};
  step.name = "mtp_";
  ops_->embed(act.scratch[0], batch.tokens, 1, weights_->embedding);
  // The inputs may be the streams of the pass before, so the result goes to the other buffer.
  ops_->mtp_fuse(act.other_streams, wide, act.scratch[0], batch.row_count, head.fuse);
  std::swap(act.streams, act.other_streams);
  step.report("fused", act.streams, shape().wide());
  run_layer(step, head.layer, shape().sparse_layers());
  step.report("streams", act.streams, shape().wide());
}

void Model::head(Activations& act, float* logits, const float* wide, int rows, Probe* probe) {
  run_head(act, logits, wide, rows, weights_->mixer, "final_mixed", probe);
}

void Model::mtp_head(Activations& act, float* logits, const float* wide, int rows, Probe* probe) {
  run_head(act, logits, wide, rows, weights_->mtp.mixer, "mtp_mixed", probe);
}

void Model::run_head(Activations& act, float* logits, const float* wide, int rows,
                     const kernels::HyperWeights& mixer, std::string_view name, Probe* probe) {
  CHECK(rows > 0 && rows <= act.max_rows());
  ops_->hyper_read(act.mixed, nullptr, wide, rows, mixer);
  const auto report = [&](std::string_view what, const float* values, int width) {
    if (probe == nullptr) return;
    probe->floats(what, HostCopy<float>(*ops_, values, rows, width).values(), rows, width);
  };
  report(name, act.mixed, shape().hidden);
  ops_->project(logits, act.mixed, rows, weights_->head);
  report("logits", logits, shape().vocabulary);
}

void Model::settle(SequenceState& state) {
  if (state.pending_rows == 0) return;
  size_t delta_index = 0;
  for (const LayerWeights& layer : weights_->layers) {
    if (layer.kind != LayerKind::kDelta) continue;
    ops_->settle_gdn(state.gdn[delta_index++], state.pending_rows, layer.delta.step);
  }
  for (size_t i = 0; i < weights_->ple.size(); ++i) {
    ops_->settle_ple(state.ple[i], state.pending_rows, weights_->ple[i].inject);
  }
  state.pending_rows = 0;
}

void Model::check_batch(const Activations& act, const Batch& batch,
                        std::span<const SegmentInput> inputs) const {
  CHECK(batch.row_count > 0 && batch.row_count <= act.max_rows());
  CHECK_EQ(batch.tokens.size(), static_cast<size_t>(batch.row_count));
  CHECK_EQ(batch.segments.size(), inputs.size());
  int rows = 0;
  for (const kernels::Segment& segment : batch.segments) {
    CHECK_EQ(segment.first_row, rows);
    CHECK(segment.row_count > 0 && segment.start_position >= 0);
    CHECK(batch.role == kernels::Role::kPrompt || segment.row_count <= kernels::kMaxWindow);
    rows += segment.row_count;
  }
  CHECK_EQ(rows, batch.row_count);
  for (const int32_t token : batch.tokens) CHECK(token >= 0 && token < shape().vocabulary);
}

}  // namespace flashlane::model
