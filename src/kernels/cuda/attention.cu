// Sparse attention on the GPU: over the row's own keys, by parts. A row's visible keys (selected
// blocks ascending, then the tail) fall into parts of kRun by their index in that list alone. Each
// part gives its highest product, the total of its weights and its weighed values, as if it were
// all; parts then meet in ascending order by one formula. A forward of few rows has a thread block
// for each part, others take a row's parts in turn: who does it, what shares a thread block, load
// widths and pages decide no bit.
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/product_tile.cuh"

namespace flashlane::kernels::cuda {
namespace {

constexpr int kMostParts = 2048;  // that are split
constexpr int kPanel = 256;       // output dims of one thread block
constexpr int kMeetThreads = 128;

// A row's softmax over some of its keys.
struct Softmax {
  float highest;
  float total;  // of the weights under `highest`
};
__device__ inline Softmax of_no_keys() {
  return {-INFINITY, 0};
}
// What sums under two maxima are worth under the higher one.
struct Shares {
  float before, part;
};
// The one way in which a part joins the parts before it, for totals and for weighed values.
__device__ inline Shares shares_of(float before, float part) {
  const float highest = fmaxf(before, part);
  return {exp_f32(before - highest), exp_f32(part - highest)};
}
__device__ inline float join(float before, float part, const Shares& shares) {
  return fmaf(before, shares.before, part * shares.part);
}

// What parts give where each has a thread block of its own.
struct Parts {
  Softmax* softmax;  // [rows, heads, most]
  float* sums;       // [rows, heads, most, head_dim]
  int most;
};

// The output of one dim: the gate stands behind the head's query.
__device__ inline float gated(float sum, float total, const float* query, int head_dim, int dim) {
  return sum / total * sigmoid_f32(query[head_dim + dim]);
}

// The keys that a row sees.
struct Visible {
  const int32_t* table;
  const int32_t* blocks;
  int chosen;  // blocks
  int tokens;
  int count;
  __device__ Visible(const Forward& forward, const int32_t* all_blocks, const int32_t* counts,
                     int stride, int row)
      : table(forward.table(row)),
        blocks(all_blocks + int64_t{row} * stride),
        chosen(counts[row]),
        tokens(forward.position(row) + 1),
        count(chosen * forward.w.block_tokens + tokens % forward.w.block_tokens) {}
  // The i-th; the tail comes behind the chosen blocks.
  __device__ const std::byte* key(const Forward& forward, int kv_head, int i) const {
    const AttentionWeights& w = forward.w;
    const int n = i / w.block_tokens;
    const int block = n < chosen ? blocks[n] : tokens / w.block_tokens;
    const int token = block * w.block_tokens + i % w.block_tokens;
    return cached_row(forward.cache.pages, table, forward.cache.pages.key_offset, kv_head, token,
                      w.head_dim);
  }
};

// The keys from `first` on to shared memory, the last one again where there are less than kRun.
// kAhead: keys and values are sent for, so that they come from the GPU's memory all at once.
template <bool kAhead>
__device__ void list_keys(const std::byte** keys, const Visible& visible, int first, int kv_head,
                          const Forward& forward) {
  static_assert(kKeyThreads == 2 * kRun);
  const KvPages& pages = forward.cache.pages;
  const int own = Thread::index() % kRun;
  const std::byte* key = visible.key(forward, kv_head, min(first + own, visible.count - 1));
  const bool of_keys = Thread::index() < kRun;
  if (of_keys) keys[own] = key;
  if constexpr (kAhead) {
    constexpr int kLine = 128;
    const std::byte* from = of_keys ? key : key + (pages.value_offset - pages.key_offset);
    const int bytes = forward.w.head_dim * static_cast<int>(cached_bytes(pages.dtype));
    for (int at = 0; at < bytes; at += kLine) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
    }
  }
}

template <typename Arithmetic>
struct AttendShared {
  static constexpr int kHeads = Arithmetic::kHeads;
  alignas(16) float weights[kHeads][kRunStride];  // first the products
  alignas(16) const std::byte* keys[kRun];
  alignas(16) typename Arithmetic::Queries queries;
  Softmax softmax[kHeads];  // of the parts so far
  Shares shares[kHeads];    // of them and the newest part
};

// Where a thread block's queries and outputs lie.
struct Tile {
  int kv_head;
  int heads;
  int panel;     // its first output dim
  int64_t head;  // its first query head, among those of all rows
};

// How products and weighed values are made decides bits, so it is chosen by the shape of the heads
// and the dtype of the cache alone. Plain floats do for any; a thread has two heads at one quad.
template <typename Load>
struct ByFloats {
  static constexpr int kHeads = kQueriesOfFloats;
  static constexpr int kQuads = 2;  // of sums, of a thread
  static constexpr int kQuadsOfPanel = kPanel / kQuad;
  static_assert(kKeyThreads * kQuads == kHeads * kQuadsOfPanel);
  static constexpr bool kWide = Load::kWide;
  struct Queries {};
  using Shared = AttendShared<ByFloats>;

