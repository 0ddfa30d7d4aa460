// A decode step of Gated DeltaNet in one launch, where heads are of 128 and the device has
// clusters. All blocks of a key head are one cluster: whoever reads a history or a record that
// another block rewrites is in it with that block, which waits until the cluster has read. The
// arithmetic is recurrent.cuh's, so the bits are those of the three launches that prompts take.
#include <cuda_pipeline.h>

#include <algorithm>

#include "base/int_math.h"
#include "kernels/cuda/recurrent.cuh"

namespace flashlane::kernels::cuda {
namespace {

// A block has a slice of a value head's columns for all rows of a segment.
constexpr int kSlices = 2;
constexpr int kSliceColumns = kDim / kSlices;
constexpr int kWarps = kSliceColumns / kColumns;
constexpr int kThreads = kWarps * kWarp;
constexpr int kMostCluster = 8;  // blocks: what every device with clusters takes
constexpr int kTaps = 4;
constexpr int kBefore = kTaps - 1;
constexpr int kFewRows = 4;  // less shared memory finds room beside the kernel before

template <int kRows>
struct alignas(16) Room {
  // Channels are the query's, the key's, the slice's values.
  static constexpr int kChannels = 2 * kDim + kSliceColumns;
  // Inputs before the convolution: of the rows before row 0, then of the rows. These are the
  // history's first columns after the step.
  float window[kBefore + kRows][kChannels];
  float taps[kChannels][kTaps];
  float a_log, dt_bias;
  float a[kRows], b[kRows];
  PendingTile<kRows, kSliceColumns> pending;
  Tile<kRows, kSliceColumns> tile;
  Results<kRows> results[kWarps];
  float read_outs[kRows][kDim];  // of the whole head: both slices' blocks write here
  uint64_t complete;             // the barrier (mbarrier) that counts their bytes
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
template <int kRows>
__global__ void decode_kernel(const __grid_constant__ GdnStep /*step*/) {}  // has no clusters
#else

constexpr int kOfLane = kDim / kWarp;      // of a head's channels, where a warp convolves it
constexpr int kWeighingWarp = kWarps - 1;  // a lane a row

// What a block works on.
struct Place {
  int key_head;
  int head;
  int slice;
  bool first_of_key_head;  // among the value heads
};

// The first channel of the block's queries, keys or values, and where it is in a row of the window.
__device__ __forceinline__ int first_channel(const GdnWeights& w, const Place& place,
                                             HeadKind kind) {
  const int key_width = w.key_heads * kDim;
  return kind == HeadKind::kValue ? 2 * key_width + place.head * kDim + place.slice * kSliceColumns
                                  : static_cast<int>(kind) * key_width + place.key_head * kDim;
}
__device__ __forceinline__ int first_in_window(HeadKind kind) {
  return static_cast<int>(kind) * kDim;
}

__device__ __forceinline__ Place own_place() {
  const int block = static_cast<int>(blockIdx.x);
  return {static_cast<int>(__clusterIdx().x), block / kSlices, block % kSlices,
          __clusterRelativeBlockRank() < kSlices};
}

__device__ __forceinline__ void copy_four(float* to, const float* from) {
  *reinterpret_cast<float4*>(to) = *reinterpret_cast<const float4*>(from);
}

// Row j of Room::window in memory, its channel 0.
__device__ __forceinline__ const float* window_row(const GdnStep& step, int j) {
  const Segment& segment = step.segments.of[blockIdx.y];
  const float* history = step.states.of[blockIdx.y].conv_history;
  const float* from = j < kBefore ? history : step.qkv;
  const int row = j < kBefore ? segment.pending_rows + j : segment.first_row + j - kBefore;
  return from + int64_t{row} * step.channels;
}

// What only clusters have (sm_90 on).
__device__ inline uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
// The same place in the shared memory of another block of the cluster.
__device__ inline uint32_t address_in(uint32_t block, const void* shared) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(address)
      : "r"(shared_address(shared)), "r"(block));
  return address;
}
// A barrier that is complete once so many bytes were sent to it. For one thread; the cluster's
// other blocks may send after they have waited for this thread.
__device__ inline void expect_bytes(uint64_t* barrier, uint32_t bytes) {
  const uint32_t at = shared_address(barrier);
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
               : "memory");
}
// Both addresses are in one block, from address_in.
__device__ inline void send(uint32_t to, float value, uint32_t barrier) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
      "r"(__float_as_uint(value)), "r"(barrier)
      : "memory");
}
__device__ inline void wait_for_bytes(uint64_t* barrier) {
  const uint32_t at = shared_address(barrier);
  uint32_t complete = 0;
  while (complete == 0) {
    asm volatile(
        "{\n"
        ".reg .pred complete;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 complete, [%1], 0;\n"
        "selp.u32 %0, 1, 0, complete;\n"
        "}"
        : "=r"(complete)
        : "r"(at)
        : "memory");
  }
}
__device__ inline void prefetch(const float* memory) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(memory));
}

