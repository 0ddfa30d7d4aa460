// What the kernels of sparse attention share: where a row stands, cache rows as quads of floats,
// products of a few queries with a run of keys, and the two arithmetics of attention, by floats and
// by tensor cores, for threads that work on one row together.
#pragma once

#include <cstddef>

#include "base/int_math.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/product_tile.cuh"

namespace flashlane::kernels::cuda {

inline constexpr int kKeyThreads = 128;  // that work on one row's keys together
inline constexpr int kKeyWarps = kKeyThreads / kWarp;
inline constexpr int kRun = 64;              // keys that they multiply at once
inline constexpr int kRunStride = kRun + 4;  // between queries; keeps banks apart
inline constexpr int kQueriesOfFloats = 4;   // that multiply_keys takes

inline constexpr int kQuad = 4;
struct alignas(16) Quad {
  float of[kQuad];
};

// What all kernels here are given.
struct Forward {
  Segments segments;
  CacheView cache;
  AttentionWeights w;
  // Where a row stands: its sequence's page table, its own position, and the first one of its
  // sequence in this forward. Tables come by copies of the stream, which no kernel runs beside:
  // they may be read before wait_for_earlier.
  struct Place {
    const int32_t* table;
    int position;
    int start_position;
  };
  __device__ Place place(int row) const {
    const int s = segment_of(segments, row);
    const Segment& own = segments.of[s];
    return {cache.tables[s], own.start_position + row - own.first_row, own.start_position};
  }
};

// Of this thread, in its block.
struct Thread {
  static __device__ int index() { return static_cast<int>(threadIdx.x); }
  static __device__ int lane() { return index() % kWarp; }
  static __device__ int warp() { return index() / kWarp; }
};
// Of this thread, among the kKeyThreads of its block that have its row.
struct KeyThread {
  static __device__ int index() { return Thread::index() % kKeyThreads; }
  static __device__ int lane() { return Thread::lane(); }
  static __device__ int warp() { return index() / kWarp; }
  static __device__ int row() { return Thread::index() / kKeyThreads; }  // in the block
};

// Has lines sent from the GPU's memory to the cache that all its processors share, where they stay
// what they are for everybody. Nothing is read, so this may be done before wait_for_earlier.
__device__ inline void ask_for(const std::byte* from, int bytes) {
  constexpr int kLine = 128;
  for (int at = 0; at < bytes; at += kLine) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
  }
}

// Copies to shared memory that don't hold the thread up: 4 bytes or 16, aligned to as many. They
// have arrived, for the thread itself, behind await_copies.
template <int kBytes>
__device__ inline void start_copy(void* to, const void* from) {
  static_assert(kBytes == 4 || kBytes == 16);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(
                   static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from), "n"(kBytes)
               : "memory");
}
__device__ inline void await_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// Elements at … at + 3 of a row of the cache or a query; zeros where it ends. kWide: rows are
// aligned and whole quads, so that one load does. The compiler may move __ldg before
// wait_for_earlier; it is for rows whose addresses were made behind that.
template <typename T, bool kWide_>
struct Loader {
  static constexpr bool kWide = kWide_;
  static __device__ Quad quad(const std::byte* row, int at, int width) {
    const T* x = reinterpret_cast<const T*>(row) + at;
    if constexpr (!kWide) {
      return narrow(x, width - at);
    } else if constexpr (sizeof(T) == sizeof(float)) {
      const float4 all = __ldg(reinterpret_cast<const float4*>(x));
      return {all.x, all.y, all.z, all.w};
    } else {
      const uint2 two = __ldg(reinterpret_cast<const uint2*>(x));
      return {__uint_as_float(two.x << 16), __uint_as_float(two.x & 0xffff0000U),
              __uint_as_float(two.y << 16), __uint_as_float(two.y & 0xffff0000U)};
    }
  }
  static __device__ Quad of_query(const float* query, int at, int width) {
    if constexpr (!kWide) return narrow(query + at, width - at);
    return *reinterpret_cast<const Quad*>(query + at);
  }

 private:
  template <typename Element>
  static __device__ Quad narrow(const Element* x, int left) {
    const auto one = [&](int i) { return i < left ? static_cast<float>(x[i]) : 0.0F; };
    return {one(0), one(1), one(2), one(3)};
  }
};