  static __device__ int head(int n) { return Thread::index() / kQuadsOfPanel * kQuads + n; }
  static __device__ int dim(int /*n*/) { return Thread::index() % kQuadsOfPanel * kQuad; }
  static __device__ void take_queries(Shared&, const float*, int, int) {}
  template <bool kSplit>
  static __device__ void multiply(Shared& shared, const float* query, int heads, int dims,
                                  int /*count*/) {
    multiply_keys<Load>(shared.weights, query, 2 * dims, heads, dims, shared.keys);
  }
  template <bool kSplit>
  static __device__ void weigh(Quad (&sums)[kQuads], const Shared& shared, ptrdiff_t to_value,
                               int panel, int dims, int count) {
    const int at = panel + dim(0);
    if (at >= dims) return;
    for (int first = 0; first < count; first += kQuad) {
      Quad weights[kQuads];
      for (int n = 0; n < kQuads; ++n) {
        weights[n] = *reinterpret_cast<const Quad*>(&shared.weights[head(n)][first]);
      }
      for (int i = 0; i < kQuad; ++i) {
        const Quad value = Load::quad(shared.keys[first + i] + to_value, at, dims);
        for (int n = 0; n < kQuads; ++n) {
          for (int j = 0; j < kQuad; ++j) {
            sums[n].of[j] = fmaf(weights[n].of[i], value.of[j], sums[n].of[j]);
          }
        }
      }
    }
  }
};

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
struct ByTensorCores {
  static constexpr int kHeads = 16;
  static constexpr int kQuads = 8;
  static constexpr bool kWide = true;
  static constexpr int kTile = 16;      // keys of one multiplication
  static constexpr int kColumns = 8;    // heads of one; dims that a lane loads at once
  static constexpr int kWarpDims = 64;  // output dims of a warp
  static constexpr int kPieces = 2;
  static_assert(kTile * kKeyWarps == kRun && kWarpDims * kKeyWarps == kPanel);
  struct Queries {
    __nv_bfloat16 of[kPieces][kHeads][kPanel + 32];  // padded: neighbours lie in other banks
  };
  using Shared = AttendShared<ByTensorCores>;

  static bool suits(const KvPages& pages, int dims) {
    return pages.dtype == DType::kBf16 && dims % kWarpDims == 0 && dims <= kPanel;
  }
  static __device__ int in_eight() { return Thread::lane() / 4; }
  static __device__ int in_four() { return Thread::lane() % 4; }
  static __device__ int head(int n) { return in_eight() + n / 4 * 8; }
  static __device__ int dim(int n) {
    return Thread::warp() * kWarpDims + in_four() * 16 + n % 4 * kQuad;
  }
  static __device__ uint4 load(const void* from) {
    return __ldg(reinterpret_cast<const uint4*>(from));
  }

