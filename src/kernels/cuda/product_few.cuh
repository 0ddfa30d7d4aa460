// Products of up to 16 rows of x: a block of warps has some tiles of weight rows, a warp one slice
// of one tile, or all slices. It copies their steps into a ring in shared memory, as many as that
// holds before it looks at x. See product_tile.cuh for the order of sums.
#pragma once

#include "kernels/cuda/product_ring.cuh"

namespace flashlane::kernels::cuda {

// Warps of a block: more where there are few blocks, so that each warp has a shorter way; fewer
// where there are many, which the device then shares out more evenly.
inline constexpr int kMostWarps = kNormWarps;
inline constexpr int kFewerWarps = 8;
inline constexpr int kTileShift = 4;
static_assert(1 << kTileShift == kTileRows);
// Floats between the columns of a warp's sums, so that lanes write to banks of their own.
inline constexpr int kSumStride = kTileRows + 4;
// Lanes that share a value of kMix, each with a stream.
inline constexpr int kMixShift = 2;
inline constexpr int kMixLanes = 1 << kMixShift;
inline constexpr int kSumBytes = kSumStride * static_cast<int>(sizeof(float));  // of a row of x

// What a block would else compute of an entry's shape again and again. Numbers that a block divides
// by are powers of two here, but for the pairs.
struct EntryPlan {
  int first_block = 0;
  int tiles = 0;       // of the weight; of kMix: of one stream
  int steps = 0;       // of a chunk
  int tile_steps = 0;  // of all chunks
  int cols = 0;        // of a chunk
  int chunks_shift = 0;
  int slices = 1;
  int warps_shift = 0;     // of a tile's warps: one a slice, or one for all
  int together_shift = 0;  // of the tiles of a value
  int values_shift = 0;    // of the values of a block
  int step_scale_bytes = 0;
  size_t matrix_values_bytes = 0;
  size_t matrix_scales_bytes = 0;
  int64_t width = 0;   // of out
  XUnits packed = {};  // x, where it is not made by the blocks
};

// Entries of one format, and which blocks are whose.
struct FewLaunch {
  FewProducts products;
  EntryPlan plans[kMostFewEntries] = {};
  int blocks = 0;
  int warps = kMostWarps;
  int pairs = 0;  // of listed entries
  // n / pairs is __umulhi(n, this) for n up to kMostListedBlocks, and pairs of two or more.
  uint32_t pairs_inverse = 0;
  int stage_bytes = 0;  // of a step of a tile, of the entry with the most
  int ring_bytes = 0;   // of a warp
  int made_bytes = 0;   // what a block makes of x
  int shared_bytes() const { return warps * ring_bytes + made_bytes; }
};
inline constexpr int kMostListedBlocks = 1 << 16;

// Codes, then scales.
inline size_t stage_bytes(const DeviceMatrix& weight) {
  return weight.step_bytes() + weight.step_scale_bytes();
}

// What a block works on.
struct FewWork {
  int entry = 0;
  int local = 0;   // block of the entry (and of its expert, or chunk)
  int matrix = 0;  // of the bank
  int chunk = 0;
  int row_count = 0;
  int rows_shift = 0;  // of the rows padded to a power of two
};

struct FewShared {
  alignas(16) float squares[kNormedRows][kNormWarps];
  int pairs[kFewRows];  // of a listed entry: those that chose the expert, ascending
  int pair_count;
};

// By one warp: the pairs that chose expert ids[pair], at most one a row; none where an earlier
// pair's block has them.
__device__ inline void find_pairs(int* pairs, int* count, const int32_t* ids, int all, int pair,
                                  int most) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int expert = __ldcg(ids + pair);
  int found = 0;
  for (int first = 0; first < all; first += kWarp) {
    const int p = first + lane;
    const bool same = p < all && __ldcg(ids + p) == expert;
    const unsigned who = __ballot_sync(kAllLanes, same);
    const bool taken = __any_sync(kAllLanes, same && p < pair);
    if (taken) {
      if (lane == 0) *count = 0;
      return;
    }
    const int place = found + __popc(who & ((1U << lane) - 1U));
    if (same && place < most) pairs[place] = p;
    found += __popc(who);
  }
  if (lane == 0) *count = min(found, most);
}