// Before the wait: brings what the block will read to the cache that all blocks share. It reads
// nothing, so what earlier kernels still write there is seen after the wait.
__device__ __forceinline__ void prefetch_state(const GdnStep& step, const Place& place) {
  constexpr int kSector = 32 / sizeof(float);
  constexpr int kSectors = kSliceColumns / kSector;  // of a key
  const int thread = static_cast<int>(threadIdx.x);
  const float* state = step.states.of[blockIdx.y].recurrent + place.head * kDim * kDim +
                       place.slice * kSliceColumns + thread / kSectors * kDim +
                       thread % kSectors * kSector;
#pragma unroll
  for (int k = 0; k < kDim; k += kThreads / kSectors) prefetch(state + k * kDim);
  if (warp_index() >= kBefore) return;
  const float* history = window_row(step, warp_index());
  const int c = lane_index() % (kDim / kSector) * kSector;
  const HeadKind kind = lane_index() < kDim / kSector ? HeadKind::kQuery : HeadKind::kKey;
  prefetch(history + first_channel(step.weights, place, kind) + c);
  if (c < kSliceColumns) {
    prefetch(history + first_channel(step.weights, place, HeadKind::kValue) + c);
  }
}

// What is needed before the state goes to shared memory by asynchronous copies: the first use of a
// load to a register waits for all such loads, and so for the state. Weights: before the wait.
template <int kRows>
__device__ void stage_weights(Room<kRows>& room, const GdnWeights& w, const Place& place) {
  const int warp = warp_index(), lane = lane_index();
#pragma unroll 1
  for (int i = warp; i < Room<kRows>::kChannels / kWarp; i += kWarps) {
    const auto kind = static_cast<HeadKind>(i / kOfLane);
    const int c = first_channel(w, place, kind) + i % kOfLane * kWarp + lane;
    __pipeline_memcpy_async(room.taps[i * kWarp + lane], w.conv + c * kTaps, 16);
  }
  if (warp == kWeighingWarp && lane == 0) {
    __pipeline_memcpy_async(&room.a_log, w.a_log + place.head, 4);
    __pipeline_memcpy_async(&room.dt_bias, w.dt_bias + place.head, 4);
  }
}

// Here and in stage_pending all is read that several blocks read and one rewrites.
template <int kRows>
__device__ void stage_inputs(Room<kRows>& room, const GdnStep& step, const Place& place) {
  const GdnWeights& w = step.weights;
  const Segment& segment = step.segments.of[blockIdx.y];
  const int four = 4 * lane_index();
#pragma unroll 1
  for (int j = warp_index(); j < kBefore + segment.row_count; j += kWarps) {
    const float* row = window_row(step, j) + four;
    float* to = room.window[j] + four;
    __pipeline_memcpy_async(to, row + first_channel(w, place, HeadKind::kQuery), 16);
    __pipeline_memcpy_async(to + kDim, row + first_channel(w, place, HeadKind::kKey), 16);
    if (four < kSliceColumns) {
      __pipeline_memcpy_async(to + 2 * kDim, row + first_channel(w, place, HeadKind::kValue), 16);
    }
  }
  const int r = lane_index();
  if (warp_index() == kWeighingWarp && r < segment.row_count) {
    const int64_t at = int64_t{segment.first_row + r} * w.value_heads + place.head;
    __pipeline_memcpy_async(&room.a[r], step.a + at, 4);
    __pipeline_memcpy_async(&room.b[r], step.b + at, 4);
  }
}