// products[query][key] of kRun keys, by kKeyThreads threads; products and keys lie in
// shared memory. queries: `given` of kQueriesOfFloats, each `stride` behind the one before; the
// others' products mean nothing. Eight lanes take quads of a product in turn and meet by halves.
template <typename Load>
__device__ void multiply_keys(float (*products)[kRunStride], const float* queries, int64_t stride,
                              int given, int dims, const std::byte* const* keys) {
  constexpr int kLanes = 8;
  constexpr int kGroups = kKeyThreads / kLanes;
  constexpr int kKeys = kRun / kGroups;  // of a group of lanes
  const int lane = KeyThread::index() % kLanes;
  const int group = KeyThread::index() / kLanes;
  float sums[kKeys][kQueriesOfFloats] = {};
  const std::byte* rows[kKeys];
  for (int n = 0; n < kKeys; ++n) rows[n] = keys[group + n * kGroups];
  for (int at = lane * kQuad; at < dims; at += kLanes * kQuad) {
    Quad key[kKeys];
    for (int n = 0; n < kKeys; ++n) key[n] = Load::quad(rows[n], at, dims);
#pragma unroll
    for (int q = 0; q < kQueriesOfFloats; ++q) {
      const float* query = queries + min(q, given - 1) * stride;
      const Quad x = Load::of_query(query, at, dims);
      for (int n = 0; n < kKeys; ++n) {
        for (int j = 0; j < kQuad; ++j) sums[n][q] = fmaf(x.of[j], key[n].of[j], sums[n][q]);
      }
    }
  }
#pragma unroll
  for (int q = 0; q < kQueriesOfFloats; ++q) {
    for (int n = 0; n < kKeys; ++n) {
      float sum = sums[n][q];
      for (int step = kLanes / 2; step > 0; step /= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, step);
      }
      if (lane == 0) products[q][group + n * kGroups] = sum;
    }
  }
}

// Calls with the loader of rows of `width` values, which are multiplied with `queries`.
template <typename Call>
void with_loader(const KvPages& pages, const float* queries, int width, const Call& call) {
  const size_t at = reinterpret_cast<size_t>(pages.base) | pages.page_bytes | pages.key_offset |
                    pages.value_offset | pages.pooled_offset;
  const bool wide = width % kQuad == 0 && at % (kQuad * dtype_bytes(pages.dtype)) == 0 &&
                    reinterpret_cast<size_t>(queries) % sizeof(Quad) == 0;
  if (pages.dtype == DType::kF32) {
    wide ? call(Loader<float, true>()) : call(Loader<float, false>());
  } else {
    wide ? call(Loader<__nv_bfloat16, true>()) : call(Loader<__nv_bfloat16, false>());
  }
}

inline constexpr int kPanel = 256;  // output dims of one thread block

// A row's softmax over some of its keys.
struct Softmax {
  float highest;
  float total;  // of the weights under `highest`
};
// What sums under two maxima are worth under the higher one.
struct Shares {
  float before, part;
};
// A row's place of work in shared memory. Two of what differs from part to part: faster warps make
// the next part's products while slower ones are still at this part's values.
template <typename Arithmetic>
struct AttendShared {
  static constexpr int kHeads = Arithmetic::kHeads;
  using Weights = float[kHeads][kRunStride];  // first the products
  alignas(16) Weights weights[2];
  alignas(16) const std::byte* keys[2][kRun];
  union alignas(16) {
    typename Arithmetic::Queries queries;
    float sums[kHeads][kPanel + 4];  // in the end; padded against conflicts of banks
  };
  Softmax softmax[kHeads];  // of the parts so far
  Shares shares[kHeads];    // of them and the newest part
};

// How products and weighed values are made decides bits, so it is chosen by the shape of the heads
// and the dtype of the cache alone. Plain floats do for any; a thread has two heads at one quad.
template <typename Load>
struct ByFloats {
  static constexpr int kHeads = kQueriesOfFloats;
  static constexpr int kTileHeads = kHeads;  // of one thread block
  static constexpr int kQuads = 2;           // of sums, of a thread
  static constexpr int kQuadsOfPanel = kPanel / kQuad;
  static_assert(kKeyThreads * kQuads == kHeads * kQuadsOfPanel);
  static constexpr bool kWide = Load::kWide;
  struct Queries {};
  struct Values {};
  using Shared = AttendShared<ByFloats>;