__device__ inline float sum_of_chunks(const float* parts, int chunks, int stride, int i) {
  float sum = 0;
#pragma unroll 4
  for (int c = 0; c < chunks; ++c) sum += parts[c * stride + i];
  return sum;
}

// The low-rank values for the blocks that mix. The first block does the injection's gates.
__device__ inline void make_low(float* to, const HyperStep& hyper, int row_count, int low_rank,
                                bool first) {
  const float share = 1.0F / static_cast<float>(hyper.streams);
  const int count = row_count * low_rank;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += static_cast<int>(blockDim.x)) {
    to[i] = silu_f32(sum_of_chunks(hyper.low, hyper.streams, count, i) * share);
  }
  const int gates = row_count * hyper.streams;
  const int own = static_cast<int>(threadIdx.x);
  if (first && hyper.inject_parts != nullptr && own < gates) {
    const float sum = sum_of_chunks(hyper.inject_parts, hyper.streams, gates, own);
    hyper.inject[own] = 2.0F * sigmoid_f32(sum * share);
  }
  __syncthreads();
}

// Eight of a row's values, in units of x that the block makes for itself.
struct NormedRow {  // of the chunk's stream; kept as `normed` by one block
  const HyperStep& hyper;
  const float (*squares)[kNormWarps];
  int chunk;
  bool keep;
  __device__ __forceinline__ void get(float (&v)[8], int row, int col) const {
    const int64_t at = (int64_t{row} * hyper.streams + chunk) * hyper.hidden + col;
    float factors[8];
    load_eight(v, hyper.from + at);
    load_eight(factors, hyper.gain + int64_t{chunk} * hyper.hidden + col);
    const float scale = rms_scale(squares[row], hyper.hidden, hyper.eps);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = v[i] * scale * factors[i];
    if (!keep) return;
#pragma unroll
    for (int i = 0; i < 8; ++i) hyper.normed[at + i] = v[i];
  }
};
struct ListedRow {  // `pairs` null: row by row
  const float* x;
  int64_t stride;
  const int* pairs;
  int pairs_per_row;
  __device__ __forceinline__ void get(float (&v)[8], int row, int col) const {
    const int64_t from = pairs == nullptr ? row : pairs[row] / pairs_per_row;
    load_eight(v, x + from * stride + col);
  }
};

// Sums of the slices of a block's tiles, and what follows the product. A value has 16 weight rows;
// item i of the block: of kMix, stream i % 4 of weight row i / 4 % 16, else weight row i % 16.
template <int kBits>
struct FewWriter {
  const FewShared& shared;
  const FewLaunch& launch;
  const FewEntry& entry;
  const FewWork& work;
  const EntryPlan& plan;
  const std::byte* sums;  // of the warps: [rows][kSumStride] each