  static __device__ void take_queries(Shared& shared, const float* query, int heads, int dims) {
    for (int h = Thread::warp(); h < kHeads; h += kKeyWarps) {
      for (int at = Thread::lane() * kQuad; at < dims; at += kWarp * kQuad) {
        const Quad x =
            h < heads ? *reinterpret_cast<const Quad*>(query + 2 * h * dims + at) : Quad{};
        const Pieces first = pieces_of(x.of[0], x.of[1]);
        const Pieces second = pieces_of(x.of[2], x.of[3]);
        *reinterpret_cast<uint2*>(&shared.queries.of[0][h][at]) = {first.high, second.high};
        *reinterpret_cast<uint2*>(&shared.queries.of[1][h][at]) = {first.low, second.low};
      }
    }
  }

  // A warp takes a tile of keys. Four sums of a product, which meet at the end, hide the latency.
  template <bool kSplit>
  static __device__ void multiply(Shared& shared, const float*, int, int dims, int count) {
    constexpr int kTiles = kHeads / kColumns;
    const int first = Thread::warp() * kTile;
    if (first >= count) return;
    const std::byte* upper = shared.keys[first + in_eight()];
    const std::byte* lower = shared.keys[first + 8 + in_eight()];
    Sums sums[2][kPieces][kTiles] = {};
    constexpr int kAhead = kSplit ? 4 : 2;
#pragma unroll kAhead
    for (int at = in_four() * 8; at < dims; at += 32) {
      const uint4 a = load(reinterpret_cast<const __nv_bfloat16*>(upper) + at);
      const uint4 b = load(reinterpret_cast<const __nv_bfloat16*>(lower) + at);
      const uint32_t even[] = {a.x, b.x, a.y, b.y};
      const uint32_t odd[] = {a.z, b.z, a.w, b.w};
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) {
        for (int tile = 0; tile < kTiles; ++tile) {
          const uint4 q = *reinterpret_cast<const uint4*>(
              &shared.queries.of[piece][tile * kColumns + in_eight()][at]);
          multiply_tile(sums[0][piece][tile], even, q.x, q.y);
          multiply_tile(sums[1][piece][tile], odd, q.z, q.w);
        }
      }
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      for (int i = 0; i < 4; ++i) {
        shared.weights[tile * kColumns + 2 * in_four() + i % 2][first + in_eight() + i / 2 * 8] =
            (sums[0][0][tile][i] + sums[1][0][tile][i]) +
            (sums[0][1][tile][i] + sums[1][1][tile][i]);
      }
    }
  }

  // A warp takes kWarpDims, a lane loads the 8 at 8 * in_eight() of keys 4 * in_four() and on.
  template <bool kSplit>
  static __device__ void weigh(Quad (&sums)[kQuads], const Shared& shared, ptrdiff_t to_value,
                               int /*panel*/, int dims, int count) {
    const int own = Thread::warp() * kWarpDims;
    if (own >= dims) return;
    const ptrdiff_t at = to_value + (own + in_eight() * kColumns) * 2;
    Sums products[kColumns] = {};
    constexpr int kAhead = kSplit ? 2 : 1;
#pragma unroll kAhead
    for (int first = 0; first < count; first += kTile) {
      const int key = first + in_four() * 4;
      const uint4 v[] = {load(shared.keys[key] + at), load(shared.keys[key + 1] + at),
                         load(shared.keys[key + 2] + at), load(shared.keys[key + 3] + at)};
      const Quad upper = *reinterpret_cast<const Quad*>(&shared.weights[in_eight()][key]);
      const Quad lower = *reinterpret_cast<const Quad*>(&shared.weights[in_eight() + 8][key]);
      const Pieces a[] = {pieces_of(upper.of[0], upper.of[1]), pieces_of(lower.of[0], lower.of[1]),
                          pieces_of(upper.of[2], upper.of[3]), pieces_of(lower.of[2], lower.of[3])};
      const uint32_t high[] = {a[0].high, a[1].high, a[2].high, a[3].high};
      const uint32_t low[] = {a[0].low, a[1].low, a[2].low, a[3].low};
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const uint32_t first_keys = pair_at(j, v[0], v[1]);
        const uint32_t last_keys = pair_at(j, v[2], v[3]);
        multiply_tile(products[j], high, first_keys, last_keys);
        multiply_tile(products[j], low, first_keys, last_keys);
      }
    }
#pragma unroll
    for (int n = 0; n < kQuads; ++n) {
      for (int j = 0; j < kQuad; ++j) sums[n].of[j] = products[n % 2 * kQuad + j][n / 2];
    }
  }

 private:
  // The j-th of eight values of two rows, side by side.
  static __device__ uint32_t pair_at(int j, const uint4& x, const uint4& y) {
    const uint32_t from[] = {x.x, x.y, x.z, x.w};
    const uint32_t with[] = {y.x, y.y, y.z, y.w};
    return __byte_perm(from[j / 2], with[j / 2], j % 2 == 0 ? 0x5410 : 0x7632);
  }
};

