// Products of many rows of x (prompts). x is packed first (product_many_x.cuh): what a tensor
// product reads lies there as it is read. A block has some rows of x and two tiles of weight rows a
// warp, of one weight or one of each of a gated pair; both come by asynchronous copies, some steps
// ahead, into a ring in shared memory, and each row of x that a lane reads there is multiplied with
// both tiles. The same sums in the same order as for few rows: product_tile.cuh. How many rows a
// block has, and whether slices are blocks of their own, is chosen by speed and changes no bit.
#pragma once

#include "kernels/cuda/product_many_x.cuh"

namespace flashlane::kernels::cuda {

inline constexpr int kManyWarps = 4;
inline constexpr int kManyThreads = kManyWarps * kWarp;
inline constexpr int kWarpTiles = 2;

// Steps in shared memory, all but one of them under way. More would leave the first cache no room
// for the sums of slices (add_steps).
__host__ __device__ constexpr int many_stages(int x_tiles) {
  return x_tiles <= 2 ? 4 : 3;
}
// Blocks that an SM shall have registers for.
__host__ __device__ constexpr int many_blocks(int x_tiles, bool two_groups) {
  return (x_tiles >= 8 ? 3 : 4) - (two_groups ? 1 : 0);
}

// What follows in each stage: x, its sums, each warp's two tiles: codes, then scales.
__host__ __device__ constexpr int stage_x_bytes(int x_tiles) {
  return x_tiles * kXTileRows * kXStepBytes;
}
__host__ __device__ constexpr int stage_sum_bytes(int x_tiles) {
  return x_tiles * kXTileRows * static_cast<int>(sizeof(float2));
}
__host__ __device__ inline int many_stage_bytes(const DeviceMatrix& weight, int x_tiles) {
  const auto tile = static_cast<int>(weight.step_bytes() + weight.step_scale_bytes());
  return stage_x_bytes(x_tiles) + stage_sum_bytes(x_tiles) + kManyWarps * kWarpTiles * tile;
}

struct ManyLaunch {
  Product product;
  PackedX x;
  const ManyItem* items = nullptr;  // with lists: a block's rows
  int slices = 1;                   // of a chunk
  // Not null: a block has a chunk, or a slice, and leaves its sums here, [grid.z, rows of out,
  // rows of the weight], to be added by add_parts_kernel.
  float* parts = nullptr;
  bool by_slice = false;
};

__device__ __forceinline__ void copy_eight(uint32_t to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
// part = the product, from zero.
__device__ __forceinline__ void multiply_first(Sums& part, const uint32_t (&weights)[4],
                                               uint32_t x0, uint32_t x1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
      : "=f"(part[0]), "=f"(part[1]), "=f"(part[2]), "=f"(part[3])
      : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "r"(x0), "r"(x1),
        "f"(0.0F));
}

// A warp's two tiles on their way to shared memory.
template <int kBits>
struct ManyTiles {
  static constexpr int kPiece = 16;  // bytes of one copy
  static constexpr int kCodePieces = kBits * 128 / kPiece;

  const std::byte* codes[kWarpTiles];  // this lane's first piece of the next step to fetch
  const std::byte* scales;             // likewise: half of the lanes have each tile's
  int scale_bytes;                     // of a step of a tile

  // From step `step` on.
  __device__ __forceinline__ ManyTiles(const DeviceMatrix& first, const DeviceMatrix& second,
                                       const int (&tiles)[kWarpTiles], int64_t matrix, int step)
      : scale_bytes(static_cast<int>(first.step_scale_bytes())) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto steps = static_cast<int64_t>(first.steps());
    const auto bank = static_cast<size_t>(matrix);
#pragma unroll
    for (int t = 0; t < kWarpTiles; ++t) {
      codes[t] = (t == 0 ? first : second).values + bank * first.values_bytes() +
                 static_cast<size_t>(tiles[t] * steps + step) * first.step_bytes() + lane * kPiece;
    }
    const int half = lane / (kWarp / 2);
    scales = (half == 0 ? first : second).scales + bank * first.scales_bytes() +
             ((half == 0 ? tiles[0] : tiles[1]) * steps + step) * scale_bytes +
             lane % (kWarp / 2) * kPiece;
  }
  // `to`: where the warp's tiles lie in the stage.
  __device__ __forceinline__ void fetch(uint32_t to) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int tile_bytes = kBits * 128 + scale_bytes;
#pragma unroll
    for (int t = 0; t < kWarpTiles; ++t) {
      const auto place = to + static_cast<uint32_t>(t * tile_bytes + lane * kPiece);
#pragma unroll
      for (int piece = 0; piece < kCodePieces; piece += kWarp) {
        if (piece + kWarp <= kCodePieces || lane < kCodePieces - piece) {
          copy_piece(place + static_cast<uint32_t>(piece * kPiece), codes[t] + piece * kPiece);
        }
      }
      codes[t] += kCodePieces * kPiece;
    }
    if constexpr (kBits == kPlainBits) return;
    const int own = lane % (kWarp / 2) * kPiece;
    if (own < scale_bytes) {
      const int half = lane / (kWarp / 2);
      copy_piece(to + static_cast<uint32_t>(half * tile_bytes + kBits * 128 + own), scales);
    }
    scales += scale_bytes;
  }
};