  __device__ __forceinline__ int lanes_shift() const {  // of a weight row
    return entry.epilogue == Epilogue::kMix ? kMixShift : 0;
  }
  __device__ __forceinline__ int count() const {
    return 1 << (plan.values_shift + work.rows_shift + kTileShift + lanes_shift());
  }
  // Whether item i is of a value that there is; its row and column of out.
  __device__ __forceinline__ bool find(int i, int& value, int& n, int64_t& at) const {
    i >>= lanes_shift();
    n = (i >> kTileShift) & ((1 << work.rows_shift) - 1);
    value = i >> (kTileShift + work.rows_shift);
    at = (((int64_t{work.local} << plan.values_shift) + value) << kTileShift) + i % kTileRows;
    return n < work.row_count && at < plan.width;
  }
  __device__ __forceinline__ const float* normed_of(int n, int64_t at, int stream) const {
    const int streams = launch.products.hyper.streams;
    return launch.products.hyper.normed + (int64_t{n} * streams + stream) * plan.width + at;
  }
  // What the first items will read of memory, so that it is near.
  __device__ __forceinline__ void ask() const {
    if (entry.epilogue != Epilogue::kMix) return;
    int value, n;
    int64_t at;
    const int i = static_cast<int>(threadIdx.x);
    const int stream = i % kMixLanes;
    if (i >= count() || !find(i, value, n, at) || stream >= launch.products.hyper.streams) return;
    asm volatile("prefetch.global.L1 [%0];" ::"l"(normed_of(n, at, stream)));
  }
  __device__ __forceinline__ float sum_of(int tile, int n, int r) const {
    float sum = 0;
    const std::byte* own = sums + (tile << plan.warps_shift) * launch.ring_bytes + n * kSumBytes;
#pragma unroll 4
    for (int s = 0; s < 1 << plan.warps_shift; ++s) {
      sum += reinterpret_cast<const float*>(own + s * launch.ring_bytes)[r];
    }
    return unscaled<kBits>(sum);
  }
  // Mean over streams of sigmoid(gate) * normed: a lane a stream, added in ascending order.
  __device__ __forceinline__ void write_mix() const {
    const int streams = launch.products.hyper.streams;
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    static_assert(kTileRows << kMixShift >= kWarp);  // so whole warps have items
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < count(); i += static_cast<int>(blockDim.x)) {
      int value, n;
      int64_t at;
      const bool there = find(i, value, n, at);
      float result = 0;
      for (int first = 0; first < streams; first += kMixLanes) {
        const int c = first + i % kMixLanes;
        float own = 0;
        if (there && c < streams) {
          const int tile = (value << plan.together_shift) + c;
          own =
              sigmoid_f32(sum_of(tile, n, static_cast<int>(at % kTileRows))) * *normed_of(n, at, c);
        }
#pragma unroll
        for (int k = 0; k < kMixLanes; ++k) {
          const float other = __shfl_sync(kAllLanes, own, lane / kMixLanes * kMixLanes + k);
          if (first + k < streams) result += other;
        }
      }
      if (there && i % kMixLanes == 0) {
        entry.out[n * plan.width + at] = result * (1.0F / static_cast<float>(streams));
      }
    }
  }
  __device__ __forceinline__ void write() const {
    if (entry.epilogue == Epilogue::kMix) return write_mix();
    float* out = entry.out + int64_t{work.chunk} * launch.products.row_count * plan.width;
#pragma unroll 1
    for (int i = static_cast<int>(threadIdx.x); i < count(); i += static_cast<int>(blockDim.x)) {
      int value, n;
      int64_t at;
      if (!find(i, value, n, at)) continue;
      const int r = i % kTileRows;
      const int tile = value << plan.together_shift;
      float result = sum_of(tile, n, r);
      if (entry.epilogue == Epilogue::kGated) {
        result = silu_f32(result) * sum_of(tile + 1, n, r);
      }
      out[(entry.listed ? shared.pairs[n] : n) * plan.width + at] = result;
    }
  }
};

// Finds the block's entry and, within it, its expert's rows or its chunk; no rows: nothing to do.
// Whoever is listed has waited for what came before, unless the ids were there before that.
__device__ __forceinline__ FewWork find_work(FewShared& shared, const FewLaunch& launch) {
  const FewProducts& products = launch.products;
  FewWork work;
  const int block = static_cast<int>(blockIdx.x);
  while (work.entry + 1 < products.entry_count &&
         block >= launch.plans[work.entry + 1].first_block) {
    ++work.entry;
  }
  const EntryPlan& plan = launch.plans[work.entry];
  const int local = block - plan.first_block;
  work.row_count = products.row_count;
  if (!products.entries[work.entry].listed) {
    work.local = local >> plan.chunks_shift;
    work.chunk = local - (work.local << plan.chunks_shift);
  } else {
    if (!products.ids_before) wait_for_earlier();
    work.local =
        launch.pairs == 1
            ? local
            : static_cast<int>(__umulhi(static_cast<uint32_t>(local), launch.pairs_inverse));
    const int pair = local - work.local * launch.pairs;
    work.matrix = __ldcg(products.ids + pair);
    if (products.row_count == 1) {  // no other chose it
      if (threadIdx.x == 0) shared.pairs[0] = pair;
    } else if (threadIdx.x < kWarp) {
      find_pairs(shared.pairs, &shared.pair_count, products.ids, launch.pairs, pair,
                 products.row_count);
    }
    __syncthreads();
    if (products.row_count > 1) work.row_count = shared.pair_count;
  }
  work.rows_shift = work.row_count <= 1 ? 0 : kWarp - __clz(work.row_count - 1);
  return work;
}