  static __device__ int head(int n) { return KeyThread::index() / kQuadsOfPanel * kQuads + n; }
  static __device__ int dim(int /*n*/) { return KeyThread::index() % kQuadsOfPanel * kQuad; }
  static __device__ void take_queries(Queries&, const float*, int, int) {}
  template <bool kAhead>
  static __device__ void multiply(Shared& shared, int now, const float* query, int heads, int dims,
                                  int /*count*/) {
    multiply_keys<Load>(shared.weights[now], query, 2 * dims, heads, dims, shared.keys[now]);
  }
  static __device__ void load_values(Values&, const Shared&, ptrdiff_t, int, int) {}
  template <bool kAhead>
  static __device__ void weigh(Quad (&sums)[kQuads], const Shared& shared, int now, Values&,
                               ptrdiff_t to_value, int panel, int dims, int count) {
    const int at = panel + dim(0);
    if (at >= dims) return;
    for (int first = 0; first < count; first += kQuad) {
      Quad weights[kQuads];
      for (int n = 0; n < kQuads; ++n) {
        weights[n] = *reinterpret_cast<const Quad*>(&shared.weights[now][head(n)][first]);
      }
      for (int i = 0; i < kQuad; ++i) {
        const Quad value = Load::quad(shared.keys[now][first + i] + to_value, at, dims);
        for (int n = 0; n < kQuads; ++n) {
          for (int j = 0; j < kQuad; ++j) {
            sums[n].of[j] = fmaf(weights[n].of[i], value.of[j], sums[n].of[j]);
          }
        }
      }
    }
  }
};

// By shape and dtype alone.
inline bool suits_tensor_cores(const KvPages& pages, int dims) {
  constexpr int kWhole = 64;  // dims of a warp
  return pages.dtype == DType::kBf16 && dims % kWhole == 0 && dims <= kPanel;
}

// Two floats as the sum of two pairs of bf16 values, which keep 16 bits of each.
struct Pieces {
  uint32_t high, low;
};
__device__ inline Pieces pieces_of(float a, float b) {
  const uint32_t high = pack_bf16(a, b);
  const uint32_t low =
      pack_bf16(a - __uint_as_float(high << 16), b - __uint_as_float(high & 0xffff0000U));
  return {high, low};
}

// Tensor cores, for caches in bf16: what the cache holds enters as it is, queries and weights in
// two pieces, so that little more than the order of sums differs from floats. Which column of a
// tile a dim or a key becomes is free; it is chosen so that a lane loads 16 bytes of a row at once.
// Heads don't meet, so it decides no bit how many share a thread block: kTileHeads, which fill
// kTiles tiles of eight or less.
template <int kTiles, int kTileHeads_>
struct ByTensorCores {
  static constexpr int kColumns = 8;  // heads of one multiplication; dims that a lane loads at once
  static constexpr int kHeads = kTiles * kColumns;
  static constexpr int kTileHeads = kTileHeads_;
  static constexpr int kQuads = 4 * kTiles;
  static constexpr bool kWide = true;
  static constexpr int kTile = 16;      // keys of one multiplication
  static constexpr int kStep = 32;      // dims that the lanes of a row load at once
  static constexpr int kWarpDims = 64;  // output dims of a warp
  static_assert(kTile * kKeyWarps == kRun && kWarpDims * kKeyWarps == kPanel);
  static_assert(kTiles <= 2 && kTileHeads <= kHeads);
  // Pieces of four dims: high, low, high, low; padded, so that neighbours lie in other banks.
  struct Queries {
    uint4 of[kHeads][kPanel / kQuad + 1];
  };
  struct Values {
    uint4 of[kRun / kTile][4];
  };
  using Shared = AttendShared<ByTensorCores>;