// A block's rows of x on their way to shared memory. A row's units change places in every other
// row, so that lanes read from all banks.
template <int kXTiles>
struct ManyX {
  static constexpr int kRows = kXTiles * kXTileRows;
  static constexpr int kPieces = kXStepBytes / 16;  // of a row's step
  static constexpr int kRowsAtOnce = kManyThreads / kPieces;
  static constexpr int kCopies = kRows / kRowsAtOnce;

  const PackedX& x;          // in constant memory, as is all that launches are given
  uint32_t pieces[kCopies];  // of this thread, in its rows' next step, by 16 bytes
  uint32_t sums;             // of row threadIdx.x
  int row_count;

  template <typename RowOf>
  __device__ __forceinline__ ManyX(const PackedX& from, int steps, int step, int rows, RowOf row_of)
      : x(from), row_count(rows) {
    const int thread = static_cast<int>(threadIdx.x);
    const auto place = [&](int row) { return row < rows ? row_of(row) * steps + step : 0; };
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = thread / kPieces + i * kRowsAtOnce;
      pieces[i] = static_cast<uint32_t>(place(row) * kPieces + thread % kPieces);
    }
    sums = static_cast<uint32_t>(place(thread));
  }
  // `to`: where the stage lies.
  __device__ __forceinline__ void fetch(uint32_t to, bool with_sums) {
    const int thread = static_cast<int>(threadIdx.x);
    const int row = thread / kPieces;
    const int piece = thread % kPieces;
    const auto place =
        to + static_cast<uint32_t>(row * kXStepBytes + (piece / 4 + row) % 2 * 64 + piece % 4 * 16);
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      if (row + i * kRowsAtOnce < row_count) {
        copy_piece(place + static_cast<uint32_t>(i * kRowsAtOnce * kXStepBytes),
                   x.values + size_t{pieces[i]} * 16);
      }
      pieces[i] += kPieces;
    }
    if (with_sums && thread < row_count) {
      copy_eight(to + static_cast<uint32_t>(stage_x_bytes(kXTiles) + thread * 8), x.sums + sums);
    }
    ++sums;
  }
};

// A step of a warp's two tiles as products take it.
template <int kBits>
struct ManyWeights {
  static constexpr int kProducts = 4;
  uint32_t values[kWarpTiles][kProducts][4];

  __device__ __forceinline__ void load(const std::byte* from, int tile_bytes) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int t = 0; t < kWarpTiles; ++t) {
      uint32_t words[kBits];
      load_codes<kBits>(words, from + t * tile_bytes, lane);
#pragma unroll
      for (int p = 0; p < kPairsOfStep; ++p) values[t][p / 4][p % 4] = code_pair<kBits>(words, p);
    }
  }
};

// Of a tile's group, which lies at `from`.
__device__ __forceinline__ Scales load_scales(const std::byte* from, bool wide) {
  const int g = static_cast<int>(threadIdx.x) % kWarp / 4;
  if (wide) {
    const float4 v = reinterpret_cast<const float4*>(from)[g];
    return {{v.x, v.z}, {v.y, v.w}};
  }
  const uint2 v = reinterpret_cast<const uint2*>(from)[g];
  return unpack_scales(v.x, v.y);
}

// Two x tiles of a step, and their sums: of rows 2t and 2t + 1, each unit's.
struct ManyXPair {
  uint32_t values[2][2][4];  // tile, unit
  float4 sums[2];

