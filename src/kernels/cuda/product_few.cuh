// Products of up to 16 rows of x: a block of warps has some tiles of weight rows, a warp one slice
// of one tile. It copies the slice's steps into a ring in shared memory, as many as that holds
// before it looks at x. See product_tile.cuh for the order of sums.
#pragma once

#include "kernels/cuda/product_x.cuh"

namespace flashlane::kernels::cuda {

inline constexpr int kFewWarps = kNormThreads / kWarp;  // of a block
// Floats between the columns of a warp's sums, so that lanes write to banks of their own.
inline constexpr int kSumStride = kTileRows + 4;

// Steps of a warp that are under way.
__host__ __device__ constexpr int stages_of(int bits) {
  return bits <= 4 ? 8 : (bits <= 8 ? 6 : 4);
}
__host__ __device__ constexpr int ring_bytes(int bits, int stage_bytes) {  // of a warp
  return stages_of(bits) * stage_bytes;
}

// Entries of one format, and which blocks are whose.
struct FewLaunch {
  FewProducts products;
  int first_block[kMostFewEntries + 1] = {};
  int slices[kMostFewEntries] = {};
  int stage_bytes = 0;                  // of a step of a tile, of the entry with the most
  int made_bytes = 0;                   // what a block makes of x
  XUnits packed[kMostFewEntries] = {};  // x of each entry, where it is not made by the blocks
  int shared_bytes() const {
    return kFewWarps * ring_bytes(products.entries[0].weight.bits, stage_bytes) + made_bytes;
  }
};

// Codes, then scales.
inline size_t stage_bytes(const DeviceMatrix& weight) {
  return weight.step_bytes() + (weight.layout == Layout::kAffine
                                    ? (weight.two_groups() ? 2 : 1) * weight.group_bytes()
                                    : 0);
}

// What a block works on.
struct FewWork {
  int entry = 0;
  int local = 0;   // block of the entry (and of its expert, or chunk)
  int matrix = 0;  // of the bank
  int chunk = 0;
  int row_count = 0;
};

template <int kXTiles>
struct FewShared {
  float sums[kFewWarps][kXTiles * kTileOfX][kSumStride];
  float partial[kWarp];
  float scales[kNormedRows];
  int pairs[kFewRows];  // of a listed entry: those that chose the expert, ascending
  int pair_count;
};

// By one warp: the pairs that chose expert ids[pair], at most one a row; none where an earlier
// pair's block has them.
__device__ inline void find_pairs(int* pairs, int* count, const int32_t* ids, int all, int pair,
                                  int most) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int expert = ids[pair];
  int found = 0;
  for (int first = 0; first < all; first += kWarp) {
    const int p = first + lane;
    const bool same = p < all && ids[p] == expert;
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

// Weights are read once a step, so that they should leave what is read again in the cache.
__device__ inline uint64_t evict_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ __forceinline__ void copy_piece(uint32_t to, const std::byte* from, uint64_t policy) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "l"(policy)
               : "memory");
}
__device__ __forceinline__ void end_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until all but the last `kLater` groups of copies are there.
template <int kLater>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

// A warp's ring of steps of its tile.
template <int kBits>
struct TileRing {
  static constexpr int kPiece = 16;  // bytes of one copy
  static constexpr int kCodePieces = kBits * 128 / kPiece;

  const std::byte* codes;   // this lane's piece of the next step to fetch
  const std::byte* scales;  // likewise
  uint32_t to;              // where in shared memory its slot lies
  const std::byte* first;   // the ring's slots, and the one to read next
  const std::byte* now;
  int stride;       // of slots
  int scale_bytes;  // of a step
  int group_bytes;
  bool two, wide;
  uint64_t policy;

