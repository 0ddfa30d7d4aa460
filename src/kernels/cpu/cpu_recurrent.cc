// The layers with recurrent state: Gated DeltaNet and the n-gram layer. Tasks are (segment, head)
// or (segment, run of channels): each owns its part of the state and takes the segment's rows in
// order, so nothing depends on who runs when.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/int_math.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/elementary.h"

namespace flashlane::kernels::cpu {
namespace {

constexpr int64_t kPleRun = 128;  // channels of one convolution task
constexpr int kMostTaps = 16;     // as in level_gdn.h

void check_segment(const Segment& segment, Role role) {
  CHECK(segment.pending_rows >= 0 && segment.pending_rows <= kMaxWindow);
  CHECK_GE(segment.row_count, 1);
  if (role == Role::kDecode) CHECK_LE(segment.row_count, kMaxWindow);
}

// The replay part of a head's work: records 1..pending_rows-1 (row 0 is in the state already).
GdnHead replay_head(const GdnState& state, int pending_rows, int head, const GdnWeights& w) {
  const int key_head = head / (w.value_heads / w.key_heads);
  const int64_t keys = static_cast<int64_t>(w.key_heads) * w.key_dim;
  const int64_t values = static_cast<int64_t>(w.value_heads) * w.value_dim;
  GdnHead task;
  task.state = state.recurrent + static_cast<int64_t>(head) * w.key_dim * w.value_dim;
  task.key_dim = w.key_dim;
  task.value_dim = w.value_dim;
  task.replay_count = std::max(0, pending_rows - 1);
  task.replay_keys = state.record_keys + keys + static_cast<int64_t>(key_head) * w.key_dim;
  task.replay_deltas = state.record_deltas + values + static_cast<int64_t>(head) * w.value_dim;
  task.replay_decays = state.record_decays + w.value_heads + head;
  task.key_record_stride = keys;
  task.delta_record_stride = values;
  task.decay_record_stride = w.value_heads;
  return task;
}

// One gdn_step: its arguments, and what its two stages hand on.
struct GdnCall {
  const LevelKernels& kernels;
  float* out;
  const float* qkv;
  const float* z;
  const float* b;
  const float* a;
  const Batch& batch;
  std::span<const GdnState> states;
  const GdnWeights& w;
  float* mixed;  // [rows, channels]: queries, keys and values after the convolution
  float* beta;   // [rows, value_heads]
  float* decay;  // [rows, value_heads]