  template <int kXTiles, bool kWithSums>
  __device__ __forceinline__ void load(const std::byte* stage, int first_tile) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int row = (first_tile + n) * kXTileRows;
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const uint4 v = *reinterpret_cast<const uint4*>(stage + (row + lane / 4) * kXStepBytes +
                                                        (lane / 4 + u) % 2 * 64 + lane % 4 * 16);
        values[n][u][0] = v.x, values[n][u][1] = v.y, values[n][u][2] = v.z, values[n][u][3] = v.w;
      }
      if constexpr (kWithSums) {
        sums[n] = *reinterpret_cast<const float4*>(stage + stage_x_bytes(kXTiles) +
                                                   (row + lane % 4 * 2) * 8);
      }
    }
  }
};

// total += the step's products with the x tiles that are in use. `tiles`: where the warp's lie.
template <int kBits, int kXTiles, bool kTwoGroups>
__device__ __forceinline__ void add_many_step(Sums (&total)[kXTiles][kWarpTiles],
                                              const std::byte* stage, const std::byte* tiles,
                                              int tile_bytes, bool wide, int row_count) {
  constexpr bool kPlain = kBits == kPlainBits;
  ManyWeights<kBits> weights;
  weights.load(tiles, tile_bytes);
  constexpr int kGroups = kTwoGroups ? 2 : 1;
  Scales scales[kWarpTiles][kGroups];
  if constexpr (!kPlain) {
#pragma unroll
    for (int i = 0; i < kWarpTiles * kGroups; ++i) {
      scales[i / kGroups][i % kGroups] =
          load_scales(tiles + i / kGroups * tile_bytes + kBits * 128 +
                          i % kGroups * (kTileRows * (wide ? 8 : 4)),
                      wide);
    }
  }
#pragma unroll
  for (int first = 0; first < kXTiles; first += 2) {
    if (first > 0 && first * kXTileRows >= row_count) break;
    ManyXPair x;
    x.load<kXTiles, !kPlain>(stage, first);
    Sums part[2][kWarpTiles];
#pragma unroll
    for (int p = 0; p < ManyWeights<kBits>::kProducts; ++p) {
      const bool begins = p == 0 || (kTwoGroups && p == 2);
      const bool ends = p == 3 || (kTwoGroups && p == 1);
#pragma unroll
      for (int i = 0; i < 2 * kWarpTiles; ++i) {
        const int n = i / kWarpTiles;
        const int t = i % kWarpTiles;
        const uint32_t(&unit)[4] = x.values[n][p / 2];
        const uint32_t x0 = unit[p % 2 * 2];
        const uint32_t x1 = unit[p % 2 * 2 + 1];
        if (begins && !kPlain) {
          multiply_first(part[n][t], weights.values[t][p], x0, x1);
        } else {
          multiply_tile(kPlain ? total[first + n][t] : part[n][t], weights.values[t][p], x0, x1);
        }
      }
      if (!ends || kPlain) continue;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const float4 s = x.sums[n];
        const float low = kTwoGroups ? (p == 1 ? s.x : s.y) : s.x + s.y;
        const float high = kTwoGroups ? (p == 1 ? s.z : s.w) : s.z + s.w;
#pragma unroll
        for (int t = 0; t < kWarpTiles; ++t) {
          add_group(total[first + n][t], part[n][t], scales[t][kTwoGroups ? p / 2 : 0], low, high);
        }
      }
    }
  }
}

// Which rows, tiles and steps a block has.
struct ManyWork {
  int64_t matrix = 0;
  int first = 0, row_count = 0;  // of the rows, or of the list
  int block = 0;                 // of the weight's rows
  int chunk_begin = 0;           // steps
  int slice = 0, slice_end = 0;

  __device__ __forceinline__ int slice_at(const ManyLaunch& launch, int index) const {
    const int steps = launch.product.weight.steps() / launch.product.chunks;
    return chunk_begin + slice_begin(index, launch.slices, steps);
  }
};
__device__ inline ManyWork find_many_work(const ManyLaunch& launch, int part_rows) {
  const Product& product = launch.product;
  ManyWork work;
  const int z = static_cast<int>(blockIdx.z);
  const int chunk = launch.by_slice ? z / launch.slices : z;
  work.slice = launch.by_slice ? z % launch.slices : 0;
  work.slice_end = launch.by_slice ? work.slice + 1 : launch.slices;
  work.chunk_begin = chunk * (product.weight.steps() / product.chunks);
  if (launch.items != nullptr) {
    wait_for_earlier();
    const ManyItem item = launch.items[blockIdx.y];
    work.matrix = item.matrix;
    work.first = item.first;
    work.row_count = item.row_count;
    work.block = static_cast<int>(blockIdx.x);
  } else {
    work.first = static_cast<int>(blockIdx.x) * part_rows;
    work.row_count = min(part_rows, product.row_count - work.first);
    work.block = static_cast<int>(blockIdx.y);
  }
  return work;
}

