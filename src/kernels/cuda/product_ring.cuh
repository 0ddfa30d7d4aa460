// How a warp multiplies slices of a tile of weights with up to 16 rows of x: weights come through a
// ring in shared memory, x lies in units (product_x.cuh). The order of sums: product_tile.cuh.
#pragma once

#include "kernels/cuda/product_x.cuh"

namespace flashlane::kernels::cuda {

// Steps go through a ring by pairs; as many pairs of a warp are under way, or all.
inline constexpr int kPair = 2;
__host__ __device__ constexpr int slots_of(int bits) {
  return bits <= 6 ? 3 : 2;
}

// A warp's ring of pairs of steps of its slice, whose codes lie side by side, and so do its scales.
template <int kBits>
struct TileRing {
  static constexpr int kPiece = 16;  // bytes of one copy
  static constexpr int kStepBytes = kBits * 128;
  static constexpr int kCodePieces = kPair * kStepBytes / kPiece;

  const std::byte* codes;   // this lane's piece of the next pair to fetch
  const std::byte* scales;  // likewise
  int codes_left;           // bytes of the slice from there on
  int scales_left;
  uint32_t to;             // where in shared memory that piece goes
  int put = 0;             // slot
  const std::byte* first;  // the ring's slots, and the one to read next
  const std::byte* now;
  int stride;       // of slots
  int scale_bytes;  // of a step

  // Of `steps` steps. from_codes, from_scales: of the first; own: the ring's place.
  __device__ __forceinline__ TileRing(const std::byte* from_codes, const std::byte* from_scales,
                                      int steps, int scales_of_step, std::byte* own,
                                      int stage_bytes)
      : first(own), now(own), stride(kPair * stage_bytes), scale_bytes(scales_of_step) {
    const int piece = static_cast<int>(threadIdx.x) % kWarp * kPiece;
    codes = from_codes + piece;
    scales = from_scales + piece;
    codes_left = steps * kStepBytes - piece;
    scales_left = steps * scale_bytes - piece;
    to = static_cast<uint32_t>(__cvta_generic_to_shared(own)) + static_cast<uint32_t>(piece);
  }
  // The next pair, or what is left of it.
  __device__ __forceinline__ void fetch() {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const uint32_t place = to + static_cast<uint32_t>(put * stride);
#pragma unroll
    for (int piece = 0; piece < kCodePieces; piece += kWarp) {
      const bool whole = piece + kWarp <= kCodePieces;
      if ((whole || lane < kCodePieces - piece) && piece * kPiece < codes_left) {
        copy_piece(place + static_cast<uint32_t>(piece * kPiece), codes + piece * kPiece);
      }
    }
    if (lane * kPiece < kPair * scale_bytes && scales_left > 0) {
      copy_piece(place + static_cast<uint32_t>(kCodePieces * kPiece), scales);
    }
    end_copies();
    codes += kCodePieces * kPiece;
    codes_left -= kCodePieces * kPiece;
    scales += kPair * scale_bytes;
    scales_left -= kPair * scale_bytes;
    put = put + 1 == slots_of(kBits) ? 0 : put + 1;
  }
  __device__ __forceinline__ void fill() {
#pragma unroll 1
    for (int slot = 0; slot < slots_of(kBits); ++slot) fetch();
  }
  __device__ __forceinline__ void wait() const {
    wait_for_copies<slots_of(kBits) - 1>();
    __syncwarp();  // the other lanes' pieces are there, too
  }
  // All lanes are done with the pair that was waited for.
  __device__ __forceinline__ void advance() {
    __syncwarp();
    fetch();
    now = put == 0 ? first : now + stride;
  }
  // Of step `j` of the pair, its unit `u`'s group; where a step has one group, of unit 1's.
  template <bool kTwo, bool kWide>
  __device__ __forceinline__ Scales scales_of(int j, int u) const {
    constexpr int kGroupBytes = kTileRows * (kWide ? 8 : 4);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const std::byte* from = now + kPair * kStepBytes + (kTwo ? 2 * j + u : j) * kGroupBytes +
                            lane / 4 * (kGroupBytes / 8);
    if constexpr (kWide) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      return {{v.x, v.z}, {v.y, v.w}};
    } else {
      const uint2 v = *reinterpret_cast<const uint2*>(from);
      return unpack_scales(v.x, v.y);
    }
  }
};

// A step of x, as a lane multiplies it: its row, and the sums of the rows whose products it has.
template <int kXTiles>
struct StepOfX {
  uint32_t values[kXTiles][2][4];
  float2 sums[kXTiles][2];
};

// Where those are.
template <int kXTiles>
struct LaneOfX {
  const std::byte* values[kXTiles];  // of the next step; of what is no row, of the last one
  const float2* sums[kXTiles][2];
  int stride;  // of units, bytes
  int rows;