template <int kRows>
__device__ void stage_pending(Room<kRows>& room, const GdnStep& step, const Place& place) {
  const GdnWeights& w = step.weights;
  const GdnState& state = step.states.of[blockIdx.y];
  const int four = 4 * lane_index();
  auto& pending = room.pending;
#pragma unroll 1
  for (int r = warp_index(); r < step.segments.of[blockIdx.y].pending_rows - 1; r += kWarps) {
    const float* keys = state.record_keys + ((r + 1) * w.key_heads + place.key_head) * kDim;
    const int at = (r + 1) * w.value_heads + place.head;
    const float* deltas = state.record_deltas + at * kDim + place.slice * kSliceColumns;
    __pipeline_memcpy_async(&pending.keys[r][four], keys + four, 16);
    if (four < kSliceColumns) {
      __pipeline_memcpy_async(&pending.values[r][four], deltas + four, 16);
    } else if (four == kSliceColumns) {
      __pipeline_memcpy_async(&pending.decays[r], state.record_decays + at, 4);
    }
  }
}

// The warps' shares of the convolution: three have queries, three keys, two values.
struct Share {
  HeadKind kind;
  int count;  // channels
  int first_row;
  int row_step;
};
__device__ __forceinline__ Share own_share() {
  static_assert(kWarps == 8);
  const int warp = warp_index();
  if (warp < 3) return {HeadKind::kQuery, kDim, warp, 3};
  if (warp < 6) return {HeadKind::kKey, kDim, warp - 3, 3};
  return {HeadKind::kValue, kSliceColumns, warp - 6, 2};
}

template <int kRows>
__device__ __forceinline__ void convolve_rows(Room<kRows>& room, int rows) {
  const Share share = own_share();
  float taps[kOfLane][kTaps];
#pragma unroll
  for (int t = 0; t < kOfLane; ++t) {
    const int c = first_in_window(share.kind) + min(lane_index() + t * kWarp, share.count - 1);
    copy_four(taps[t], room.taps[c]);
  }
#pragma unroll 1
  for (int r = share.first_row; r < rows; r += share.row_step) {
    float own[kOfLane];
#pragma unroll
    for (int t = 0; t < kOfLane; ++t) {
      const int c = first_in_window(share.kind) + min(lane_index() + t * kWarp, share.count - 1);
      own[t] = convolved<kTaps>(
          kTaps, [&](int j) { return taps[t][j]; }, [&](int j) { return room.window[r + j][c]; });
    }
    const float factor = activate(own, share.count, share.kind);
    float* to = share.kind == HeadKind::kQuery ? room.tile.queries[r]
                : share.kind == HeadKind::kKey ? room.tile.keys[r]
                                               : room.tile.values[r];
#pragma unroll
    for (int t = 0; t < kOfLane; ++t) {
      const int d = lane_index() + t * kWarp;
      if (d < share.count) to[d] = own[t] * factor;
    }
  }
}

template <int kRows>
__device__ __forceinline__ void weigh_rows(Room<kRows>& room, int rows) {
  const int r = lane_index();
  if (warp_index() != kWeighingWarp || r >= rows) return;
  room.tile.decays[r] = decay_of(room.a[r], room.a_log, room.dt_bias);
  room.tile.betas[r] = sigmoid_f32(room.b[r]);
}

// What the next step reads: the history, and the records that several blocks read. Of a key head
// the first value head's blocks leave the queries' channels and the keys'.
template <int kRows>
__device__ void leave_behind(const Room<kRows>& room, const GdnStep& step, const Place& place) {
  const GdnWeights& w = step.weights;
  const GdnState& state = step.states.of[blockIdx.y];
  const int rows = step.segments.of[blockIdx.y].row_count;
  const int four = 4 * lane_index();
  const HeadKind shared = place.slice == 0 ? HeadKind::kQuery : HeadKind::kKey;
#pragma unroll 1
  for (int j = warp_index(); j < kBefore + rows; j += kWarps) {
    float* to = state.conv_history + int64_t{j} * step.channels + four;
    const float* from = room.window[j] + four;
    if (place.first_of_key_head) {
      copy_four(to + first_channel(w, place, shared), from + first_in_window(shared));
    }
    if (four < kSliceColumns) {
      copy_four(to + first_channel(w, place, HeadKind::kValue),
                from + first_in_window(HeadKind::kValue));
    }
  }
#pragma unroll 1
  for (int r = warp_index() + 1; r < rows; r += kWarps) {
    if (place.slice == 0) {
      if (lane_index() == 0) {
        state.record_decays[r * w.value_heads + place.head] = room.tile.decays[r];
      }
    } else if (place.first_of_key_head) {
      copy_four(state.record_keys + (r * w.key_heads + place.key_head) * kDim + four,
                room.tile.keys[r] + four);
    }
  }
}