  static __device__ int in_eight() { return KeyThread::lane() / 4; }
  static __device__ int in_four() { return KeyThread::lane() % 4; }
  static __device__ int head(int n) { return in_eight() + n / 4 * 8; }
  static __device__ int dim(int n) {
    return KeyThread::warp() * kWarpDims + in_four() * 16 + n % 4 * kQuad;
  }
  // Volatile, so that it is sent for where it stands, and not moved behind a barrier.
  static __device__ uint4 load(const void* from) {
    uint4 v;
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
  }

  // All are loaded before the first is split. What lies where there is no head means nothing, nor
  // do products with it.
  static __device__ void take_queries(Queries& queries, const float* query, int heads, int dims) {
    constexpr int kLoads = kHeads / kKeyWarps;
    constexpr int kTimes = kPanel / (kWarp * kQuad);
    Quad x[kLoads][kTimes] = {};
#pragma unroll
    for (int n = 0; n < kLoads * kTimes; ++n) {
      const int h = KeyThread::warp() + n / kTimes * kKeyWarps;
      const int at = (KeyThread::lane() + n % kTimes * kWarp) * kQuad;
      if (h >= heads || at >= dims) continue;
      x[n / kTimes][n % kTimes] = *reinterpret_cast<const Quad*>(query + 2 * h * dims + at);
    }
#pragma unroll
    for (int n = 0; n < kLoads * kTimes; ++n) {
      const int h = KeyThread::warp() + n / kTimes * kKeyWarps;
      const int at = (KeyThread::lane() + n % kTimes * kWarp) * kQuad;
      if (h >= heads) break;
      const Quad& own = x[n / kTimes][n % kTimes];
      const Pieces first = pieces_of(own.of[0], own.of[1]);
      const Pieces second = pieces_of(own.of[2], own.of[3]);
      queries.of[h][at / kQuad] = {first.high, first.low, second.high, second.low};
    }
  }

  static __device__ void take_gates(float* gates, const float* query, int heads, int dims) {
#pragma unroll 1
    for (int h = KeyThread::warp(); h < heads; h += kKeyWarps) {
      for (int at = KeyThread::lane() * kQuad; at < dims; at += kWarp * kQuad) {
        start_copy<sizeof(Quad)>(gates + h * kPanel + at, query + (2 * h + 1) * dims + at);
      }
    }
  }

