// The layers with recurrent state: Gated DeltaNet and the n-gram layer. Both keep the convolution
// inputs of the last decode window in their history and take the kept ones from it afterwards.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/elementary.h"
#include "kernels/reference/reference_ops.h"

namespace flashlane::kernels::reference {
namespace {

// Moves the history that belongs before the next row to the front: columns [pending, pending+tail).
void settle_history(float* history, int tail, int width, int pending_rows) {
  CHECK(pending_rows >= 0 && pending_rows <= kMaxWindow);
  if (pending_rows == 0) return;
  std::memmove(history, history + static_cast<int64_t>(pending_rows) * width,
               static_cast<size_t>(tail) * static_cast<size_t>(width) * sizeof(float));
}

// After a prompt segment: the last `tail` inputs become the history.
void keep_prompt_tail(float* history, int tail, int width, const float* inputs, int rows) {
  const int64_t stride = width;
  const int moved = std::min(rows, tail);
  std::memmove(history, history + moved * stride,
               static_cast<size_t>((tail - moved) * stride) * sizeof(float));
  std::copy_n(inputs + (rows - moved) * stride, moved * stride, history + (tail - moved) * stride);
}

// S ← decay·S + k ⊗ δ for one value head: the update that a forward and a replay share.
void apply_update(float* state, const float* key, const float* delta, float decay, int key_dim,
                  int value_dim) {
  for (int k = 0; k < key_dim; ++k) {
    float* row = state + static_cast<int64_t>(k) * value_dim;
    for (int v = 0; v < value_dim; ++v) row[v] = row[v] * decay + key[k] * delta[v];
  }
}

void normalize(float* x, int count, float scale) {
  const float factor = scale / std::sqrt(dot(x, x, count) + 1e-6F);
  for (int i = 0; i < count; ++i) x[i] *= factor;
}

}  // namespace

void ReferenceOps::settle_gdn(const GdnState& state, int pending_rows, const GdnWeights& w) {
  settle_history(state.conv_history, w.taps - 1, w.channels(), pending_rows);
  const int group = w.value_heads / w.key_heads;
  for (int row = 1; row < pending_rows; ++row) {
    for (int head = 0; head < w.value_heads; ++head) {
      apply_update(state.recurrent + static_cast<int64_t>(head) * w.key_dim * w.value_dim,
                   state.record_keys + (row * w.key_heads + head / group) * w.key_dim,
                   state.record_deltas + (row * w.value_heads + head) * w.value_dim,
                   state.record_decays[row * w.value_heads + head], w.key_dim, w.value_dim);
    }
  }
}

void ReferenceOps::settle_ple(const PleState& state, int pending_rows, const PleWeights& w) {
  settle_history(state.conv_history, w.history(), w.streams * w.hidden, pending_rows);
}

namespace {

// One row's convolution: tap j looks back taps-1-j rows, into the history before row 0.
void convolve_row(float* mixed, const float* inputs, const float* history, int row,
                  const GdnWeights& w) {
  const int channels = w.channels();
  const int tail = w.taps - 1;
  for (int c = 0; c < channels; ++c) {
    float sum = 0;
    for (int j = 0; j < w.taps; ++j) {
      const int64_t source = row + j - tail;
      const float input =
          source < 0 ? history[(source + tail) * channels + c] : inputs[source * channels + c];
      sum += w.conv[c * w.taps + j] * input;
    }
    mixed[c] = silu_f32(sum);
  }
}

// out[v] = sum over k of matrix[k, v] * scale * key[k].
void read_state(float* out, const float* matrix, float scale, const float* key,
                const GdnWeights& w) {
  std::fill_n(out, w.value_dim, 0.0F);
  for (int k = 0; k < w.key_dim; ++k) {
    for (int v = 0; v < w.value_dim; ++v) out[v] += matrix[k * w.value_dim + v] * scale * key[k];
  }
}

// One head of one row: decay, prediction, update, read-out, gated norm. delta receives δ.
float step_head(float* y, float* delta, float* matrix, const float* key, const float* query,
                const float* value, float beta_input, float rate_input, const float* gate, int head,
                const GdnWeights& w) {
  const float beta = sigmoid_f32(beta_input);
  const float rate = -exp_f32(w.a_log[head]) * softplus_f32(rate_input + w.dt_bias[head]);
  const float decay = exp_f32(rate);
  read_state(delta, matrix, decay, key, w);  // the prediction of the decayed state
  for (int v = 0; v < w.value_dim; ++v) delta[v] = beta * (value[v] - delta[v]);
  apply_update(matrix, key, delta, decay, w.key_dim, w.value_dim);
  read_state(y, matrix, 1.0F, query, w);
  rms_norm(y, y, w.norm_gain, w.value_dim, w.eps);
  for (int v = 0; v < w.value_dim; ++v) {
    y[v] *= w.output_gate == Gate::kSigmoid ? sigmoid_f32(gate[v]) : silu_f32(gate[v]);
  }
  return decay;
}

}  // namespace

void ReferenceOps::gdn_step(float* out, const float* qkv, const float* z, const float* b,
                            const float* a, const Batch& batch, std::span<const GdnState> states,
                            const GdnWeights& w) {
  const int channels = w.channels();
  const int group = w.value_heads / w.key_heads;
  const int key_width = w.key_heads * w.key_dim;
  const int value_width = w.value_heads * w.value_dim;
  const int64_t state_size = static_cast<int64_t>(w.key_dim) * w.value_dim;
  const bool decode = batch.role == Role::kDecode;
  std::vector<float> mixed(static_cast<size_t>(channels));
  std::vector<float> speculative;
  std::vector<float> deltas(static_cast<size_t>(value_width));
  float* const queries = mixed.data();
  float* const keys = queries + key_width;
  float* const values = keys + key_width;

  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    const GdnState& state = states[s];
    settle_gdn(state, segment.pending_rows, w);
    const float* inputs = qkv + static_cast<int64_t>(segment.first_row) * channels;
    float* current = state.recurrent;
    for (int i = 0; i < segment.row_count; ++i) {
      const int64_t row = segment.first_row + i;
      convolve_row(mixed.data(), inputs, state.conv_history, i, w);
      for (int head = 0; head < w.key_heads; ++head) {
        normalize(queries + head * w.key_dim, w.key_dim,
                  1.0F / std::sqrt(static_cast<float>(w.key_dim)));
        normalize(keys + head * w.key_dim, w.key_dim, 1.0F);
      }
      if (decode && i == 1) {
        // Rows after the first may be rolled back: go on with a copy and leave records.
        speculative.assign(state.recurrent, state.recurrent + w.value_heads * state_size);
        current = speculative.data();
      }
      for (int head = 0; head < w.value_heads; ++head) {
        const int64_t at = row * value_width + head * w.value_dim;
        const float decay = step_head(out + at, &deltas[static_cast<size_t>(head * w.value_dim)],
                                      current + head * state_size, keys + head / group * w.key_dim,
                                      queries + head / group * w.key_dim,
                                      values + head * w.value_dim, b[row * w.value_heads + head],
                                      a[row * w.value_heads + head], z + at, head, w);
        if (decode && i > 0) state.record_decays[i * w.value_heads + head] = decay;
      }
      if (decode && i > 0) {
        std::copy_n(keys, key_width, state.record_keys + i * key_width);
        std::copy_n(deltas.data(), value_width, state.record_deltas + i * value_width);
      }
    }
    const int tail = w.taps - 1;
    if (decode) {
      std::copy_n(inputs, static_cast<int64_t>(segment.row_count) * channels,
                  state.conv_history + static_cast<int64_t>(tail) * channels);
    } else {
      keep_prompt_tail(state.conv_history, tail, channels, inputs, segment.row_count);
    }
  }
}