// Read-outs of a warp's columns to both blocks of the head, deltas of row 1 on to the records.
template <int kRows>
__device__ __forceinline__ void send_rows(Room<kRows>& room, const GdnStep& step,
                                          const Place& place) {
  const int rows = step.segments.of[blockIdx.y].row_count;
  const Results<kRows>& results = room.results[warp_index()];
  const int column = lane_index() % kColumns;
  const int of_head = place.slice * kSliceColumns + warp_index() * kColumns + column;
  float* records = step.states.of[blockIdx.y].record_deltas + place.head * kDim + of_head;
  const int stride = step.weights.value_heads * kDim;
  const uint32_t own = __clusterRelativeBlockRank();
  __syncwarp();
#pragma unroll 1
  for (int r = part_index(); r < rows; r += kParts) {
    const float read_out = results.read_out(r, column);
#pragma unroll
    for (uint32_t other = 0; other < kSlices; ++other) {
      const uint32_t block = own ^ other;  // the slices of a head are neighbours
      send(address_in(block, &room.read_outs[r][of_head]), read_out,
           address_in(block, &room.complete));
    }
    if (r > 0) records[r * stride] = results.deltas[r][column];
  }
}

// Norm and gate, a warp a row; a lane has columns l, l + 32, … of the slice.
constexpr int kFinished = kSliceColumns / kWarp;
template <int kRows>
struct Gates {
  static constexpr int kOfWarp = div_ceil(kRows, kWarps);
  float of[kOfWarp][kFinished];
};

// The lane's first column of row r in `z` and `out`.
__device__ __forceinline__ int64_t finished_at(const GdnStep& step, const Place& place, int r) {
  const int row = step.segments.of[blockIdx.y].first_row + r;
  return (int64_t{row} * step.weights.value_heads + place.head) * kDim +
         place.slice * kSliceColumns + lane_index();
}

template <int kRows>
__device__ __forceinline__ void load_gates(Gates<kRows>& gates, const GdnStep& step,
                                           const Place& place) {
  const int rows = step.segments.of[blockIdx.y].row_count;
#pragma unroll
  for (int i = 0; i < Gates<kRows>::kOfWarp; ++i) {
    const int r = warp_index() + i * kWarps;
#pragma unroll
    for (int t = 0; t < kFinished; ++t) {
      gates.of[i][t] = r < rows ? step.z[finished_at(step, place, r) + t * kWarp] : 0;
    }
  }
}

__device__ __forceinline__ void load_gains(float (&gains)[kFinished], const GdnWeights& w,
                                           const Place& place) {
  const float* own = w.norm_gain + place.slice * kSliceColumns + lane_index();
#pragma unroll
  for (int t = 0; t < kFinished; ++t) gains[t] = own[t * kWarp];
}

// A gate's own arithmetic, done while the read-outs are on their way.
template <int kRows>
__device__ __forceinline__ void open_gates(Gates<kRows>& gates, Gate kind) {
#pragma unroll
  for (auto& of_row : gates.of) {
#pragma unroll
    for (float& z : of_row) z = gate_of(z, kind);
  }
}

template <int kRows>
__device__ __forceinline__ void finish_rows(Room<kRows>& room, const Gates<kRows>& gates,
                                            const float (&gains)[kFinished], const GdnStep& step,
                                            const Place& place) {
  const GdnWeights& w = step.weights;
  const int rows = step.segments.of[blockIdx.y].row_count;
#pragma unroll
  for (int i = 0; i < Gates<kRows>::kOfWarp; ++i) {
    const int r = warp_index() + i * kWarps;
    if (r >= rows) return;
    float* out = step.out + finished_at(step, place, r);
    const float scale = warp_rms_scale(room.read_outs[r], kDim, w.eps);
    const float* own = room.read_outs[r] + place.slice * kSliceColumns + lane_index();
#pragma unroll
    for (int t = 0; t < kFinished; ++t) {
      out[t * kWarp] = finished(own[t * kWarp], scale, gains[t], gates.of[i][t]);
    }
  }
}