  // A warp takes a tile of keys, a lane 8 dims of two of them in each step. The high and the low
  // pieces of eight heads are the rows of a multiplication, eight keys its columns; the four sums
  // of a product meet at the end. kAhead: all of a key is loaded before its first product, else
  // some.
  template <bool kAhead>
  static __device__ void multiply(Shared& shared, int now, const float*, int, int dims, int count) {
    const int first = KeyThread::warp() * kTile;
    if (first >= count) return;
    const std::byte* upper = shared.keys[now][first + in_eight()] + in_four() * sizeof(uint4);
    const std::byte* lower = shared.keys[now][first + 8 + in_eight()] + in_four() * sizeof(uint4);
    StepSums sums[kTiles] = {};
    constexpr int kSteps = kPanel / kStep;
    constexpr int kLoads = kAhead ? kSteps : 4;
    uint4 a[kLoads], b[kLoads];
    const auto load_step = [&](int n) {
      if (n >= kSteps || n * kStep >= dims) return;
      a[n % kLoads] = load(upper + n * kStep * 2);
      b[n % kLoads] = load(lower + n * kStep * 2);
    };
#pragma unroll
    for (int n = 0; n < kLoads; ++n) load_step(n);
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      if (n * kStep >= dims) break;
      multiply_step(sums, shared.queries, n * kStep, a[n % kLoads], b[n % kLoads]);
      load_step(n + kLoads);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const Sums& even = sums[tile].of[0][half];
        const Sums& odd = sums[tile].of[1][half];
        float* to = &shared.weights[now][tile * kColumns + in_eight()][first + half * 8];
        *reinterpret_cast<float2*>(to + 2 * in_four()) = {(even[0] + odd[0]) + (even[2] + odd[2]),
                                                          (even[1] + odd[1]) + (even[3] + odd[3])};
      }
    }
  }

  // A lane takes the 8 dims at 8 * in_eight() of its warp's, of keys 4 * in_four() and on.
  static __device__ void load_tile(uint4 (&v)[4], const Shared& shared, int now, ptrdiff_t to_value,
                                   int first) {
    const std::byte* const* keys = &shared.keys[now][first + in_four() * 4];
    const ptrdiff_t at = to_value + (KeyThread::warp() * kWarpDims + in_eight() * kColumns) * 2;
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = load(keys[k] + at);
  }
  static __device__ void load_values(Values& values, const Shared& shared, ptrdiff_t to_value,
                                     int dims, int count) {
    if (KeyThread::warp() * kWarpDims >= dims) return;
#pragma unroll
    for (int n = 0; n < kRun / kTile; ++n) {
      if (n * kTile < count) load_tile(values.of[n], shared, 0, to_value, n * kTile);
    }
  }

  // kAhead: the values have been loaded; else a tile's are while the one before is multiplied.
  template <bool kAhead>
  static __device__ void weigh(Quad (&sums)[kQuads], const Shared& shared, int now, Values& values,
                               ptrdiff_t to_value, int /*panel*/, int dims, int count) {
    if (KeyThread::warp() * kWarpDims >= dims) return;
    Sums products[kColumns] = {};
    if (!kAhead) load_tile(values.of[0], shared, now, to_value, 0);
#pragma unroll
    for (int n = 0; n < kRun / kTile; ++n) {
      if (n * kTile >= count) break;
      const bool is_more = !kAhead && n + 1 < kRun / kTile && (n + 1) * kTile < count;
      if (is_more) load_tile(values.of[(n + 1) % 2], shared, now, to_value, (n + 1) * kTile);
      weigh_tile(products, shared.weights[now], n * kTile, values.of[kAhead ? n : n % 2]);
    }
#pragma unroll
    for (int n = 0; n < kQuads; ++n) {
      for (int j = 0; j < kQuad; ++j) sums[n].of[j] = products[n % 2 * kQuad + j][n / 2];
    }
  }

 private:
  struct StepSums {
    Sums of[2][2];  // of the even and the odd quads of dims; of the first and the last eight keys
  };
  static __device__ void multiply_step(StepSums (&sums)[kTiles], const Queries& queries, int begin,
                                       const uint4& a, const uint4& b) {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint4* q = &queries.of[tile * kColumns + in_eight()][begin / kQuad + 2 * in_four()];
      const uint32_t even[] = {q[0].x, q[0].y, q[0].z, q[0].w};
      const uint32_t odd[] = {q[1].x, q[1].y, q[1].z, q[1].w};
      multiply_tile(sums[tile].of[0][0], even, a.x, a.y);
      multiply_tile(sums[tile].of[0][1], even, b.x, b.y);
      multiply_tile(sums[tile].of[1][0], odd, a.z, a.w);
      multiply_tile(sums[tile].of[1][1], odd, b.z, b.w);
    }
  }

  static __device__ void weigh_tile(Sums (&products)[kColumns],
                                    const typename Shared::Weights& weights, int first,
                                    const uint4 (&v)[4]) {
    const int key = first + in_four() * 4;
    uint32_t high[4] = {};
    uint32_t low[4] = {};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const Quad own = *reinterpret_cast<const Quad*>(&weights[in_eight() + tile * 8][key]);
      const Pieces a = pieces_of(own.of[0], own.of[1]);
      const Pieces b = pieces_of(own.of[2], own.of[3]);
      high[tile] = a.high, high[2 + tile] = b.high;
      low[tile] = a.low, low[2 + tile] = b.low;
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const uint32_t first_keys = pair_at(j, v[0], v[1]);
      const uint32_t last_keys = pair_at(j, v[2], v[3]);
      multiply_tile(products[j], high, first_keys, last_keys);
      multiply_tile(products[j], low, first_keys, last_keys);
    }
  }

  // The j-th of eight values of two rows, side by side.
  static __device__ uint32_t pair_at(int j, const uint4& x, const uint4& y) {
    const uint32_t from[] = {x.x, x.y, x.z, x.w};
    const uint32_t with[] = {y.x, y.y, y.z, y.w};
    return __byte_perm(from[j / 2], with[j / 2], j % 2 == 0 ? 0x5410 : 0x7632);
  }
};

}  // namespace flashlane::kernels::cuda
