// Gated DeltaNet: the step of a forward, and settling. Prompts, and decode steps that
// recurrent_decode.cu doesn't take, go through convolve_kernel, a recurrence and finish_kernel.
// Whoever reads a history, or records that several blocks read, runs before the kernel that
// rewrites it.
#include <cuda_pipeline.h>

#include <algorithm>

#include "base/int_math.h"
#include "kernels/cuda/history.cuh"
#include "kernels/cuda/recurrent.cuh"

namespace flashlane::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kMostDim = kMostGdnHeadDim;
static_assert(kMostDim == kThreads);  // a thread a column

// Channel `c` of row i of a segment whose first row is inputs[0]: tap j looks back taps-1-j rows,
// into the history before row 0, of which the first `pending_rows` columns are past. kTaps 0: any.
template <int kTaps>
__device__ float convolve(const float* __restrict__ inputs, const float* __restrict__ history,
                          int pending_rows, int64_t channels, int i, int c, const GdnWeights& w) {
  const int taps = kTaps > 0 ? kTaps : w.taps;
  const float* before = history + (taps - 1 + pending_rows) * channels;  // where row 0 would be
  return convolved<kTaps>(
      taps, [&](int j) { return w.conv[int64_t{c} * taps + j]; },
      [&](int j) {
        const int source = i + j - (taps - 1);
        const float* rows = source < 0 ? before : inputs;
        return rows[source * channels + c];
      });
}

// A warp a row and head (of queries, keys or values); its block has the next rows' same head. A
// lane has up to kOfLane elements.
template <int kTaps, int kOfLane>
__global__ __launch_bounds__(kThreads) void convolve_kernel(const __grid_constant__ GdnStep step) {
  let_later_start();
  wait_for_earlier();
  const GdnWeights& w = step.weights;
  const int units = 2 * w.key_heads + w.value_heads;
  const int unit = static_cast<int>(blockIdx.x) % units;
  const int row = static_cast<int>(blockIdx.x) / units * kWarps + warp_index();
  if (row >= step.rows) return;
  const int value_head = unit - 2 * w.key_heads;  // negative: a query's or a key's
  if (value_head >= 0 && lane_index() == 0) {
    const int64_t at = int64_t{row} * w.value_heads + value_head;
    step.decays[at] = decay_of(step.a[at], w.a_log[value_head], w.dt_bias[value_head]);
    step.betas[at] = sigmoid_f32(step.b[at]);
  }
  const int s = segment_of(step.segments, row);
  const Segment& segment = step.segments.of[s];
  const int count = value_head < 0 ? w.key_dim : w.value_dim;
  const int first = min(unit, 2 * w.key_heads) * w.key_dim + max(value_head, 0) * w.value_dim;
  const float* inputs = step.qkv + int64_t{segment.first_row} * step.channels;
  float own[kOfLane];
#pragma unroll
  for (int t = 0; t < kOfLane; ++t) {  // also beyond the head's end: so all loads wait together
    const int c = first + min(lane_index() + t * kWarp, count - 1);
    own[t] = convolve<kTaps>(inputs, step.states.of[s].conv_history, segment.pending_rows,
                             step.channels, row - segment.first_row, c, w);
  }
  const HeadKind kind = unit < w.key_heads ? HeadKind::kQuery
                        : value_head < 0   ? HeadKind::kKey
                                           : HeadKind::kValue;
  const float factor = activate(own, count, kind);
  float* mixed = step.mixed + int64_t{row} * step.channels + first;
#pragma unroll
  for (int t = 0; t < kOfLane; ++t) {
    const int d = lane_index() + t * kWarp;
    if (d < count) mixed[d] = own[t] * factor;
  }
}

// The fast recurrence: a block has 32 columns of a head's state.
constexpr int kFastWarps = 4;
constexpr int kFastThreads = kFastWarps * kWarp;
constexpr int kBlockColumns = kFastWarps * kColumns;
constexpr int kTileRows = kMaxWindow;  // so all pending rows, and all of a decode segment, are one
static_assert(kBlockColumns == kWarp);
using FastTile = Tile<kTileRows, kBlockColumns>;
using FastResults = Results<kTileRows>;

