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

namespace flashlane::kernels::cpu {

inline constexpr int kLanes = 16;
inline constexpr int kPanelRows = 16;  // output rows interleaved in one packed panel
inline constexpr int kTilePanels = 4;  // most panels of one call
inline constexpr int kTileRows = kPanelRows * kTilePanels;
inline constexpr int kRowBlock = 6;     // most input rows worked on together
inline constexpr int kPlainGroup = 64;  // columns summed on their own in plain matrices
inline constexpr int kKeyChunk = 64;    // keys of one softmax step
inline constexpr int kGdnColumns = 32;  // columns of a recurrent state worked on together

enum class PanelKind : uint8_t { kF32, kBf16, kByte, kNibble };

// Up to kTilePanels consecutive panels of one packed matrix. A panel holds, for each column, the
// values of 16 output rows; nibbles hold two columns a byte (low first); scales are
// [groups][scale, bias][16].
struct PanelTile {
  PanelKind kind = PanelKind::kF32;
  bool bf16_scales = false;
  int panels = 0;
  int64_t cols = 0;  // even: an odd last column is padded with a zero weight
  int group = kPlainGroup;
  int64_t sum_offset = 0;  // where the sums of this group size start in InputRow::sums
  const std::byte* data = nullptr;
  size_t panel_bytes = 0;
  const std::byte* scales = nullptr;  // null for plain matrices
  size_t panel_scale_bytes = 0;
  int64_t outputs = 0;  // valid output rows of the tile, ≤ 16 * panels
};

// One input row as the matrix products take it: values rounded to bf16 (as floats, zero up to an
// even count) and the sums of each group of 32, then 64, then 128 columns. out: where the tile's
// first output goes.
struct InputRow {
  const float* x = nullptr;
  const float* sums = nullptr;
  float* out = nullptr;
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

// Where the sums of `group` columns start in the sums of a row, and how many sums there are in all.
constexpr int64_t sums_offset(int64_t cols, int group) {
  const int64_t thirty_twos = (cols + 31) / 32;
  return group == 32 ? 0 : (group == 64 ? thirty_twos : thirty_twos + thirty_twos / 2);
}
constexpr int64_t sums_count(int64_t cols) {
  return sums_offset(cols, 128) + (cols + 31) / 128;
}

struct LevelKernels {
  const char* name;
  // out[row] = tile · x[row], f32 accumulation in a fixed order: within a group by ascending
  // column, then groups ascending, each lane one output row.
  void (*project)(const PanelTile& tile, const InputRow* rows, int row_count);
  // x rounded to bf16 into rounded, zeros up to padded; sums as in InputRow. rounded may be x.
  void (*round_row)(float* rounded, float* sums, const float* x, int64_t cols, int64_t padded);
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

// The kernels of a level by name, or of the highest that this CPU has for "auto".
Result<const LevelKernels*> find_level(std::string_view isa);

}  // namespace flashlane::kernels::cpu
