// The instruction-level part of the cpu backend: one table of leaf functions per level, all
// compiled from the same templates over 16 virtual float lanes, so that every level gives the same
// bits. Plain pointers and numbers in, no allocation, no threads. A function's result for one row
// never depends on how many rows it was given.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kernels/cpu/panel_format.h"

namespace flashlane::kernels::cpu {

inline constexpr int kTileRows = 64;  // most output rows of one call of project
inline constexpr int kTileLines = kTileRows / kLanes;
inline constexpr int kMostRowBlock = 64;  // of LevelKernels::row_block
inline constexpr int kKeyChunk = 64;      // keys of one softmax step
inline constexpr int kGdnColumns = 32;    // columns of a recurrent state worked on together

// Consecutive panels of one packed matrix: `lines` lines of 16 output rows, `subs` to a panel.
struct PanelTile {
  const PanelFormat* format = nullptr;
  int subs = 1;
  int lines = 0;  // ≤ kTileLines
  int64_t groups = 0;
  const std::byte* data = nullptr;
  size_t panel_bytes = 0;
  int64_t outputs = 0;  // valid output rows of the tile, ≤ 16 * lines
};

// One input row as the matrix products take it, shaped for one format: values rounded to bf16, each
// group of columns padded with zeros. out: where the tile's first output goes.
struct InputRow {
  const float* x;         // [groups, group]: as word_order says
  const uint16_t* pairs;  // [groups, group] as bf16 in the order of the columns; only where wanted
  const float* sums;      // [groups] of the rounded values; only for scaled formats
  float* out;
};

// One run of channels of a causal depthwise convolution over the rows of one segment.
struct ConvRun {
  const float* taps_by_channel = nullptr;  // [channels, taps]; the last tap is the current row
  int taps = 0;
  int dilation = 1;
  int64_t channels = 0;
  float* history = nullptr;  // [history rows + kMaxWindow, stride]
  int64_t history_stride = 0;
  int pending_rows = 0;
  bool keep_all = false;      // prompt rows: the history moves on by all rows
  const float* in = nullptr;  // [row_count, in_stride]
  int64_t in_stride = 0;
  int row_count = 0;     // 0: only bring the history to the front
  float* out = nullptr;  // [row_count, out_stride]: silu of the convolution
  int64_t out_stride = 0;
};

// One value head of a DeltaNet layer over the rows of one segment.
struct GdnHead {
  float* state = nullptr;  // [key_dim, value_dim]
  int key_dim = 0;
  int value_dim = 0;
  // Records to apply first: keys [.., key_dim], deltas [.., value_dim], one decay each.
  int replay_count = 0;
  const float* replay_keys = nullptr;
  const float* replay_deltas = nullptr;
  const float* replay_decays = nullptr;
  int64_t key_record_stride = 0;
  int64_t delta_record_stride = 0;
  int64_t decay_record_stride = 0;
  // This segment's rows: q̂, k̂, v are strided by row_stride, beta and decay by head_stride.
  int row_count = 0;
  bool keep_all = false;  // else only row 0 stays in the state and later rows leave records
  const float* query = nullptr;
  const float* key = nullptr;
  const float* value = nullptr;
  int64_t row_stride = 0;
  const float* beta = nullptr;
  const float* decay = nullptr;
  int64_t head_stride = 0;
  float* delta_records = nullptr;  // by row index; row 0's is not written
  float* out = nullptr;            // [row_count, out_stride]
  int64_t out_stride = 0;
  float* copy = nullptr;  // [key_dim, kGdnColumns] of scratch
};

struct LevelKernels {
  const char* name;
  int row_block;  // input rows that one call of project likes to have
  // Rows have `pairs`, and rows given to one call lie equally far apart.
  bool pairs;
  // out[row] = tile · x[row], each lane one output row, in the order of docs/row_rule.md.
  void (*project)(const PanelTile& tile, const InputRow* rows, int row_count);
  // One row of `cols` values as an InputRow has them; pairs may be null.
  void (*shape_row)(float* shaped, uint16_t* pairs, float* sums, const float* x, int64_t cols,
                    const PanelFormat& format);
  // out = x * (mean(x²) + eps)^(-1/2) * gain; out may be x.
  void (*rms_norm)(float* out, const float* x, const float* gain, int64_t count, float eps);
  // x = x * (Σx² + eps)^(-1/2) * scale.
  void (*unit_norm)(float* x, int64_t count, float eps, float scale);
  float (*dot)(const float* a, const float* b, int64_t count);
  // x = silu(x * scale).
  void (*silu)(float* x, int64_t count, float scale);
  // out = silu(gate) * up.
  void (*gated_product)(float* out, const float* gate, const float* up, int64_t count);
  // x = x * act(gate) with act sigmoid, or silu when is_silu.
  void (*apply_gate)(float* x, const float* gate, int64_t count, bool is_silu);
  // mixed[d] = (1 / streams) Σ_c sigmoid(gate[c, d]) * normed[c, d].
  void (*hyper_mix)(float* mixed, const float* gate, const float* normed, int streams,
                    int64_t hidden);
  // y = fma(a, x, y).
  void (*add_scaled)(float* y, const float* x, float a, int64_t count);
  void (*conv_silu)(const ConvRun& run);
  void (*gdn_head)(const GdnHead& head);
  // out[i] = q · keys[i].
  void (*key_dots)(float* out, const float* q, const std::byte* const* keys, int count, int dim,
                   bool bf16);
  // x[i] = exp(x[i] - shift); returns the sum.
  float (*exp_sum)(float* x, int count, float shift);
  // acc = acc * rescale + Σ p[i] * values[i], i ascending.
  void (*weigh_values)(float* acc, float rescale, const float* p, const std::byte* const* values,
                       int count, int dim, bool bf16);
};

const LevelKernels& avx2_kernels();
const LevelKernels& avx512_kernels();
const LevelKernels& avx512_bf16_kernels();
const LevelKernels& amx_kernels();

// The kernels of a level by name, or of the highest that this CPU has for "auto".
Result<const LevelKernels*> find_level(std::string_view isa);

}  // namespace flashlane::kernels::cpu