// Products of a part become weights under its highest; a warp takes a head. `alone`, where the part
// meets the others elsewhere, is the first head's softmax of it.
template <typename Arithmetic>
__device__ void weigh_part(AttendShared<Arithmetic>& shared, int heads, int count, float scale,
                           Softmax* alone, int most_parts) {
  for (int h = Thread::warp(); h < heads; h += kKeyWarps) {
    float weights[kRun / kWarp];
    Softmax part = of_no_keys();
    for (int n = 0; n < kRun / kWarp; ++n) {
      const int i = n * kWarp + Thread::lane();
      weights[n] = i < count ? shared.weights[h][i] * scale : -INFINITY;
      part.highest = fmaxf(part.highest, weights[n]);
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
      part.highest = fmaxf(part.highest, __shfl_xor_sync(kAllLanes, part.highest, step));
    }
    float total = 0;
    for (int n = 0; n < kRun / kWarp; ++n) {
      const float weight = exp_f32(weights[n] - part.highest);
      shared.weights[h][n * kWarp + Thread::lane()] = weight;
      total += weight;
    }
    part.total = warp_sum(total);
    if (Thread::lane() != 0) continue;
    if (alone != nullptr) {
      alone[h * most_parts] = part;
      continue;
    }
    Softmax& all = shared.softmax[h];
    const Shares shares = shares_of(all.highest, part.highest);
    all = {fmaxf(all.highest, part.highest), join(all.total, part.total, shares)};
    shared.shares[h] = shares;
  }
}

template <typename Arithmetic>
__device__ Tile tile_of_block(const AttentionWeights& w) {
  const int group = w.heads / w.kv_heads;
  const int panels = div_ceil(w.head_dim, kPanel);
  const int tiles = div_ceil(group, Arithmetic::kHeads);
  const int tile = static_cast<int>(blockIdx.y) / panels;
  const int kv_head = tile / tiles;
  const int in_group = tile % tiles * Arithmetic::kHeads;
  return {kv_head, min(Arithmetic::kHeads, group - in_group),
          static_cast<int>(blockIdx.y) % panels * kPanel,
          int64_t{blockIdx.x} * w.heads + kv_head * group + in_group};
}

template <bool kWide>
__device__ void store_quad(float* to, const Quad& quad, int left) {
  if constexpr (kWide) {
    *reinterpret_cast<float4*>(to) = {quad.of[0], quad.of[1], quad.of[2], quad.of[3]};
  } else {
    for (int j = 0; j < kQuad && j < left; ++j) to[j] = quad.of[j];
  }
}