// A warp's sums to memory: gated, or each tile's.
template <int kBits, int kXTiles>
__device__ __forceinline__ void write_many(const ManyLaunch& launch,
                                           const Sums (&sums)[kXTiles][kWarpTiles],
                                           const int (&tiles)[kWarpTiles], const int* pairs,
                                           int row_count) {
  const Product& product = launch.product;
  const int64_t width = product.weight.rows;
  const bool gated = product.second.rows != 0;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float* out = launch.parts == nullptr
                   ? product.out
                   : launch.parts + int64_t{blockIdx.z} * product.row_count * width;
#pragma unroll
  for (int n = 0; n < kXTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int in_x = n * kXTileRows + 2 * (lane % 4) + i % 2;
      if (in_x >= row_count) continue;
      float* row = out + pairs[in_x] * width;
      float values[kWarpTiles];
#pragma unroll
      for (int t = 0; t < kWarpTiles; ++t) {
        const float sum = sums[n][t][i];
        values[t] = launch.parts == nullptr ? unscaled<kBits>(sum) : sum;
      }
      if (gated) values[0] = silu_f32(values[0]) * values[1];
#pragma unroll
      for (int t = 0; t < kWarpTiles; ++t) {
        const int64_t at = int64_t{tiles[t]} * kTileRows + lane / 4 + 8 * (i / 2);
        if (at < width && (t == 0 || !gated)) row[at] = values[t];
      }
    }
  }
}

// A slice's sums to those of the slices before it; the last one's stay in `total`.
template <int kXTiles>
__device__ __forceinline__ void add_slice(Sums (&total)[kXTiles][kWarpTiles], float* before,
                                          bool first, bool last) {
#pragma unroll
  for (int i = 0; i < kXTiles * kWarpTiles * 4; ++i) {
    float& own = total[i / 4 / kWarpTiles][i / 4 % kWarpTiles][i % 4];
    const float sum = (first ? 0.0F : before[i]) + own;
    if (!last) before[i] = sum;
    own = last ? sum : 0.0F;
  }
}

// The ring in shared memory, and what is on its way there.
template <int kBits, int kXTiles>
struct ManyRing {
  static constexpr int kStages = many_stages(kXTiles);

  int stage_bytes, tile_bytes;
  int in_stage;  // where this warp's tiles lie
  int read = 0;  // the stage to read
  uint32_t at;

  __device__ __forceinline__ ManyRing(const DeviceMatrix& weight, const void* ring)
      : stage_bytes(many_stage_bytes(weight, kXTiles)),
        tile_bytes(kBits * 128 + static_cast<int>(weight.step_scale_bytes())),
        at(static_cast<uint32_t>(__cvta_generic_to_shared(ring))) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    in_stage = stage_x_bytes(kXTiles) + stage_sum_bytes(kXTiles) + warp * kWarpTiles * tile_bytes;
  }
  __device__ __forceinline__ uint32_t stage(int s) const {
    return at + static_cast<uint32_t>(s * stage_bytes);
  }
  __device__ __forceinline__ void fetch_x(ManyX<kXTiles>& x, uint32_t stage) const {
    x.fetch(stage, kBits != kPlainBits);
  }
  __device__ __forceinline__ void fetch_weights(ManyTiles<kBits>& weights, uint32_t stage) const {
    weights.fetch(stage + static_cast<uint32_t>(in_stage));
  }
  __device__ __forceinline__ int last_stage() const { return (kStages - 1) * stage_bytes; }
  // The one that was read last.
  __device__ __forceinline__ uint32_t free_stage() const {
    return at + static_cast<uint32_t>(read == 0 ? last_stage() : read - stage_bytes);
  }
  __device__ __forceinline__ void next() { read = read == last_stage() ? 0 : read + stage_bytes; }
};

// Which pairs, or rows, a block's rows are; beyond the last its own again.
__device__ __forceinline__ void find_pairs_of(int* pairs, int count, const ManyLaunch& launch,
                                              const ManyWork& work) {
  const int own = static_cast<int>(threadIdx.x);
  if (own >= count) return;
  const int row = work.first + min(own, work.row_count - 1);
  pairs[own] = launch.items != nullptr ? launch.product.lists.list[row] : row;
}