  // From step `step` on. row_of(n): where row n of the product lies in x, n < row_count.
  template <typename RowOf>
  __device__ __forceinline__ LaneOfX(const XUnits& x, int step, int row_count, RowOf row_of)
      : stride(x.rows * kUnitBytes), rows(x.rows) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int n = 0; n < kXTiles; ++n) {
      const int own = row_of(min(n * kXTileRows + lane / 4, row_count - 1));
      values[n] = x.values + int64_t{2 * step} * stride + own * kUnitBytes + lane % 4 * 16;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int other = row_of(min(n * kXTileRows + lane % 4 * 2 + i, row_count - 1));
        sums[n][i] = x.sums + int64_t{step} * rows + other;
      }
    }
  }
  template <int kBits>
  __device__ __forceinline__ void load(StepOfX<kXTiles>& to) {
#pragma unroll
    for (int n = 0; n < kXTiles; ++n) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const uint4 v = *reinterpret_cast<const uint4*>(values[n] + u * stride);
        to.values[n][u][0] = v.x, to.values[n][u][1] = v.y;
        to.values[n][u][2] = v.z, to.values[n][u][3] = v.w;
        if constexpr (kBits != kPlainBits) {
          to.sums[n][u] = *sums[n][u];
          sums[n][u] += rows;
        }
      }
      values[n] += 2 * stride;
    }
  }
};

// total += the product of step `j` of the ring's pair.
template <int kBits, int kXTiles, bool kTwo, bool kWide>
__device__ __forceinline__ void add_step(Sums (&total)[kXTiles], const TileRing<kBits>& ring, int j,
                                         const StepOfX<kXTiles>& x) {
  uint32_t words[kBits];
  load_codes<kBits>(words, ring.now + j * TileRing<kBits>::kStepBytes,
                    static_cast<int>(threadIdx.x) % kWarp);
  Sums part[kXTiles] = {};
#pragma unroll
  for (int u = 0; u < 2; ++u) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint32_t weights[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) weights[r] = code_pair<kBits>(words, u * 8 + m * 4 + r);
#pragma unroll
      for (int n = 0; n < kXTiles; ++n) {
        multiply_tile(kBits == kPlainBits ? total[n] : part[n], weights, x.values[n][u][2 * m],
                      x.values[n][u][2 * m + 1]);
      }
    }
    if constexpr (kBits != kPlainBits) {
      if (u == 0 && !kTwo) continue;
      const Scales scales = ring.template scales_of<kTwo, kWide>(j, u);
#pragma unroll
      for (int n = 0; n < kXTiles; ++n) {
        const float2(&sums)[2] = x.sums[n];
        if constexpr (kTwo) {
          add_group(total[n], part[n], scales, u == 0 ? sums[0].x : sums[0].y,
                    u == 0 ? sums[1].x : sums[1].y);
        } else {
          add_group(total[n], part[n], scales, sums[0].x + sums[0].y, sums[1].x + sums[1].y);
        }
      }
    }
  }
}

// What a warp multiplies: steps [begin, end) of a chunk, which are whole slices.
struct SliceRange {
  int begin, end;
  int slices, chunk_steps;
  int next_slice;  // that the step slice_end begins
  int slice_end;

  // index: of the warp among those of the tile, which are 1 or as many as slices.
  __device__ __forceinline__ SliceRange(int index, int warps, int all, int steps)
      : begin(slice_begin(index, all, steps)),
        slices(all),
        chunk_steps(steps),
        next_slice(index + 1),
        slice_end(slice_begin(index + 1, all, steps)) {
    end = warps == 1 ? steps : slice_end;
  }
  __device__ __forceinline__ void advance() {
    ++next_slice;
    slice_end = slice_begin(next_slice, slices, chunk_steps);
  }
};

// sum += the slices' sums, each from zero.
template <int kBits, int kXTiles, bool kTwo, bool kWide>
__device__ __forceinline__ void multiply_slices(Sums (&sum)[kXTiles], TileRing<kBits>& ring,
                                                LaneOfX<kXTiles>& lane, SliceRange& range) {
  StepOfX<kXTiles> x[kPair];
  Sums total[kXTiles] = {};
  const auto end_slice = [&] {
#pragma unroll
    for (int n = 0; n < kXTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sum[n][i] += total[n][i];
        total[n][i] = 0;
      }
    }
    range.advance();
  };
  int step = range.begin;
#pragma unroll 1
  for (; step + 1 < range.end; step += kPair) {
    lane.template load<kBits>(x[0]);
    lane.template load<kBits>(x[1]);
    ring.wait();
    add_step<kBits, kXTiles, kTwo, kWide>(total, ring, 0, x[0]);
    add_step<kBits, kXTiles, kTwo, kWide>(total, ring, 1, x[1]);
    if (step + kPair == range.slice_end) end_slice();
    ring.advance();
  }
  if (step == range.end) return;
  lane.template load<kBits>(x[0]);  // an odd one ends the chunk
  ring.wait();
  add_step<kBits, kXTiles, kTwo, kWide>(total, ring, 0, x[0]);
  end_slice();
}

// By the form of the weight's scales.
template <int kBits, int kXTiles>
__device__ __forceinline__ void multiply_by_form(Sums (&sum)[kXTiles], TileRing<kBits>& ring,
                                                 LaneOfX<kXTiles>& lane, SliceRange& range,
                                                 const DeviceMatrix& weight) {
  if constexpr (kBits == kPlainBits) {
    multiply_slices<kBits, kXTiles, false, false>(sum, ring, lane, range);
  } else if (weight.two_groups()) {
    if (weight.wide_scales()) {
      multiply_slices<kBits, kXTiles, true, true>(sum, ring, lane, range);
    } else {
      multiply_slices<kBits, kXTiles, true, false>(sum, ring, lane, range);
    }
  } else if (weight.wide_scales()) {
    multiply_slices<kBits, kXTiles, false, true>(sum, ring, lane, range);
  } else {
    multiply_slices<kBits, kXTiles, false, false>(sum, ring, lane, range);
  }
}

}  // namespace flashlane::kernels::cuda