// x of a block's chunk: where it was packed, or will be made of its rows in `room`.
struct XPlace {
  XUnits units;
  int cols;
  bool made;
  bool through_pairs;  // a row of the product is that of a pair
};
template <bool kMade>  // made by all
__device__ __forceinline__ XPlace place_x(std::byte* room, const FewLaunch& launch,
                                          const FewWork& work) {
  const FewEntry& entry = launch.products.entries[work.entry];
  const XUnits& packed = launch.plans[work.entry].packed;
  XPlace place;
  place.cols = launch.plans[work.entry].cols;
  place.made = kMade || packed.values == nullptr || (entry.listed && work.row_count <= kNormedRows);
  place.through_pairs = entry.listed && !place.made;
  if (place.made) {
    place.units = units_in(room, work.row_count, place.cols);
  } else {
    const int unit = work.chunk * (place.cols / kUnit);
    place.units = packed;
    place.units.values += int64_t{unit} * packed.rows * kUnitBytes;
    place.units.sums += unit / 2 * packed.rows;
  }
  return place;
}

// Reads a parameter, so that its parts are near when they are needed.
template <typename T>
__device__ __forceinline__ void touch(const T& parameter) {
  constexpr int kLine = 32;
#pragma unroll
  for (size_t at = 0; at < sizeof(T); at += kLine) {
    asm volatile("" ::"r"(
        *reinterpret_cast<const int*>(reinterpret_cast<const std::byte*>(&parameter) + at)));
  }
}

// Gains are weights: nobody has to wait for them.
__device__ __forceinline__ void ask_for_gains(const FewLaunch& launch, const FewWork& work) {
  const HyperStep& hyper = launch.products.hyper;
  if (hyper.from == nullptr) return;
  constexpr int kLine = 32;  // floats
  for (int i = static_cast<int>(threadIdx.x) * kLine; i < hyper.hidden;
       i += static_cast<int>(blockDim.x) * kLine) {
    asm volatile(
        "prefetch.global.L1 [%0];" ::"l"(hyper.gain + int64_t{work.chunk} * hyper.hidden + i));
  }
}

template <typename Meanwhile>
__device__ __forceinline__ void make_x(FewShared& shared, const XPlace& place, std::byte* room,
                                       const FewLaunch& launch, const FewWork& work,
                                       const Meanwhile& meanwhile) {
  const FewEntry& entry = launch.products.entries[work.entry];
  const HyperStep& hyper = launch.products.hyper;
  const int cols = place.cols;
  if (!place.made) return meanwhile();
  if (hyper.from != nullptr) {
    for (int r = 0; r < work.row_count; ++r) {
      const float* own = hyper.from + (int64_t{r} * hyper.streams + work.chunk) * hyper.hidden;
      const float squares = squares_of_warp(own, hyper.hidden);
      if (threadIdx.x % kWarp == 0) shared.squares[r][threadIdx.x / kWarp] = squares;
    }
    __syncthreads();
    const bool keep = work.entry == 0 && work.local == 0;
    make_units(place.units, cols, NormedRow{hyper, shared.squares, work.chunk, keep}, meanwhile);
  } else if (entry.epilogue == Epilogue::kMix) {
    auto* low = reinterpret_cast<float*>(room + units_bytes(work.row_count, cols));
    make_low(low, hyper, work.row_count, cols, work.local == 0);
    make_units(place.units, cols, ListedRow{low, cols, nullptr, 1}, meanwhile);
  } else {
    const int* pairs = entry.listed ? shared.pairs : nullptr;
    make_units(
        place.units, cols,
        ListedRow{entry.x + work.chunk * cols, entry.weight.cols, pairs, entry.pairs_per_row},
        meanwhile);
  }
  __syncthreads();
}