__device__ void stage_rows(FastTile& tile, const GdnStep& step, int64_t row, int count, int head,
                           int first_column) {
  const GdnWeights& w = step.weights;
  const int lane = lane_index(), key_width = w.key_heads * kDim;
  const int key_head = head / (w.value_heads / w.key_heads);
  for (int r = warp_index(); r < count; r += kFastWarps) {
    const float* mixed = step.mixed + (row + r) * step.channels;
    const float* query = mixed + key_head * kDim + 4 * lane;
    const float* value = mixed + 2 * key_width + head * kDim + first_column;
    const int64_t at = (row + r) * w.value_heads + head;
    __pipeline_memcpy_async(&tile.queries[r][4 * lane], query, 16);
    __pipeline_memcpy_async(&tile.keys[r][4 * lane], query + key_width, 16);
    if (lane < kBlockColumns / 4) {
      __pipeline_memcpy_async(&tile.values[r][4 * lane], value + 4 * lane, 16);
    } else if (lane == kBlockColumns / 4) {
      __pipeline_memcpy_async(&tile.decays[r], step.decays + at, 4);
      __pipeline_memcpy_async(&tile.betas[r], step.betas + at, 4);
    }
  }
}

// Records 1 to `count`. Copies of one float: states are not promised to be aligned to more.
__device__ void stage_records(FastTile& tile, const GdnState& state, const GdnWeights& w, int count,
                              int head, int first_column) {
  const int lane = lane_index();
  const int key_head = head / (w.value_heads / w.key_heads);
  for (int r = warp_index(); r < count; r += kFastWarps) {
    const float* keys = state.record_keys + ((r + 1) * w.key_heads + key_head) * kDim;
    const int at = (r + 1) * w.value_heads + head;
    for (int k = lane; k < kDim; k += kWarp) __pipeline_memcpy_async(&tile.keys[r][k], keys + k, 4);
    const float* deltas = state.record_deltas + at * kDim + first_column;
    __pipeline_memcpy_async(&tile.values[r][lane], deltas + lane, 4);
    if (lane == 0) __pipeline_memcpy_async(&tile.decays[r], state.record_decays + at, 4);
  }
}

// The read-outs of a tile to `out` and, of a decode segment, the deltas to the records (of row 1
// on), by one warp for its columns. Both pointers: row 0, the block's first column.
__device__ void write_rows(const FastResults& results, float* out, float* records, int64_t stride,
                           int count) {
  const int column = lane_index() % kColumns;
  __syncwarp();
  for (int r = part_index(); r < count; r += kParts) {
    const int64_t at = r * stride + warp_index() * kColumns + column;
    out[at] = results.read_out(r, column);
    if (records != nullptr && r > 0) records[at] = results.deltas[r][column];
  }
  __syncwarp();
}

// Grid: value heads times slices of columns, segments. Read-outs go to `out`, not yet normalised.
__global__ __launch_bounds__(kFastThreads) void recurrence_kernel(
    const __grid_constant__ GdnStep step) {
  let_later_start();
  wait_for_earlier();
  __shared__ FastTile tiles[2];
  __shared__ FastResults all_results[kFastWarps];
  constexpr int kSlices = kDim / kBlockColumns;
  const int head = static_cast<int>(blockIdx.x) / kSlices;
  const int first_column = static_cast<int>(blockIdx.x) % kSlices * kBlockColumns;
  const Segment& segment = step.segments.of[blockIdx.y];
  const GdnState& kept = step.states.of[blockIdx.y];
  const bool decode = step.role == Role::kDecode;
  const int rows = segment.row_count;
  const int replays = max(segment.pending_rows - 1, 0);
  const int64_t stride = int64_t{step.weights.value_heads} * kDim;
  const int64_t to_column = head * kDim + first_column;
  FastResults& results = all_results[warp_index()];

  stage_records(tiles[1], kept, step.weights, replays, head, first_column);
  __pipeline_commit();
  stage_rows(tiles[0], step, segment.first_row, min(rows, kTileRows), head, first_column);
  __pipeline_commit();
  const int column = warp_index() * kColumns + lane_index() % kColumns;  // of the block's
  float* memory = kept.recurrent + head * kDim * kDim + first_column + column;
  Part state;
  load_state(state, memory);
  __pipeline_wait_prior(1);
  __syncthreads();
  replay_rows(state, tiles[1], replays);
  __syncthreads();  // tile 1 is free, and the block's columns of the deltas are read
  for (int base = 0; base < rows; base += kTileRows) {
    const FastTile& tile = tiles[base / kTileRows % 2];
    const int count = min(rows - base, kTileRows);
    const int64_t row = segment.first_row + base;
    stage_rows(tiles[(base / kTileRows + 1) % 2], step, row + kTileRows,
               min(rows - base - kTileRows, kTileRows), head, first_column);
    __pipeline_commit();
    __pipeline_wait_prior(1);
    __syncthreads();
    const int first = decode && base == 0 ? 1 : 0;
    if (first == 1) {
      run_rows(state, results, tile, 0, 1);
      store_state(memory, state);  // and goes on with a copy: later rows may be rolled back
    }
    run_rows(state, results, tile, first, count);
    write_rows(results, step.out + row * stride + to_column,
               decode ? kept.record_deltas + to_column : nullptr, stride, count);
    __syncthreads();  // before the next tile but one goes here
  }
  if (!decode) store_state(memory, state);
}

