// The n-gram layer after its projections: a gated value for every stream, and a dilated convolution
// of its norm. A row depends on its own inputs and on the normed rows before it alone, from this
// forward or from the history, which hold the same bits; the history is rewritten by a kernel
// behind the one that reads it.
#include "base/int_math.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/history.cuh"

namespace flashlane::kernels::cuda {
namespace {

constexpr int kThreads = 256;  // the order of a row's sums depends on it

// What the kernels of a step share. Rows of `wide` = streams * hidden elements.
struct NgramStep {
  PleWeights weights;
  Segments segments;
  PleStates states;
  int64_t wide = 0;
  Role role = Role::kPrompt;
  float* streams = nullptr;
  float* added = nullptr;  // may be null
  const float* key = nullptr;
  const float* value = nullptr;
  float* normed = nullptr;  // [rows, wide]
  float* gates = nullptr;   // [rows, streams]; times the value: the gated rows
};

__device__ float rms_scale_of(float sum_of_squares, const PleWeights& w) {
  return 1.0F / sqrtf(sum_of_squares / static_cast<float>(w.hidden) + w.eps);
}

// A block a row and stream.
__global__ __launch_bounds__(kThreads) void gate_kernel(const __grid_constant__ NgramStep step) {
  let_later_start();
  wait_for_earlier();
  __shared__ float partial[kWarp];
  const PleWeights& w = step.weights;
  const int64_t row = blockIdx.x / static_cast<unsigned>(w.streams);
  const int at = static_cast<int>(blockIdx.x % static_cast<unsigned>(w.streams)) * w.hidden;
  const float* key = step.key + row * step.wide + at;
  const float* query = step.streams + row * step.wide + at;
  const float* value = step.value + row * w.hidden;
  const int first = static_cast<int>(threadIdx.x);

  float of_key = 0;
  float of_query = 0;
  for (int d = first; d < w.hidden; d += kThreads) {
    of_key = fmaf(key[d], key[d], of_key);
    of_query = fmaf(query[d], query[d], of_query);
  }
  const float key_scale = rms_scale_of(block_sum(of_key, partial), w);
  const float query_scale = rms_scale_of(block_sum(of_query, partial), w);
  float product = 0;
  for (int d = first; d < w.hidden; d += kThreads) {
    product = fmaf(key[d] * key_scale * w.key_gain[at + d],
                   query[d] * query_scale * w.query_gain[at + d], product);
  }
  const float score = block_sum(product, partial) / sqrtf(static_cast<float>(w.hidden));
  const float magnitude = sqrtf(fmaxf(fabsf(score), 1e-6F));
  const float gate = sigmoid_f32(score > 0 ? magnitude : (score < 0 ? -magnitude : 0.0F));

  float of_gated = 0;
  for (int d = first; d < w.hidden; d += kThreads) {
    const float gated = gate * value[d];
    of_gated = fmaf(gated, gated, of_gated);
  }
  const float scale = rms_scale_of(block_sum(of_gated, partial), w);
  float* normed = step.normed + row * step.wide + at;
  for (int d = first; d < w.hidden; d += kThreads) {
    normed[d] = gate * value[d] * scale * w.conv_gain[at + d];
  }
  if (first == 0) step.gates[blockIdx.x] = gate;
}

// A thread a row and element: tap j looks back (taps-1-j) * dilation rows, into the history before
// the segment's first row, of which the first pending_rows columns are past.
__global__ __launch_bounds__(kThreads) void inject_kernel(const __grid_constant__ NgramStep step,
                                                          int blocks_of_row) {
  let_later_start();
  wait_for_earlier();
  const PleWeights& w = step.weights;
  const auto row = static_cast<int>(blockIdx.x) / blocks_of_row;
  const int d =
      static_cast<int>(blockIdx.x) % blocks_of_row * kThreads + static_cast<int>(threadIdx.x);
  if (d >= step.wide) return;
  const int s = segment_of(step.segments, row);
  const Segment& segment = step.segments.of[s];
  const int first_tap = (w.taps - 1) * w.dilation;  // rows that tap 0 looks back
  const float* inputs = step.normed + segment.first_row * step.wide;
  const float* before =  // where the history would have the segment's first row
      step.states.of[s].conv_history + (first_tap + segment.pending_rows) * step.wide;
  float sum = 0;
#pragma unroll 4
  for (int j = 0; j < w.taps; ++j) {
    const int source = row - segment.first_row - first_tap + j * w.dilation;
    const float* rows = source < 0 ? before : inputs;
    sum = fmaf(w.conv[int64_t{d} * w.taps + j], rows[source * step.wide + d], sum);
  }
  const float gate = step.gates[int64_t{row} * w.streams + d / w.hidden];
  const float gated = gate * step.value[int64_t{row} * w.hidden + d % w.hidden];
  const float addend = gated + silu_f32(sum);
  const int64_t at = row * step.wide + d;
  step.streams[at] += addend;
  if (step.added != nullptr) step.added[at] = addend;
}

// A thread an element of a segment's history: settles it and puts the segment's normed rows behind
// it, all of a decode segment's, as many as the history keeps of a prompt segment's. A prompt
// segment without rows settles alone.
__global__ __launch_bounds__(kThreads) void keep_kernel(const __grid_constant__ NgramStep step) {
  let_later_start();
  wait_for_earlier();
  const int64_t d = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (d >= step.wide) return;
  const Segment& segment = step.segments.of[blockIdx.y];
  const int tail = (step.weights.taps - 1) * step.weights.dilation;
  float* history = step.states.of[blockIdx.y].conv_history + d;
  const float* inputs = step.normed + segment.first_row * step.wide + d;
  keep_history(history, inputs, step.wide, tail, step.role, segment);
}

void launch_keep(cudaStream_t stream, const NgramStep& step) {
  const dim3 grid(static_cast<unsigned>(div_ceil<int64_t>(step.wide, kThreads)),
                  static_cast<unsigned>(step.segments.count));
  launch_after(stream, keep_kernel, grid, kThreads, step);
}

}  // namespace

int64_t ple_scratch_floats(int rows, const PleWeights& weights) {
  return int64_t{rows} * weights.streams * (int64_t{weights.hidden} + 1);
}

void launch_ple_inject(cudaStream_t stream, float* streams, float* added, const float* key,
                       const float* value, Role role, int rows, const Segments& segments,
                       const PleStates& states, const PleWeights& weights, float* scratch) {
  if (rows == 0) return;
  NgramStep step;
  step.weights = weights;
  step.segments = segments;
  step.states = states;
  step.wide = int64_t{weights.streams} * weights.hidden;
  step.role = role;
  step.streams = streams;
  step.added = added;
  step.key = key;
  step.value = value;
  step.normed = scratch;
  step.gates = scratch + rows * step.wide;

  const auto gates = static_cast<unsigned>(int64_t{rows} * weights.streams);
  launch_after(stream, gate_kernel, gates, kThreads, step);
  const int64_t blocks_of_row = div_ceil<int64_t>(step.wide, kThreads);
  launch_after(stream, inject_kernel, static_cast<unsigned>(rows * blocks_of_row), kThreads, step,
               static_cast<int>(blocks_of_row));
  launch_keep(stream, step);
}

void launch_settle_ple(cudaStream_t stream, const PleState& state, int pending_rows,
                       const PleWeights& weights) {
  if (pending_rows == 0) return;
  // A prompt segment without rows: only what comes before its first row is done.
  NgramStep step;
  step.weights = weights;
  step.segments.count = 1;
  step.segments.of[0].pending_rows = pending_rows;
  step.states.of[0] = state;
  step.wide = int64_t{weights.streams} * weights.hidden;
  launch_keep(stream, step);
}

}  // namespace flashlane::kernels::cuda