  int64_t keys() const { return static_cast<int64_t>(w.key_heads) * w.key_dim; }
  int64_t values() const { return static_cast<int64_t>(w.value_heads) * w.value_dim; }
};

// Convolution and silu of one head's channels (query heads, key heads, value heads in order), unit
// queries and keys, β and exp(g).
void convolve_head(const GdnCall& call, size_t s, int run) {
  const GdnWeights& w = call.w;
  const Segment& segment = call.batch.segments[s];
  check_segment(segment, call.batch.role);
  const int64_t channels = w.channels();
  const int head = run - 2 * w.key_heads;
  const bool is_value = head >= 0;
  const int64_t channel = is_value ? 2 * call.keys() + static_cast<int64_t>(head) * w.value_dim
                                   : static_cast<int64_t>(run) * w.key_dim;
  const int64_t first = segment.first_row * channels + channel;
  ConvRun conv;
  conv.taps_by_channel = w.conv + channel * w.taps;
  conv.taps = w.taps;
  conv.channels = is_value ? w.value_dim : w.key_dim;
  conv.history = call.states[s].conv_history + channel;
  conv.history_stride = channels;
  conv.pending_rows = segment.pending_rows;
  conv.keep_all = call.batch.role == Role::kPrompt;
  conv.in = call.qkv + first;
  conv.in_stride = channels;
  conv.row_count = segment.row_count;
  conv.out = call.mixed + first;
  conv.out_stride = channels;
  call.kernels.conv_silu(conv);
  const float query_scale = 1.0F / std::sqrt(static_cast<float>(w.key_dim));
  for (int row = 0; row < segment.row_count; ++row) {
    if (!is_value) {
      call.kernels.unit_norm(conv.out + row * channels, w.key_dim, 1e-6F,
                             run < w.key_heads ? query_scale : 1.0F);
      continue;
    }
    const int64_t i = static_cast<int64_t>(segment.first_row + row) * w.value_heads + head;
    call.beta[i] = sigmoid_f32(call.b[i]);
    const float rate = softplus_f32(call.a[i] + w.dt_bias[head]);
    call.decay[i] = exp_f32(-exp_f32(w.a_log[head]) * rate);
  }
}

// The state of one value head over a segment's rows, and the gated norm of what was read.
void update_head(const GdnCall& call, size_t s, int head, float* copy) {
  const GdnWeights& w = call.w;
  const Segment& segment = call.batch.segments[s];
  const GdnState& state = call.states[s];
  const bool decode = call.batch.role == Role::kDecode;
  const int64_t first = segment.first_row;
  const int64_t values = call.values();
  const int64_t key_head = head / (w.value_heads / w.key_heads);
  GdnHead step = replay_head(state, segment.pending_rows, head, w);
  step.row_count = segment.row_count;
  step.keep_all = !decode;
  step.query = call.mixed + first * w.channels() + key_head * w.key_dim;
  step.key = step.query + call.keys();
  step.value = call.mixed + first * w.channels() + 2 * call.keys() +
               static_cast<int64_t>(head) * w.value_dim;
  step.row_stride = w.channels();
  step.beta = call.beta + first * w.value_heads + head;
  step.decay = call.decay + first * w.value_heads + head;
  step.head_stride = w.value_heads;
  step.delta_records = state.record_deltas + static_cast<int64_t>(head) * w.value_dim;
  step.out = call.out + first * values + static_cast<int64_t>(head) * w.value_dim;
  step.out_stride = values;
  step.copy = copy;
  call.kernels.gdn_head(step);
  for (int row = 0; row < segment.row_count; ++row) {
    float* y = step.out + row * values;
    call.kernels.rms_norm(y, y, w.norm_gain, w.value_dim, w.eps);
    call.kernels.apply_gate(y, call.z + (y - call.out), w.value_dim, w.output_gate == Gate::kSilu);
    if (decode && row > 0) {
      const int64_t at = static_cast<int64_t>(row) * w.value_heads + head;
      state.record_decays[at] = step.decay[row * w.value_heads];
    }
  }
}

// Γ of one row and its norm over each stream.
void gate_row(const LevelKernels& kernels, float* gated, float* normed, const float* streams,
              const float* key, const float* value, const PleWeights& w) {
  const int64_t hidden = w.hidden;
  const float root = std::sqrt(static_cast<float>(w.hidden));
  for (int64_t c = 0; c < w.streams; ++c) {
    const int64_t at = c * hidden;
    // The two outputs hold the normed key and query until the gate is known.
    kernels.rms_norm(gated + at, key + at, w.key_gain + at, hidden, w.eps);
    kernels.rms_norm(normed + at, streams + at, w.query_gain + at, hidden, w.eps);
    const float score = kernels.dot(gated + at, normed + at, hidden) / root;
    const float magnitude = std::sqrt(std::max(std::fabs(score), 1e-6F));
    const float gate = sigmoid_f32(score > 0 ? magnitude : (score < 0 ? -magnitude : 0.0F));
    std::fill_n(gated + at, hidden, 0.0F);
    kernels.add_scaled(gated + at, value, gate, hidden);
    kernels.rms_norm(normed + at, gated + at, w.conv_gain + at, hidden, w.eps);
  }
}

}  // namespace

void CpuOps::gdn_step(float* out, const float* qkv, const float* z, const float* b, const float* a,
                      const Batch& batch, std::span<const GdnState> states, const GdnWeights& w) {
  begin(batch.row_count);
  CHECK_EQ(states.size(), batch.segments.size());
  CHECK(w.taps >= 1 && w.taps <= kMostTaps);
  CHECK_LE(static_cast<int64_t>(w.key_dim), limits_.widest / 2);
  const int64_t rows = batch.row_count;
  auto* mixed = scratch_.take<float>(rows * w.channels());
  auto* beta = scratch_.take<float>(rows * w.value_heads);
  auto* decay = scratch_.take<float>(rows * w.value_heads);
  const GdnCall call = {kernels_, out, qkv, z, b, a, batch, states, w, mixed, beta, decay};

  const int segments = static_cast<int>(batch.segments.size());
  const int runs = 2 * w.key_heads + w.value_heads;
  pool_.run(segments * runs, [&](int task, int) {
    convolve_head(call, static_cast<size_t>(task / runs), task % runs);
  });
  pool_.run(segments * w.value_heads, [&](int task, int worker) {
    update_head(call, static_cast<size_t>(task / w.value_heads), task % w.value_heads,
                workers_[static_cast<size_t>(worker)].gdn_copy.as<float>());
  });
  // Keys are shared by value heads: they become records once all heads have replayed the old ones.
  if (batch.role != Role::kDecode) return;
  const int64_t keys = call.keys();
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    for (int64_t row = 1; row < segment.row_count; ++row) {
      std::copy_n(mixed + (segment.first_row + row) * w.channels() + keys, keys,
                  states[s].record_keys + row * keys);
    }
  }
}

