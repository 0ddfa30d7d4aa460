// What the kernels of sparse attention share: where a row stands, cache rows as quads of floats,
// and products of a few queries with a run of keys.
#pragma once

#include <cstddef>

#include "base/int_math.h"
#include "kernels/cuda/device_code.cuh"

namespace flashlane::kernels::cuda {

inline constexpr int kKeyThreads = 128;  // of a thread block that multiplies keys
inline constexpr int kKeyWarps = kKeyThreads / kWarp;
inline constexpr int kRun = 64;              // keys that it multiplies at once
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
  // Of a row's own sequence.
  __device__ const int32_t* table(int row) const { return cache.tables[segment_of(segments, row)]; }
  __device__ int position(int row) const {
    const Segment& own = segments.of[segment_of(segments, row)];
    return own.start_position + row - own.first_row;
  }
};

// Of this thread, in its block.
struct Thread {
  static __device__ int index() { return static_cast<int>(threadIdx.x); }
  static __device__ int lane() { return index() % kWarp; }
  static __device__ int warp() { return index() / kWarp; }
};

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

// products[query][key] of kRun keys, by a thread block of kKeyThreads; products and keys lie in
// shared memory. queries: `given` of kQueriesOfFloats, each `stride` behind the one before; the
// others' products mean nothing. Eight lanes take quads of a product in turn and meet by halves.
template <typename Load>
__device__ void multiply_keys(float (*products)[kRunStride], const float* queries, int64_t stride,
                              int given, int dims, const std::byte* const* keys) {
  constexpr int kLanes = 8;
  constexpr int kGroups = kKeyThreads / kLanes;
  constexpr int kKeys = kRun / kGroups;  // of a group of lanes
  const int lane = Thread::index() % kLanes;
  const int group = Thread::index() / kLanes;
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

}  // namespace flashlane::kernels::cuda