namespace {

// Γ of one row and its norm, all streams: [streams * hidden] each.
void gate_row(float* gated, float* normed, const float* streams, const float* key,
              const float* value, const PleWeights& w) {
  const int hidden = w.hidden;
  const float root = std::sqrt(static_cast<float>(hidden));
  std::vector<float> keys(static_cast<size_t>(hidden));
  std::vector<float> queries(static_cast<size_t>(hidden));
  for (int c = 0; c < w.streams; ++c) {
    const int at = c * hidden;
    rms_norm(keys.data(), key + at, w.key_gain + at, hidden, w.eps);
    rms_norm(queries.data(), streams + at, w.query_gain + at, hidden, w.eps);
    const float score = dot(keys.data(), queries.data(), hidden) / root;
    const float magnitude = std::sqrt(std::max(std::fabs(score), 1e-6F));
    const float gate = sigmoid_f32(score > 0 ? magnitude : (score < 0 ? -magnitude : 0.0F));
    for (int d = 0; d < hidden; ++d) gated[at + d] = gate * value[d];
    rms_norm(normed + at, gated + at, w.conv_gain + at, hidden, w.eps);
  }
}

}  // namespace

void ReferenceOps::ple_inject(float* streams, float* added, const float* key, const float* value,
                              const Batch& batch, std::span<const PleState> states,
                              const PleWeights& w) {
  const int64_t wide = static_cast<int64_t>(w.streams) * w.hidden;
  std::vector<float> gated;
  std::vector<float> normed;
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    float* history = states[s].conv_history;
    settle_ple(states[s], segment.pending_rows, w);
    gated.resize(static_cast<size_t>(segment.row_count * wide));
    normed.resize(gated.size());
    for (int i = 0; i < segment.row_count; ++i) {
      const int64_t row = segment.first_row + i;
      gate_row(&gated[static_cast<size_t>(i * wide)], &normed[static_cast<size_t>(i * wide)],
               streams + row * wide, key + row * wide, value + row * w.hidden, w);
    }
    for (int i = 0; i < segment.row_count; ++i) {
      const int64_t row = segment.first_row + i;
      for (int64_t d = 0; d < wide; ++d) {
        float sum = 0;
        for (int j = 0; j < w.taps; ++j) {
          const int64_t source = i - static_cast<int64_t>(w.taps - 1 - j) * w.dilation;
          const float input = source < 0 ? history[(source + w.history()) * wide + d]
                                         : normed[static_cast<size_t>(source * wide + d)];
          sum += w.conv[d * w.taps + j] * input;
        }
        const float addend = gated[static_cast<size_t>(i * wide + d)] + silu_f32(sum);
        streams[row * wide + d] += addend;
        if (added != nullptr) added[row * wide + d] = addend;
      }
    }
    if (batch.role == Role::kDecode) {
      std::copy(normed.begin(), normed.end(), history + w.history() * wide);
    } else {
      keep_prompt_tail(history, w.history(), static_cast<int>(wide), normed.data(),
                       segment.row_count);
    }
  }
}

}  // namespace flashlane::kernels::reference
