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
  const bool decode = batch.role == Role::kDecode;
  const int64_t channels = w.channels();
  const int64_t keys = static_cast<int64_t>(w.key_heads) * w.key_dim;
  const int64_t values = static_cast<int64_t>(w.value_heads) * w.value_dim;
  const int segments = static_cast<int>(batch.segments.size());
  auto* mixed = scratch_.take<float>(batch.row_count * channels);
  auto* beta = scratch_.take<float>(static_cast<int64_t>(batch.row_count) * w.value_heads);
  auto* decay = scratch_.take<float>(static_cast<int64_t>(batch.row_count) * w.value_heads);

  // Convolution, silu, and unit keys and queries: one task a head.
  const int runs = 2 * w.key_heads + w.value_heads;
  pool_.run(segments * runs, [&](int task, int) {
    const auto s = static_cast<size_t>(task / runs);
    const int run = task % runs;
    const Segment& segment = batch.segments[s];
    check_segment(segment, batch.role);
    const bool is_value = run >= 2 * w.key_heads;
    const int64_t channel =
        is_value ? 2 * keys + static_cast<int64_t>(run - 2 * w.key_heads) * w.value_dim
                 : static_cast<int64_t>(run) * w.key_dim;
    const int64_t first = segment.first_row * channels + channel;
    ConvRun conv;
    conv.taps_by_channel = w.conv + channel * w.taps;
    conv.taps = w.taps;
    conv.channels = is_value ? w.value_dim : w.key_dim;
    conv.history = states[s].conv_history + channel;
    conv.history_stride = channels;
    conv.pending_rows = segment.pending_rows;
    conv.keep_all = !decode;
    conv.in = qkv + first;
    conv.in_stride = channels;
    conv.row_count = segment.row_count;
    conv.out = mixed + first;
    conv.out_stride = channels;
    kernels_.conv_silu(conv);
    for (int row = 0; row < segment.row_count; ++row) {
      const int64_t at = segment.first_row + row;
      if (is_value) {
        const int head = run - 2 * w.key_heads;
        const int64_t i = at * w.value_heads + head;
        beta[i] = sigmoid_f32(b[i]);
        decay[i] = exp_f32(-exp_f32(w.a_log[head]) * softplus_f32(a[i] + w.dt_bias[head]));
      } else {
        const bool is_query = run < w.key_heads;
        const float scale = is_query ? 1.0F / std::sqrt(static_cast<float>(w.key_dim)) : 1.0F;
        kernels_.unit_norm(mixed + at * channels + channel, w.key_dim, 1e-6F, scale);
      }
    }
  });

  // The state: one task a value head.
  pool_.run(segments * w.value_heads, [&](int task, int worker) {
    const auto s = static_cast<size_t>(task / w.value_heads);
    const int head = task % w.value_heads;
    const int key_head = head / (w.value_heads / w.key_heads);
    const Segment& segment = batch.segments[s];
    const int64_t first = segment.first_row;
    GdnHead step = replay_head(states[s], segment.pending_rows, head, w);
    step.row_count = segment.row_count;
    step.keep_all = !decode;
    step.query = mixed + first * channels + static_cast<int64_t>(key_head) * w.key_dim;
    step.key = step.query + keys;
    step.value = mixed + first * channels + 2 * keys + static_cast<int64_t>(head) * w.value_dim;
    step.row_stride = channels;
    step.beta = beta + first * w.value_heads + head;
    step.decay = decay + first * w.value_heads + head;
    step.head_stride = w.value_heads;
    step.delta_records = states[s].record_deltas + static_cast<int64_t>(head) * w.value_dim;
    step.out = out + first * values + static_cast<int64_t>(head) * w.value_dim;
    step.out_stride = values;
    step.copy = workers_[static_cast<size_t>(worker)].gdn_copy.as<float>();
    kernels_.gdn_head(step);
    for (int row = 0; row < segment.row_count; ++row) {
      float* y = step.out + row * values;
      kernels_.rms_norm(y, y, w.norm_gain, w.value_dim, w.eps);
      kernels_.apply_gate(y, z + (y - out), w.value_dim, w.output_gate == Gate::kSilu);
      if (decode && row > 0) {
        const int64_t at = static_cast<int64_t>(row) * w.value_heads + head;
        states[s].record_decays[at] = step.decay[row * w.value_heads];
      }
    }
  });

  // Keys are shared by value heads: they become records once all heads have replayed the old ones.
  if (!decode) return;
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    for (int64_t row = 1; row < segment.row_count; ++row) {
      std::copy_n(mixed + (segment.first_row + row) * channels + keys, keys,
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