void CpuOps::settle_gdn(const GdnState& state, int pending_rows, const GdnWeights& w) {
  CHECK(pending_rows >= 0 && pending_rows <= kMaxWindow);
  for (int head = 0; head < w.value_heads; ++head) {
    kernels_.gdn_head(replay_head(state, pending_rows, head, w));
  }
  ConvRun conv;
  conv.taps = w.taps;
  conv.channels = w.channels();
  conv.history = state.conv_history;
  conv.history_stride = w.channels();
  conv.pending_rows = pending_rows;
  kernels_.conv_silu(conv);
}

void CpuOps::settle_ple(const PleState& state, int pending_rows, const PleWeights& w) {
  CHECK(pending_rows >= 0 && pending_rows <= kMaxWindow);
  ConvRun conv;
  conv.taps = w.taps;
  conv.dilation = w.dilation;
  conv.channels = static_cast<int64_t>(w.streams) * w.hidden;
  conv.history = state.conv_history;
  conv.history_stride = conv.channels;
  conv.pending_rows = pending_rows;
  kernels_.conv_silu(conv);
}

void CpuOps::ple_inject(float* streams, float* added, const float* key, const float* value,
                        const Batch& batch, std::span<const PleState> states, const PleWeights& w) {
  begin(batch.row_count);
  CHECK_EQ(states.size(), batch.segments.size());
  CHECK(w.taps >= 1 && w.taps <= kMostTaps);
  const int64_t hidden = w.hidden;
  const int64_t wide = w.streams * hidden;
  auto* gated = scratch_.take<float>(batch.row_count * wide);
  auto* normed = scratch_.take<float>(batch.row_count * wide);
  auto* convolved = scratch_.take<float>(batch.row_count * wide);
  for_rows(batch.row_count, wide, [&](int row) {
    gate_row(kernels_, gated + row * wide, normed + row * wide, streams + row * wide,
             key + row * wide, value + row * hidden, w);
  });
  const int runs = static_cast<int>(div_ceil(wide, kPleRun));
  const int segments = static_cast<int>(batch.segments.size());
  pool_.run(segments * runs, [&](int task, int) {
    const auto s = static_cast<size_t>(task / runs);
    const int64_t channel = task % runs * kPleRun;
    const Segment& segment = batch.segments[s];
    check_segment(segment, batch.role);
    const int64_t first = segment.first_row * wide + channel;
    ConvRun conv;
    conv.taps_by_channel = w.conv + channel * w.taps;
    conv.taps = w.taps;
    conv.dilation = w.dilation;
    conv.channels = std::min(kPleRun, wide - channel);
    conv.history = states[s].conv_history + channel;
    conv.history_stride = wide;
    conv.pending_rows = segment.pending_rows;
    conv.keep_all = batch.role == Role::kPrompt;
    conv.in = normed + first;
    conv.in_stride = wide;
    conv.row_count = segment.row_count;
    conv.out = convolved + first;
    conv.out_stride = wide;
    kernels_.conv_silu(conv);
    for (int row = 0; row < segment.row_count; ++row) {
      const int64_t at = first + row * wide;
      kernels_.add_scaled(gated + at, convolved + at, 1.0F, conv.channels);
      kernels_.add_scaled(streams + at, gated + at, 1.0F, conv.channels);
      if (added != nullptr) std::copy_n(gated + at, conv.channels, added + at);
    }
  });
}

}  // namespace flashlane::kernels::cpu