  __device__ __forceinline__ TileRing(const DeviceMatrix& weight, int matrix, int tile,
                                      int first_step, const std::byte* own, int slot_stride)
      : first(own), now(own), stride(slot_stride), policy(evict_first()) {
    two = weight.two_groups();
    wide = weight.wide_scales();
    group_bytes = static_cast<int>(weight.group_bytes());
    scale_bytes = kBits == kPlainBits ? 0 : (two ? 2 : 1) * group_bytes;
    const auto before = static_cast<size_t>(matrix);
    const auto step = static_cast<size_t>(tile) * static_cast<size_t>(weight.steps()) +
                      static_cast<size_t>(first_step);
    const auto piece = static_cast<size_t>(threadIdx.x % kWarp * kPiece);
    codes = weight.values + before * weight.values_bytes() + step * weight.step_bytes() + piece;
    scales = weight.scales + before * weight.scales_bytes() +
             step * static_cast<size_t>(scale_bytes) + piece;
    to = static_cast<uint32_t>(__cvta_generic_to_shared(own)) + static_cast<uint32_t>(piece);
  }
  // The next step, to `slot`.
  __device__ __forceinline__ void fetch(int slot) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const uint32_t place = to + static_cast<uint32_t>(slot * stride);
#pragma unroll
    for (int piece = 0; piece < kCodePieces; piece += kWarp) {
      if (piece + kWarp <= kCodePieces || lane < kCodePieces - piece) {
        copy_piece(place + static_cast<uint32_t>(piece * kPiece), codes + piece * kPiece, policy);
      }
    }
    if (lane * kPiece < scale_bytes) {
      copy_piece(place + static_cast<uint32_t>(kCodePieces * kPiece), scales, policy);
    }
    codes += kCodePieces * kPiece;
    scales += scale_bytes;
  }
  // Of unit `u`'s group; where a step has one group, of unit 1's.
  __device__ __forceinline__ Scales scales_of(int u) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const std::byte* from =
        now + kBits * 128 + (two && u == 1 ? group_bytes : 0) + lane / 4 * (group_bytes / 8);
    if (wide) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      return {{v.x, v.z}, {v.y, v.w}};
    }
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    return unpack_scales(v.x, v.y);
  }
};

// The rows of x that a lane multiplies.
template <int kXTiles>
struct LaneOfX {
  const std::byte* values[kXTiles] = {};  // of the next step; null: none
  int stride;                             // of units

  // From unit `unit` on. row_of(n): where row n of the product lies in x, n < row_count.
  template <typename RowOf>
  __device__ __forceinline__ void begin(const XUnits& x, int unit, int row_count, RowOf row_of) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    stride = x.rows * kUnitBytes;
#pragma unroll
    for (int n = 0; n < kXTiles; ++n) {
      const int own = n * kTileOfX + lane / 4;
      if (own >= row_count) continue;
      values[n] = x.values + int64_t{unit} * stride + row_of(own) * kUnitBytes + lane % 4 * 16;
    }
  }
  // A step's two units, to what is zero where there is no row.
  __device__ __forceinline__ void load(uint32_t (&x)[kXTiles][2][4]) {
#pragma unroll
    for (int n = 0; n < kXTiles; ++n) {
      if (values[n] == nullptr) continue;
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const uint4 v = *reinterpret_cast<const uint4*>(values[n] + u * stride);
        x[n][u][0] = v.x, x[n][u][1] = v.y, x[n][u][2] = v.z, x[n][u][3] = v.w;
      }
      values[n] += 2 * stride;
    }
  }
};

// total += the step's product with the x tiles that are in use.
template <int kBits, int kXTiles>
__device__ __forceinline__ void add_step(Sums (&total)[kXTiles], Sums (&part)[kXTiles],
                                         const TileRing<kBits>& ring,
                                         const uint32_t (&x)[kXTiles][2][4], int row_count) {
  uint32_t words[kBits];
  load_codes<kBits, LoadCopy>(words, ring.now, static_cast<int>(threadIdx.x) % kWarp);
  Sums of_x[kXTiles] = {};
#pragma unroll
  for (int u = 0; u < 2; ++u) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint32_t weights[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) weights[r] = code_pair<kBits>(words, u * 8 + m * 4 + r);
#pragma unroll
      for (int n = 0; n < kXTiles; ++n) {
        if (n > 0 && n * kTileOfX >= row_count) continue;
        multiply_tile(part[n], weights, x[n][u][2 * m], x[n][u][2 * m + 1]);
      }
    }
    if constexpr (kBits != kPlainBits) {
#pragma unroll
      for (int n = 0; n < kXTiles; ++n) {
        if (n == 0 || n * kTileOfX < row_count) add_unit_of_x(of_x[n], x[n][u]);
      }
      if (u == 0 && !ring.two) continue;
      const Scales scales = ring.scales_of(u);
#pragma unroll
      for (int n = 0; n < kXTiles; ++n) {
        add_group(total[n], part[n], scales, of_x[n][0], of_x[n][1]);
        of_x[n][0] = of_x[n][1] = of_x[n][2] = of_x[n][3] = 0;
      }
    }
  }
}

// Tiles whose sums make one value, and of a block.
__host__ __device__ inline int tiles_of_value(const FewEntry& entry, int streams) {
  return entry.epilogue == Epilogue::kGated ? 2 : (entry.epilogue == Epilogue::kMix ? streams : 1);
}