// One row, up to Arithmetic::kHeads query heads of one K/V head, kPanel dims of their outputs;
// kSplit: one part of the keys.
template <typename Arithmetic, bool kSplit>
__global__ void __launch_bounds__(kKeyThreads, 4)
    attend_kernel(float* out, const float* query_gate, const int32_t* blocks, const int32_t* counts,
                  int stride, Parts parts, const __grid_constant__ Forward forward) {
  constexpr int kQuads = Arithmetic::kQuads;
  __shared__ AttendShared<Arithmetic> shared;
  let_later_start();
  wait_for_earlier();
  const AttentionWeights& w = forward.w;
  const int dims = w.head_dim;
  const Visible visible(forward, blocks, counts, stride, blockIdx.x);
  const int first_part = kSplit ? static_cast<int>(blockIdx.z) : 0;
  if (kSplit && first_part * kRun >= visible.count) return;
  const Tile tile = tile_of_block<Arithmetic>(w);
  const float* query = query_gate + tile.head * 2 * dims;
  const auto to_value =
      static_cast<ptrdiff_t>(forward.cache.pages.value_offset - forward.cache.pages.key_offset);
  if (Thread::index() < Arithmetic::kHeads) shared.softmax[Thread::index()] = of_no_keys();
  const int64_t part_at = tile.head * parts.most + first_part;
  Quad sums[kQuads] = {};
  for (int first = first_part * kRun; first < visible.count; first += kRun) {
    const int count = min(kRun, visible.count - first);
    list_keys<kSplit>(shared.keys, visible, first, tile.kv_head, forward);
    if (first == first_part * kRun) Arithmetic::take_queries(shared, query, tile.heads, dims);
    __syncthreads();
    Arithmetic::template multiply<kSplit>(shared, query, tile.heads, dims, count);
    __syncthreads();
    weigh_part(shared, tile.heads, count, 1.0F / sqrtf(static_cast<float>(dims)),
               kSplit ? parts.softmax + part_at : nullptr, parts.most);
    __syncthreads();
    Quad part[kQuads] = {};
    Arithmetic::template weigh<kSplit>(part, shared, to_value, tile.panel, dims, count);
#pragma unroll
    for (int n = 0; n < kQuads; ++n) {
      const int h = Arithmetic::head(n);
      const int d = tile.panel + Arithmetic::dim(n);
      if (h >= tile.heads || d >= dims) continue;
      if constexpr (kSplit) {
        store_quad<Arithmetic::kWide>(parts.sums + (part_at + h * parts.most) * dims + d, part[n],
                                      dims - d);
      } else {
        for (int j = 0; j < kQuad; ++j) {
          sums[n].of[j] = join(sums[n].of[j], part[n].of[j], shared.shares[h]);
        }
      }
    }
    if (kSplit) return;
    __syncthreads();  // nobody still reads this part's keys and weights
  }
#pragma unroll
  for (int n = 0; n < kQuads; ++n) {
    const int h = Arithmetic::head(n);
    const int d = tile.panel + Arithmetic::dim(n);
    for (int j = 0; j < kQuad; ++j) {
      if (h >= tile.heads || d + j >= dims) continue;
      out[(tile.head + h) * dims + d + j] =
          gated(sums[n].of[j], shared.softmax[h].total, query + 2 * h * dims, dims, d + j);
    }
  }
}