// The recurrence of other shapes: the state stays in memory, a thread has a column of it.
__device__ float column_product(const float* column, const float* x, const GdnWeights& w) {
  float sum = 0;
  for (int k = 0; k < w.key_dim; ++k) sum = fmaf(column[k * w.value_dim], x[k], sum);
  return sum;
}
__device__ void advance_column(float* to, const float* from, float decay, const float* key,
                               float delta, const GdnWeights& w) {
  for (int k = 0; k < w.key_dim; ++k) {
    to[k * w.value_dim] = advanced(from[k * w.value_dim], decay, key[k], delta);
  }
}

__global__ __launch_bounds__(kThreads) void any_recurrence_kernel(
    const __grid_constant__ GdnStep step) {
  let_later_start();
  wait_for_earlier();
  const GdnWeights& w = step.weights;
  const int head = static_cast<int>(blockIdx.x);
  const int key_head = head / (w.value_heads / w.key_heads);
  const int v = static_cast<int>(threadIdx.x);
  const Segment& segment = step.segments.of[blockIdx.y];
  const GdnState& state = step.states.of[blockIdx.y];
  if (v >= w.value_dim) return;
  const int64_t state_size = int64_t{w.value_heads} * w.key_dim * w.value_dim;
  const int64_t in_state = int64_t{head} * w.key_dim * w.value_dim + v;
  float* kept = state.recurrent + in_state;
  float* copy = step.copies + blockIdx.y * state_size + in_state;
  for (int row = 1; row < segment.pending_rows; ++row) {
    const int at = row * w.value_heads + head;
    advance_column(kept, kept, state.record_decays[at],
                   state.record_keys + (row * w.key_heads + key_head) * w.key_dim,
                   state.record_deltas[at * w.value_dim + v], w);
  }
  for (int i = 0; i < segment.row_count; ++i) {
    const int64_t row = segment.first_row + i;
    const bool ahead = step.role == Role::kDecode && i > 0;  // may be rolled back
    const float* from = ahead && i > 1 ? copy : kept;
    float* to = ahead ? copy : kept;
    const int64_t at = row * w.value_heads + head;
    const float* mixed = step.mixed + row * step.channels;
    const float* query = mixed + key_head * w.key_dim;
    const float* key = query + w.key_heads * w.key_dim;
    const float* values = mixed + 2 * w.key_heads * w.key_dim + head * w.value_dim;
    const float delta =
        delta_of(values[v], step.betas[at], step.decays[at], column_product(from, key, w));
    advance_column(to, from, step.decays[at], key, delta, w);
    step.out[at * w.value_dim + v] = column_product(to, query, w);
    if (ahead) state.record_deltas[(i * w.value_heads + head) * w.value_dim + v] = delta;
  }
}

// Norm and gate of one row and head, in place, by a warp.
__device__ void finish_head(const GdnStep& step, int64_t index) {
  const GdnWeights& w = step.weights;
  float* y = step.out + index * w.value_dim;
  const float* z = step.z + index * w.value_dim;
  const float scale = warp_rms_scale(y, w.value_dim, w.eps);
  for (int v = lane_index(); v < w.value_dim; v += kWarp) {
    y[v] = finished(y[v], scale, w.norm_gain[v], gate_of(z[v], w.output_gate));
  }
}

// What a segment leaves of channel `c`, and those records that several blocks of the recurrence
// read: where c is a key's channel the keys, and the decays of value head c.
__device__ void keep_channel(const GdnStep& step, int s, int c) {
  const Segment& segment = step.segments.of[s];
  const GdnState& state = step.states.of[s];
  const GdnWeights& w = step.weights;
  const int64_t channels = step.channels;
  keep_history(state.conv_history + c, step.qkv + segment.first_row * channels + c, channels,
               w.taps - 1, step.role, segment);
  if (step.role != Role::kDecode) return;
  const int key_width = w.key_heads * w.key_dim;
  const bool is_key = c / key_width == 1;
  const int heads = w.value_heads;
  for (int i = 1; i < segment.row_count; ++i) {
    const int64_t row = segment.first_row + i;
    if (is_key) state.record_keys[i * key_width + c % key_width] = step.mixed[row * channels + c];
    if (c < heads) state.record_decays[i * heads + c] = step.decays[row * heads + c];
  }
}