// Where a block's part `sub` is: a tile of the weight, or of the second one.
struct FewTile {
  int tile;
  bool second;
};
__device__ inline FewTile tile_of(const FewEntry& entry, const FewWork& work, int sub, int subs,
                                  int streams) {
  const int together = tiles_of_value(entry, streams);
  const int value = work.local * (subs / together) + sub / together;
  if (entry.epilogue == Epilogue::kMix) {
    const int tiles = entry.weight.tiles() / streams;
    return {value < tiles ? sub % together * tiles + value : entry.weight.tiles(), false};
  }
  return {value, sub % together == 1};
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
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kNormThreads) {
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
  const float* scales;
  int chunk;
  bool keep;
  __device__ __forceinline__ void get(float (&v)[8], int row, int col) const {
    const int64_t at = (int64_t{row} * hyper.streams + chunk) * hyper.hidden + col;
    const float* gain = hyper.gain + int64_t{chunk} * hyper.hidden + col;
    float factors[8];
    load_eight(v, hyper.from + at);
    load_eight(factors, gain);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = v[i] * scales[row] * factors[i];
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

// Sums of the slices of a block's tiles, then what follows the product, to memory.
template <int kXTiles>
__device__ void write_rows(const FewShared<kXTiles>& shared, const FewLaunch& launch,
                           const FewEntry& entry, const FewWork& work) {
  const HyperStep& hyper = launch.products.hyper;
  const int slices = launch.slices[work.entry];
  const int subs = kFewWarps / slices;
  const int together = tiles_of_value(entry, hyper.streams);
  const auto sum_of = [&](int sub, int n, int r) {
    float sum = 0;
    for (int s = 0; s < slices; ++s) sum += shared.sums[sub * slices + s][n][r];
    return sum;
  };
  const int64_t width = entry.weight.rows / (entry.epilogue == Epilogue::kMix ? hyper.streams : 1);
  float* out = entry.out + int64_t{work.chunk} * launch.products.row_count * width;
  const int value_index = static_cast<int>(threadIdx.x) / kTileRows;
  const int r = static_cast<int>(threadIdx.x) % kTileRows;
  const int sub = value_index * together;
  const int64_t at = (int64_t{work.local} * (subs / together) + value_index) * kTileRows + r;
  if (sub >= subs || at >= width) return;
  for (int n = 0; n < work.row_count; ++n) {
    const int64_t row = entry.listed ? shared.pairs[n] : n;
    float value = 0;
    if (entry.epilogue == Epilogue::kGated) {
      value = silu_f32(sum_of(sub, n, r)) * sum_of(sub + 1, n, r);
    } else if (entry.epilogue == Epilogue::kMix) {
      const float* normed = hyper.normed + row * hyper.streams * width + at;
      for (int c = 0; c < hyper.streams; ++c) {
        value += sigmoid_f32(sum_of(sub + c, n, r)) * normed[c * width];
      }
      value *= 1.0F / static_cast<float>(hyper.streams);
    } else {
      value = sum_of(sub, n, r);
    }
    out[row * width + at] = value;
  }
}

// Finds the block's entry and, within it, its expert's rows or its chunk; no rows: nothing to do.
// Whoever is listed has waited for what came before.
template <int kXTiles>
__device__ FewWork find_work(FewShared<kXTiles>& shared, const FewLaunch& launch) {
  const FewProducts& products = launch.products;
  FewWork work;
  const int block = static_cast<int>(blockIdx.x);
  while (block >= launch.first_block[work.entry + 1]) ++work.entry;
  const FewEntry& entry = products.entries[work.entry];
  const int local = block - launch.first_block[work.entry];
  work.row_count = products.row_count;
  work.local = local / entry.chunks;
  work.chunk = local % entry.chunks;
  if (!entry.listed) return work;
  wait_for_earlier();
  const int all = products.row_count * products.top;
  const int pair = local % all;
  work.local = local / all;
  work.matrix = products.ids[pair];
  if (threadIdx.x < kWarp) {
    find_pairs(shared.pairs, &shared.pair_count, products.ids, all, pair, products.row_count);
  }
  __syncthreads();
  work.row_count = shared.pair_count;
  return work;
}

// x of this block's chunk: where it was packed, or made here of its rows.
template <int kXTiles>
__device__ XUnits find_x(FewShared<kXTiles>& shared, std::byte* room, const FewLaunch& launch,
                         const FewWork& work) {
  const FewEntry& entry = launch.products.entries[work.entry];
  const HyperStep& hyper = launch.products.hyper;
  const int cols = static_cast<int>(entry.weight.cols / entry.chunks);
  if (launch.packed[work.entry].values != nullptr) {
    XUnits x = launch.packed[work.entry];
    const int unit = work.chunk * (cols / kUnit);
    x.values += int64_t{unit} * x.rows * kUnitBytes;
    return x;
  }
  const XUnits x = {room, work.row_count};
  if (hyper.from != nullptr) {
    for (int r = 0; r < work.row_count; ++r) {
      const float* own = hyper.from + (int64_t{r} * hyper.streams + work.chunk) * hyper.hidden;
      const float scale = block_rms_scale(own, hyper.hidden, hyper.eps, shared.partial);
      if (threadIdx.x == 0) shared.scales[r] = scale;
    }
    __syncthreads();
    const bool keep = work.entry == 0 && work.local == 0;
    make_units(x, cols, NormedRow{hyper, shared.scales, work.chunk, keep});
  } else if (entry.epilogue == Epilogue::kMix) {
    auto* low = reinterpret_cast<float*>(room + units_bytes(work.row_count, cols));
    make_low(low, hyper, work.row_count, cols, work.local == 0);
    make_units(x, cols, ListedRow{low, cols, nullptr, 1});
  } else {
    const int* pairs = entry.listed ? shared.pairs : nullptr;
    make_units(
        x, cols,
        ListedRow{entry.x + work.chunk * cols, entry.weight.cols, pairs, entry.pairs_per_row});
  }
  __syncthreads();
  return x;
}

template <int kBits, int kXTiles>
__global__ void __launch_bounds__(kNormThreads, kXTiles == 1 ? 3 : 2)
    few_rows_kernel(const __grid_constant__ FewLaunch launch) {
  __shared__ FewShared<kXTiles> shared;
  extern __shared__ float4 dynamic[];  // rings of the warps, then what is made of x
  constexpr int kSlots = stages_of(kBits);
  let_later_start();
  const FewWork work = find_work(shared, launch);
  if (work.row_count == 0) return;
  const FewEntry& entry = launch.products.entries[work.entry];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int slices = launch.slices[work.entry];
  const FewTile own =
      tile_of(entry, work, warp / slices, kFewWarps / slices, launch.products.hyper.streams);
  const DeviceMatrix& weight = own.second ? entry.second : entry.weight;
  const int chunk_steps = weight.steps() / entry.chunks;
  const int begin = slice_begin(warp % slices, slices, chunk_steps);
  const int end =
      own.tile < weight.tiles() ? slice_begin(warp % slices + 1, slices, chunk_steps) : begin;
  auto* rings = reinterpret_cast<std::byte*>(dynamic);
  const int own_bytes = ring_bytes(kBits, launch.stage_bytes);
  TileRing<kBits> ring(weight, work.matrix, own.tile, work.chunk * chunk_steps + begin,
                       rings + warp * own_bytes, launch.stage_bytes);
#pragma unroll 1
  for (int slot = 0; slot < kSlots; ++slot) {
    if (begin + slot < end) ring.fetch(slot);
    end_copies();
  }
  if (!entry.listed) wait_for_earlier();

  const XUnits units = find_x(shared, rings + kFewWarps * own_bytes, launch, work);
  LaneOfX<kXTiles> x;
  const bool packed = launch.packed[work.entry].values != nullptr;
  x.begin(units, 2 * begin, work.row_count, [&](int n) {
    return packed && entry.listed ? shared.pairs[n] / entry.pairs_per_row : n;
  });
  Sums total[kXTiles] = {}, part[kXTiles] = {};
  uint32_t values[kXTiles][2][4] = {};
  int slot = 0;
#pragma unroll 1
  for (int step = begin; step < end; ++step) {
    x.load(values);
    wait_for_copies<kSlots - 1>();
    __syncwarp();  // the other lanes' pieces are there, too
    add_step<kBits, kXTiles>(total, part, ring, values, work.row_count);
    __syncwarp();  // all have read the slot
    if (step + kSlots < end) ring.fetch(slot);
    end_copies();
    slot = slot + 1 == kSlots ? 0 : slot + 1;
    ring.now = slot == 0 ? ring.first : ring.now + ring.stride;
  }

#pragma unroll
  for (int n = 0; n < kXTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = kBits == kPlainBits ? part[n][i] : total[n][i];
      shared.sums[warp][n * kTileOfX + 2 * (lane % 4) + i % 2][lane / 4 + 8 * (i / 2)] = value;
    }
  }
  __syncthreads();
  write_rows(shared, launch, entry, work);
}

// Defined for the bits of codes, and kPlainBits, in product_few_*.cu.
template <int kBits>
void launch_few(cudaStream_t stream, const FewLaunch& launch);

}  // namespace flashlane::kernels::cuda