// Parts that had thread blocks of their own meet: one row, one head, a dim a thread.
__global__ void __launch_bounds__(kMeetThreads)
    meet_kernel(float* out, const float* query_gate, const int32_t* counts, Parts parts,
                const __grid_constant__ Forward forward) {
  extern __shared__ float meet_room[];
  let_later_start();
  wait_for_earlier();
  auto* shares = reinterpret_cast<Shares*>(meet_room);  // of a part and those before it
  float* totals = meet_room + 2 * parts.most;
  const AttentionWeights& w = forward.w;
  const int tokens = forward.position(blockIdx.x) + 1;
  const int visible = counts[blockIdx.x] * w.block_tokens + tokens % w.block_tokens;
  const int count = div_ceil(visible, kRun);
  const int64_t head = int64_t{blockIdx.x} * w.heads + blockIdx.y;
  const Softmax* softmax = parts.softmax + head * parts.most;
  if (Thread::warp() == 0) {
    float before = -INFINITY;  // the highest of all lanes' earlier rounds
    for (int first = 0; first < count; first += kWarp) {
      const int i = first + Thread::lane();
      const Softmax own = i < count ? softmax[i] : of_no_keys();
      float highest = own.highest;  // up to the lane's part
      for (int step = 1; step < kWarp; step *= 2) {
        const float other = __shfl_up_sync(kAllLanes, highest, step);
        if (Thread::lane() >= step) highest = fmaxf(highest, other);
      }
      const float earlier = __shfl_up_sync(kAllLanes, highest, 1);
      if (i < count) {
        shares[i] = shares_of(Thread::lane() == 0 ? before : fmaxf(before, earlier), own.highest);
        totals[i] = own.total;
      }
      before = fmaxf(before, __shfl_sync(kAllLanes, highest, kWarp - 1));
    }
  }
  __syncthreads();
  const int d = static_cast<int>(blockIdx.z) * kMeetThreads + Thread::index();
  if (d >= w.head_dim) return;
  const float* sums = parts.sums + head * parts.most * w.head_dim + d;
  float sum = 0;
  float total = 0;
#pragma unroll 12
  for (int i = 0; i < count; ++i) {
    sum = join(sum, sums[int64_t{i} * w.head_dim], shares[i]);
    total = join(total, totals[i], shares[i]);
  }
  out[head * w.head_dim + d] = gated(sum, total, query_gate + head * 2 * w.head_dim, w.head_dim, d);
}

int most_parts(const AttentionWeights& w) {
  return div_ceil(w.block_budget * w.block_tokens + w.block_tokens - 1, kRun);
}

bool is_split(int rows, const AttentionWeights& w) {
  return rows <= kMaxWindow && most_parts(w) > 1 && most_parts(w) <= kMostParts;
}

// Floats that hold all parts' softmax.
int64_t softmax_floats(int rows, const AttentionWeights& w) {
  return round_up(int64_t{rows} * w.heads * most_parts(w) * 2, int64_t{kQuad});
}

template <typename Call>
void with_arithmetic(const KvPages& pages, const float* query_gate, int dims, const Call& call) {
  if (ByTensorCores::suits(pages, dims)) return call(ByTensorCores());
  with_loader(pages, query_gate, dims, [&](auto load) { call(ByFloats<decltype(load)>()); });
}

}  // namespace

int64_t sparse_attend_scratch_floats(int rows, const AttentionWeights& weights) {
  if (!is_split(rows, weights)) return 0;
  return softmax_floats(rows, weights) +
         int64_t{rows} * weights.heads * most_parts(weights) * weights.head_dim;
}

void launch_sparse_attend(cudaStream_t stream, float* out, const float* query_gate,
                          const int32_t* blocks, const int32_t* counts, int stride, int rows,
                          const Segments& segments, const CacheView& cache,
                          const AttentionWeights& weights, float* scratch) {
  if (rows == 0) return;
  const Forward forward = {segments, cache, weights};
  const int dims = weights.head_dim;
  const int group = weights.heads / weights.kv_heads;
  const bool split = is_split(rows, weights);
  Parts parts = {};
  if (split) {
    parts = {reinterpret_cast<Softmax*>(scratch), scratch + softmax_floats(rows, weights),
             most_parts(weights)};
  }
  with_arithmetic(cache.pages, query_gate, dims, [&](auto arithmetic) {
    using Arithmetic = decltype(arithmetic);
    const int tiles = weights.kv_heads * div_ceil(group, Arithmetic::kHeads);
    const dim3 grid(rows, tiles * div_ceil(dims, kPanel), split ? parts.most : 1);
    const auto kernel = split ? attend_kernel<Arithmetic, true> : attend_kernel<Arithmetic, false>;
    launch_after(stream, kernel, grid, kKeyThreads, out, query_gate, blocks, counts, stride, parts,
                 forward);
  });
  if (!split) return;
  const dim3 grid(rows, weights.heads, div_ceil(dims, kMeetThreads));
  launch_sized(stream, meet_kernel, grid, kMeetThreads, sizeof(float) * 3 * parts.most, out,
               query_gate, counts, parts, forward);
}

}  // namespace flashlane::kernels::cuda