// The ring of this warp, for the steps of `range` in its tile; where there is none, no steps.
template <int kBits>
__device__ __forceinline__ TileRing<kBits> ring_of(const FewLaunch& launch, const FewWork& work,
                                                   SliceRange& range, std::byte* rings) {
  const FewEntry& entry = launch.products.entries[work.entry];
  const EntryPlan& plan = launch.plans[work.entry];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int sub = warp >> plan.warps_shift;  // tile of the block
  const int part = sub & ((1 << plan.together_shift) - 1);
  const int value = (work.local << plan.values_shift) + (sub >> plan.together_shift);
  const bool second = entry.epilogue == Epilogue::kGated && part == 1;
  const int tile = entry.epilogue == Epilogue::kMix ? part * plan.tiles + value : value;
  if (value >= plan.tiles) range.end = range.begin;
  const std::byte* values = second ? entry.second.values : entry.weight.values;
  const std::byte* scales = second ? entry.second.scales : entry.weight.scales;
  const int64_t step = int64_t{tile} * plan.tile_steps + work.chunk * plan.steps + range.begin;
  values += static_cast<size_t>(work.matrix) * plan.matrix_values_bytes +
            step * TileRing<kBits>::kStepBytes;
  scales +=
      static_cast<size_t>(work.matrix) * plan.matrix_scales_bytes + step * plan.step_scale_bytes;
  return TileRing<kBits>(values, scales, range.end - range.begin, plan.step_scale_bytes,
                         rings + warp * launch.ring_bytes, launch.stage_bytes);
}

template <int kBits, int kXTiles, int kWarps>
__global__ void __launch_bounds__(kWarps* kWarp, (kXTiles == 1 ? 2 : 1) * kMostWarps / kWarps)
    few_rows_kernel(const __grid_constant__ FewLaunch launch) {
  constexpr bool kMade = kXTiles == 1;  // at most kNormedRows
  __shared__ FewShared shared;
  extern __shared__ float4 dynamic[];  // rings of the warps, then what is made of x
  if (!launch.products.keeps_next_back) let_later_start();
  const FewWork work = find_work(shared, launch);
  if (work.row_count == 0) return;
  const FewEntry& entry = launch.products.entries[work.entry];
  const EntryPlan& plan = launch.plans[work.entry];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  auto* rings = reinterpret_cast<std::byte*>(dynamic);
  SliceRange range(warp & ((1 << plan.warps_shift) - 1), 1 << plan.warps_shift, plan.slices,
                   plan.steps);
  TileRing<kBits> ring = ring_of<kBits>(launch, work, range, rings);
  // Those that have waited ask for x first, which is little and needed first.
  const bool waited = entry.listed && !launch.products.ids_before;
  if (!waited) ring.fill();
  const XPlace place = place_x<kMade>(rings + launch.warps * launch.ring_bytes, launch, work);
  const auto row_of = [&](int n) {
    return !kMade && place.through_pairs ? shared.pairs[n] / entry.pairs_per_row : n;
  };
  const bool one_tile = kXTiles == 1 || work.row_count <= kXTileRows;
  LaneOfX<1> x(place.units, range.begin, work.row_count, row_of);
  const FewWriter<kBits> writer{shared, launch, entry, work, plan, rings};
  if (!waited) {
    ask_for_gains(launch, work);
    touch(entry);
    touch(plan);
    touch(launch.products.hyper);
    wait_for_earlier();
    if (launch.products.keeps_next_back) let_later_start();
  }
  writer.ask();
  make_x(shared, place, rings + launch.warps * launch.ring_bytes, launch, work, [&] {
    if (waited) ring.fill();
  });
  if (waited && launch.products.keeps_next_back) let_later_start();
  Sums sum[kXTiles] = {};
  if (one_tile) {
    multiply_by_form<kBits, 1>(reinterpret_cast<Sums(&)[1]>(sum), ring, x, range, entry.weight);
  } else {
    LaneOfX<kXTiles> both(place.units, range.begin, work.row_count, row_of);
    multiply_by_form<kBits, kXTiles>(sum, ring, both, range, entry.weight);
  }
  __syncwarp();  // nobody reads the ring any more
  auto* sums = reinterpret_cast<float*>(rings + warp * launch.ring_bytes);
#pragma unroll
  for (int n = 0; n < kXTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = n * kXTileRows + 2 * (lane % 4) + i % 2;
      if (row < work.row_count) sums[row * kSumStride + lane / 4 + 8 * (i / 2)] = sum[n][i];
    }
  }
  __syncthreads();
  writer.write();
}

// Defined for the bits of codes, and kPlainBits, in product_few_*.cu.
template <int kBits>
void launch_few(cudaStream_t stream, const FewLaunch& launch);

}  // namespace flashlane::kernels::cuda