// All rows of a segment, once they lie in the tile. `memory`: the lane's column of the state.
template <int kRows>
__device__ __forceinline__ void recur(Room<kRows>& room, Part& state, float* memory,
                                      const GdnStep& step, const Place& place) {
  const Segment& segment = step.segments.of[blockIdx.y];
  const int rows = segment.row_count;
  Results<kRows>& results = room.results[warp_index()];
  replay_rows(state, room.pending, segment.pending_rows - 1);
  run_rows(state, results, room.tile, 0, 1);
  if (rows > 1) {
    store_state(memory, state);  // later rows may be rolled back
    run_rows(state, results, room.tile, 1, rows);
  }
  // The cluster has read, and the other slice's block is there.
  __cluster_barrier_wait();
  send_rows(room, step, place);
  // Stores begin only now, where a lone row's read-outs are on their way.
  if (rows == 1) store_state(memory, state);
  leave_behind(room, step, place);
}

// Grid: slices of value heads, segments; a key head is a cluster.
template <int kRows>
__global__ __launch_bounds__(kThreads, 2) void decode_kernel(const __grid_constant__ GdnStep step) {
  let_later_start();
  extern __shared__ float4 shared[];
  auto& room = *reinterpret_cast<Room<kRows>*>(shared);
  const int rows = step.segments.of[blockIdx.y].row_count;
  const Place place = own_place();
  const int column =
      place.slice * kSliceColumns + warp_index() * kColumns + lane_index() % kColumns;
  float* memory = step.states.of[blockIdx.y].recurrent + place.head * kDim * kDim + column;
  float gains[kFinished];
  Part state;
  Gates<kRows> gates;
  prefetch_state(step, place);
  stage_weights(room, step.weights, place);
  load_gains(gains, step.weights, place);
  if (threadIdx.x == 0) expect_bytes(&room.complete, rows * kDim * sizeof(float));
  wait_for_earlier();

  stage_inputs(room, step, place);
  stage_pending(room, step, place);
  __pipeline_commit();
  load_state(state, memory);
  load_gates(gates, step, place);
  __syncwarp();  // costs nothing, and keeps the compiler from putting loads behind the wait
  __pipeline_wait_prior(0);
  __syncthreads();
  // What several blocks read lies in shared memory now, so no order of memory is left to keep; one
  // that was kept would have arriving wait for the state's loads.
  __cluster_barrier_arrive_relaxed();
  weigh_rows(room, rows);
  convolve_rows(room, rows);
  __syncthreads();
  recur(room, state, memory, step, place);
  open_gates(gates, step.weights.output_gate);
  if (warp_index() >= rows) return;
  wait_for_bytes(&room.complete);
  finish_rows(room, gates, gains, step, place);
}
#endif

bool is_aligned(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % sizeof(float4) == 0;
}
// Copies are of four floats, which nobody promises of states.
bool is_aligned(const GdnStep& step) {
  bool aligned = is_aligned(step.qkv) && is_aligned(step.weights.conv);
  for (int s = 0; s < step.segments.count; ++s) {
    const GdnState& state = step.states.of[s];
    aligned = aligned && is_aligned(state.conv_history) && is_aligned(state.record_keys) &&
              is_aligned(state.record_deltas);
  }
  return aligned;
}

int cluster_of(const GdnWeights& w) {
  return w.value_heads / w.key_heads * kSlices;
}

template <int kRows>
void launch_rows(cudaStream_t stream, const GdnStep& step) {
  constexpr size_t kBytes = sizeof(Room<kRows>);
  static const cudaError_t allowed = cudaFuncSetAttribute(
      decode_kernel<kRows>, cudaFuncAttributeMaxDynamicSharedMemorySize, int{kBytes});
  (void)allowed;  // else that error is found where launches are
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(cluster_of(step.weights)), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(step.weights.value_heads * kSlices),
                        static_cast<unsigned>(step.segments.count));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  (void)cudaLaunchKernelEx(&config, decode_kernel<kRows>, step);
}

}  // namespace

bool launch_gdn_decode(cudaStream_t stream, const GdnStep& step) {
  const GdnWeights& w = step.weights;
  const bool has_shape = has_fast_shape(w) && w.taps == kTaps && w.value_heads % w.key_heads == 0 &&
                         cluster_of(w) <= kMostCluster;
  // Whoever begins kernels early has clusters too.
  if (step.role != Role::kDecode || !has_shape || !launches_early() || !is_aligned(step)) {
    return false;
  }
  int most = 0;
  for (int s = 0; s < step.segments.count; ++s) {
    most = std::max({most, step.segments.of[s].row_count, step.segments.of[s].pending_rows});
  }
  if (most <= kFewRows) {
    launch_rows<kFewRows>(stream, step);
  } else {
    launch_rows<kMaxWindow>(stream, step);
  }
  return true;
}

}  // namespace flashlane::kernels::cuda