// The first `norm_blocks` blocks finish outputs, a warp a row and head; the others keep what
// segments leave, a thread a channel.
__global__ __launch_bounds__(kThreads) void finish_kernel(const __grid_constant__ GdnStep step,
                                                          int norm_blocks) {
  let_later_start();
  wait_for_earlier();
  const int block = static_cast<int>(blockIdx.x) - norm_blocks;
  if (block < 0) {
    const int64_t index = int64_t{blockIdx.x} * kWarps + warp_index();
    if (index < int64_t{step.rows} * step.weights.value_heads) finish_head(step, index);
    return;
  }
  const int of_segment = (step.channels + kThreads - 1) / kThreads;
  const int c = block % of_segment * kThreads + static_cast<int>(threadIdx.x);
  if (c < step.channels) keep_channel(step, block / of_segment, c);
}

constexpr int64_t kAlignment = 4;  // floats: rows of the fast shape are read four at a time

void launch_recurrence(cudaStream_t stream, const GdnStep& step) {
  dim3 grid(static_cast<unsigned>(step.weights.value_heads),
            static_cast<unsigned>(step.segments.count));
  if (has_fast_shape(step.weights)) {
    grid.x *= kDim / kBlockColumns;
    launch_after(stream, recurrence_kernel, grid, kFastThreads, step);
  } else {
    launch_after(stream, any_recurrence_kernel, grid, kThreads, step);
  }
}

void launch_finish(cudaStream_t stream, const GdnStep& step) {
  const int64_t norms = div_ceil<int64_t>(int64_t{step.rows} * step.weights.value_heads, kWarps);
  const int64_t blocks = norms + step.segments.count * div_ceil<int64_t>(step.channels, kThreads);
  launch_after(stream, finish_kernel, static_cast<unsigned>(blocks), kThreads, step,
               static_cast<int>(norms));
}

}  // namespace

int64_t gdn_scratch_floats(int rows, const GdnWeights& weights) {
  const int64_t per_row = weights.channels() + 2 * int64_t{weights.value_heads};
  const int64_t state = int64_t{weights.value_heads} * weights.key_dim * weights.value_dim;
  const int64_t copies = has_fast_shape(weights) ? 0 : std::min(rows, kMostSegments);
  return rows * per_row + copies * state + kAlignment;
}

void launch_gdn_step(cudaStream_t stream, float* out, const float* qkv, const float* z,
                     const float* b, const float* a, Role role, int rows, const Segments& segments,
                     const GdnStates& states, const GdnWeights& weights, float* scratch) {
  if (rows == 0) return;
  const auto beyond = reinterpret_cast<uintptr_t>(scratch) / sizeof(float) % kAlignment;
  GdnStep step = {weights, segments, states, weights.channels(), role, rows, out, qkv, z, b, a};
  if (launch_gdn_decode(stream, step)) return;
  step.mixed = scratch + (kAlignment - static_cast<int64_t>(beyond)) % kAlignment;
  step.decays = step.mixed + int64_t{rows} * step.channels;
  step.betas = step.decays + int64_t{rows} * weights.value_heads;
  step.copies = step.betas + int64_t{rows} * weights.value_heads;

  const int64_t units = 2 * weights.key_heads + weights.value_heads;
  const auto blocks = static_cast<unsigned>(div_ceil<int64_t>(rows, kWarps) * units);
  if (weights.taps == 4 && has_fast_shape(weights)) {
    launch_after(stream, convolve_kernel<4, kDim / kWarp>, blocks, kThreads, step);
  } else {
    launch_after(stream, convolve_kernel<0, kMostDim / kWarp>, blocks, kThreads, step);
  }
  launch_recurrence(stream, step);
  launch_finish(stream, step);
}

void launch_settle_gdn(cudaStream_t stream, const GdnState& state, int pending_rows,
                       const GdnWeights& weights) {
  if (pending_rows == 0) return;
  // A prompt segment without rows: the same kernels do only what comes before its first row.
  GdnStep step;
  step.weights = weights;
  step.channels = weights.channels();
  step.segments.count = 1;
  step.segments.of[0].pending_rows = pending_rows;
  step.states.of[0] = state;
  if (pending_rows > 1) launch_recurrence(stream, step);
  launch_finish(stream, step);
}

}  // namespace flashlane::kernels::cuda