// All steps of a block, slice by slice: fetch(stage) fetches what comes kStages - 1 steps later.
template <int kBits, int kXTiles, bool kTwoGroups, typename Fetch>
__device__ __forceinline__ void add_steps(Sums (&total)[kXTiles][kWarpTiles],
                                          ManyRing<kBits, kXTiles>& ring, const std::byte* stages,
                                          const ManyLaunch& launch, const ManyWork& work,
                                          bool has_tile, const Fetch& fetch) {
  const bool wide = launch.product.weight.wide_scales();
  const int end = work.slice_at(launch, work.slice_end);
  // Of the slices before, in local memory: read and written too rarely to be worth registers.
  float before[kXTiles * kWarpTiles * 4];
  float* before_at = before;
  asm volatile("" : "+l"(before_at));
  int step = work.slice_at(launch, work.slice);
#pragma unroll 1
  for (int slice = work.slice; slice < work.slice_end; ++slice) {
    const int slice_end = work.slice_at(launch, slice + 1);
#pragma unroll 1
    for (; step < slice_end; ++step) {
      wait_for_copies<many_stages(kXTiles) - 2>();
      __syncthreads();  // all have their copies, and have read the stage that is free
      if (step + many_stages(kXTiles) - 1 < end) fetch(ring.free_stage());
      end_copies();
      if (has_tile) {
        const std::byte* stage = stages + ring.read;
        const std::byte* tiles = stage + ring.in_stage;
        add_many_step<kBits, kXTiles, kTwoGroups>(total, stage, tiles, ring.tile_bytes, wide,
                                                  work.row_count);
      }
      ring.next();
    }
    add_slice<kXTiles>(total, before_at, slice == work.slice, slice + 1 == work.slice_end);
  }
}

// Grid: x over parts of the rows, y over the weight's; with lists x over the weight's rows, y over
// items; z over chunks or slices. kTwoGroups: as the weights have it.
template <int kBits, int kXTiles, bool kTwoGroups>
__global__ void __launch_bounds__(kManyThreads, many_blocks(kXTiles, kTwoGroups))
    many_rows_kernel(const __grid_constant__ ManyLaunch launch) {
  constexpr int kAhead = many_stages(kXTiles) - 1;
  constexpr int kRows = kXTiles * kXTileRows;
  extern __shared__ float4 stages[];
  __shared__ int pairs[kRows];
  let_later_start();
  const Product& product = launch.product;
  const DeviceMatrix& weight = product.weight;
  const ManyWork work = find_many_work(launch, kRows);
  if (work.row_count == 0) return;
  const bool gated = product.second.rows != 0;
  const int own = work.block * kManyWarps + static_cast<int>(threadIdx.x) / kWarp;
  const int tiles[kWarpTiles] = {gated ? own : 2 * own, gated ? own : 2 * own + 1};
  const int last = weight.tiles() - 1;  // whoever has none reads that one again
  const int there[kWarpTiles] = {min(tiles[0], last), min(tiles[1], last)};
  const int step = work.slice_at(launch, work.slice);
  const int count = work.slice_at(launch, work.slice_end) - step;
  ManyRing<kBits, kXTiles> ring(weight, stages);
  ManyTiles<kBits> weights(weight, gated ? product.second : weight, there, work.matrix, step);
#pragma unroll 1
  for (int s = 0; s < min(kAhead, count); ++s) ring.fetch_weights(weights, ring.stage(s));
  if (launch.items == nullptr) wait_for_earlier();
  find_pairs_of(pairs, kRows, launch, work);
  __syncthreads();
  const int pairs_per_row = product.lists.pairs_per_row;
  ManyX<kXTiles> x(launch.x, weight.steps(), step, work.row_count,
                   [&](int row) { return pairs[row] / pairs_per_row; });
#pragma unroll 1
  for (int s = 0; s < kAhead; ++s) {
    if (s < count) ring.fetch_x(x, ring.stage(s));
    end_copies();
  }
  Sums total[kXTiles][kWarpTiles] = {};
  add_steps<kBits, kXTiles, kTwoGroups>(total, ring, reinterpret_cast<const std::byte*>(stages),
                                        launch, work, tiles[0] <= last, [&](uint32_t stage) {
                                          ring.fetch_weights(weights, stage);
                                          ring.fetch_x(x, stage);
                                        });
  write_many<kBits, kXTiles>(launch, total, tiles, pairs, work.row_count);
}

// Defined for the bits of codes, and kPlainBits, in product_many_*.cu.
template <int kBits>
void launch_many(cudaStream_t stream, const ManyLaunch& launch, int x_tiles, dim3 grid);

}  // namespace flashlane::kernels::cuda
