// Sparse attention on the GPU: over the row's own keys, by parts. A row's visible keys (selected
// blocks ascending, then the tail) fall into parts of kRun by their index in that list alone. Each
// part gives its highest product, the total of its weights and its weighed values, as if it were
// all; parts then meet in ascending order by one formula. A forward of few rows has a thread block
// for each part, or needs but one part; others take a row's parts in turn, several rows side by
// side. Who does it, what shares a thread block, load widths and pages decide no bit.
#include "kernels/cuda/attention.cuh"

namespace flashlane::kernels::cuda {
namespace {

constexpr int kMostParts = 2048;    // that are split
constexpr int kMostTogether = 3;    // rows of one thread block
constexpr int kRowsTogether = 256;  // in a forward of fewer, rows have a thread block each
constexpr int kMeetDims = kWarp;    // of one thread block
constexpr int kMeetParts = 160;     // that meet at once, by as many threads

// How many of its row's parts a thread block takes.
enum class Reach : uint8_t {
  kAll,   // in turn
  kOnly,  // there is but one
  kPart,  // one of many, which meet elsewhere
};

__device__ inline Softmax of_no_keys() {
  return {-INFINITY, 0};
}
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

// What a forward's kernels are given.
struct Attend {
  float* out;
  const float* query_gate;
  const int32_t* blocks;
  const int32_t* counts;
  int stride;
  int rows;
  float scale;  // of products
  Parts parts;
  Forward forward;
};

// Keys that a row sees, at most, where its sequence has so many tokens up to it.
__device__ inline int most_visible(const AttentionWeights& w, int tokens) {
  return min(tokens / w.block_tokens, w.block_budget) * w.block_tokens + tokens % w.block_tokens;
}

// The output of one dim.
__device__ inline float gated(float sum, float total, float gate) {
  return sum / total * sigmoid_f32(gate);
}

// The keys that a row sees: those of the blocks chosen for it, then the tail's.
struct Visible {
  const int32_t* table;
  const int32_t* blocks;
  int chosen;  // blocks
  int tail;    // the block that it is in
  int count;
  __device__ Visible(const Attend& given, const Forward::Place& place, int row)
      : table(place.table),
        blocks(given.blocks + int64_t{row} * given.stride),
        chosen(given.counts[row]),
        tail((place.position + 1) / given.forward.w.block_tokens),
        count(chosen * given.forward.w.block_tokens +
              (place.position + 1) % given.forward.w.block_tokens) {}
  // The block of the i-th.
  __device__ int block(const AttentionWeights& w, int i) const {
    const int n = i / w.block_tokens;
    return n < chosen ? blocks[n] : tail;
  }
  // Where the i-th lies.
  __device__ const std::byte* key(const Forward& forward, int kv_head, int i, int block) const {
    const AttentionWeights& w = forward.w;
    const int token = block * w.block_tokens + i % w.block_tokens;
    return cached_row(forward.cache.pages, table, forward.cache.pages.key_offset, kv_head, token,
                      w.head_dim);
  }
};

// Where a row sees all of its sequence, its keys are known before they are chosen: they are found
// and sent for while earlier kernels run, and what these have written is held against it.
struct Guess {
  const std::byte* key = nullptr;  // none where it doesn't see all
  int block = 0;                   // that it is in
  __device__ Guess(const Forward& forward, const Forward::Place& place, int kv_head, int i) {
    const AttentionWeights& w = forward.w;
    const int tokens = place.position + 1;
    if (tokens / w.block_tokens > w.block_budget) return;
    const int token = min(i, tokens - 1);
    block = token / w.block_tokens;
    key = cached_row(forward.cache.pages, place.table, forward.cache.pages.key_offset, kv_head,
                     token, w.head_dim);
  }
  // listed: what the list of blocks has where `block` would be.
  __device__ bool holds(const Visible& visible, int listed) const {
    return key != nullptr && visible.chosen == visible.tail &&
           (block >= visible.chosen || block == listed);
  }
};

// Where a thread block's queries and outputs lie.
struct Tile {
  int kv_head;
  int heads;
  int panel;     // its first output dim
  int64_t head;  // its first query head, among those of all rows
};

// Products of a part become weights under its highest. Eight threads take a head, a thread every
// eighth key; the total meets as if the 32 lanes of a warp had two keys each: by halves, the first
// two of which a thread has to itself. `alone`, where the part meets the others elsewhere, is the
// first head's softmax of it.
template <typename Arithmetic>
__device__ void weigh_part(AttendShared<Arithmetic>& shared, int now, int heads, int count,
                           float scale, Softmax* alone, int most_parts) {
  constexpr int kLanes = 8;
  constexpr int kLanesApart = kWarp / kLanes;  // of the warp's lanes, that a thread stands for
  static_assert(kKeyThreads / kLanes >= Arithmetic::kTileHeads && kRun == 2 * kWarp);
  const int lane = KeyThread::index() % kLanes;
  const int h = KeyThread::index() / kLanes;
  const bool is_head = h < heads;
  float* own = shared.weights[now][min(h, Arithmetic::kHeads - 1)] + lane;
  Softmax part = of_no_keys();
#pragma unroll
  for (int i = 0; i < kRun; i += kLanes) {
    const bool counts = is_head && i + lane < count;
    part.highest = fmaxf(part.highest, counts ? own[i] * scale : -INFINITY);
  }
  for (int step = kLanes / 2; step > 0; step /= 2) {
    part.highest = fmaxf(part.highest, __shfl_xor_sync(kAllLanes, part.highest, step));
  }
  float totals[kLanesApart] = {};
#pragma unroll 1
  for (int first = 0; first < kRun; first += kWarp) {
#pragma unroll
    for (int n = 0; n < kLanesApart; ++n) {
      const int i = first + n * kLanes;
      const bool counts = is_head && i + lane < count;
      const float weight = exp_f32((counts ? own[i] * scale : -INFINITY) - part.highest);
      if (is_head) own[i] = weight;
      totals[n] += weight;
    }
  }
  static_assert(kLanesApart == 4);
  part.total = (totals[0] + totals[2]) + (totals[1] + totals[3]);
  for (int step = kLanes / 2; step > 0; step /= 2) {
    part.total += __shfl_xor_sync(kAllLanes, part.total, step);
  }
  if (lane != 0 || !is_head) return;
  if (alone != nullptr) {
    alone[h * most_parts] = part;
    return;
  }
  Softmax& all = shared.softmax[h];
  const Shares shares = shares_of(all.highest, part.highest);
  all = {fmaxf(all.highest, part.highest), join(all.total, part.total, shares)};
  shared.shares[h] = shares;
}

template <typename Arithmetic>
__device__ Tile tile_of_block(const AttentionWeights& w, int row) {
  const int group = w.heads / w.kv_heads;
  const int panels = div_ceil(w.head_dim, kPanel);
  const int tiles = div_ceil(group, Arithmetic::kTileHeads);
  const int tile = static_cast<int>(blockIdx.y) / panels;
  const int kv_head = tile / tiles;
  const int in_group = tile % tiles * Arithmetic::kTileHeads;
  return {kv_head, min(Arithmetic::kTileHeads, group - in_group),
          static_cast<int>(blockIdx.y) % panels * kPanel,
          int64_t{row} * w.heads + kv_head * group + in_group};
}

template <bool kWide>
__device__ void store_quad(float* to, const Quad& quad, int left) {
  if constexpr (kWide) {
    *reinterpret_cast<float4*>(to) = {quad.of[0], quad.of[1], quad.of[2], quad.of[3]};
  } else {
    for (int j = 0; j < kQuad && j < left; ++j) to[j] = quad.of[j];
  }
}

// From a key to its value.
__device__ inline ptrdiff_t to_values(const KvPages& pages) {
  return static_cast<ptrdiff_t>(pages.value_offset - pages.key_offset);
}

// For the threads that have one row.
template <Reach kReach>
__device__ inline void sync_row() {
  if constexpr (kReach == Reach::kAll) {
    asm volatile("bar.sync %0, %1;" ::"r"(KeyThread::row() + 1), "n"(kKeyThreads) : "memory");
  } else {
    __syncthreads();
  }
}

// The outputs of a tile, by way of shared memory, so that neighbours store neighbours. `gates`: the
// first head's, each `stride` behind the one before.
template <typename Arithmetic, Reach kReach>
__device__ void write_outputs(float* out, AttendShared<Arithmetic>& shared,
                              const Quad (&sums)[Arithmetic::kQuads], const Tile& tile, int dims,
                              const float* gates, int stride) {
#pragma unroll
  for (int n = 0; n < Arithmetic::kQuads; ++n) {
    store_quad<true>(&shared.sums[Arithmetic::head(n)][Arithmetic::dim(n)], sums[n], kQuad);
  }
  sync_row<kReach>();
  const int width = min(kPanel, dims - tile.panel);
  for (int h = KeyThread::warp(); h < tile.heads; h += kKeyWarps) {
    float* to = out + (tile.head + h) * dims + tile.panel;
    const float total = shared.softmax[h].total;
#pragma unroll 4
    for (int d = KeyThread::lane(); d < width; d += kWarp) {
      to[d] = gated(shared.sums[h][d], total, gates[h * stride + d]);
    }
  }
}

// A row's parts from the one that begins at key `first`, which is listed, on: their sums, joined.
template <typename Arithmetic, Reach kReach>
__device__ __forceinline__ void take_parts(Quad (&sums)[Arithmetic::kQuads],
                                           AttendShared<Arithmetic>& shared, int first,
                                           const Visible& visible, const Tile& tile,
                                           const float* query, const Attend& given) {
  constexpr bool kAhead = kReach != Reach::kAll;
  const Forward& forward = given.forward;
  const int dims = forward.w.head_dim;
  const ptrdiff_t to_value = to_values(forward.cache.pages);
  const int64_t part_at = tile.head * given.parts.most + first / kRun;
  for (int now = 0; first < visible.count; first += kRun, now ^= 1) {
    const int count = min(kRun, visible.count - first);
    const int next = min(first + kRun + KeyThread::index() % kRun, visible.count - 1);
    const int next_block = kAhead ? 0 : visible.block(forward.w, next);
    Arithmetic::template multiply<kAhead>(shared, now, query, tile.heads, dims, count);
    typename Arithmetic::Values values;
    if (kAhead) Arithmetic::load_values(values, shared, to_value, dims, count);
    sync_row<kReach>();
    // Nobody reads the part before this one any more.
    if (!kAhead && KeyThread::index() < kRun) {
      shared.keys[now ^ 1][KeyThread::index()] =
          visible.key(forward, tile.kv_head, next, next_block);
    }
    weigh_part(shared, now, tile.heads, count, given.scale,
               kReach == Reach::kPart ? given.parts.softmax + part_at : nullptr, given.parts.most);
    sync_row<kReach>();
    Quad part[Arithmetic::kQuads] = {};
    Arithmetic::template weigh<kAhead>(part, shared, now, values, to_value, tile.panel, dims,
                                       count);
#pragma unroll
    for (int n = 0; n < Arithmetic::kQuads; ++n) {
      const int h = Arithmetic::head(n);
      const int d = tile.panel + Arithmetic::dim(n);
      if (h >= tile.heads || d >= dims) continue;
      if constexpr (kReach == Reach::kPart) {
        store_quad<Arithmetic::kWide>(
            given.parts.sums + (part_at + h * given.parts.most) * dims + d, part[n], dims - d);
      } else {
        for (int j = 0; j < kQuad; ++j) {
          sums[n].of[j] = join(sums[n].of[j], part[n].of[j], shared.shares[h]);
        }
      }
    }
    if (kAhead) return;
  }
}

// One row, up to Arithmetic::kTileHeads query heads of one K/V head, kPanel dims of their outputs.
// Threads of another KeyThread::row() have another, whose keys are mostly the same: they find in
// the first cache what others have just loaded.
template <typename Arithmetic, Reach kReach>
__global__ void __launch_bounds__(kReach == Reach::kAll ? kMostTogether * kKeyThreads : kKeyThreads,
                                  kReach == Reach::kAll ? 1 : 3)
    attend_kernel(const __grid_constant__ Attend given) {
  constexpr bool kAhead = kReach != Reach::kAll;
  using Shared = AttendShared<Arithmetic>;
  extern __shared__ float4 attend_room[];
  Shared& shared = reinterpret_cast<Shared*>(attend_room)[KeyThread::row()];
  let_later_start();
  const int together = static_cast<int>(blockDim.x) / kKeyThreads;
  // Later rows see more keys: they begin first.
  const int row = static_cast<int>(gridDim.x - 1 - blockIdx.x) * together + KeyThread::row();
  if (row >= given.rows) return;
  const Forward& forward = given.forward;
  const AttentionWeights& w = forward.w;
  const KvPages& pages = forward.cache.pages;
  const int dims = w.head_dim;
  const Forward::Place place = forward.place(row);
  const int first = kReach == Reach::kPart ? static_cast<int>(blockIdx.z) * kRun : 0;
  if (kReach == Reach::kPart && first >= most_visible(w, place.position + 1)) return;
  const Tile tile = tile_of_block<Arithmetic>(w, row);
  const float* query = given.query_gate + tile.head * 2 * dims;
  const int own = first + KeyThread::index() % kRun;
  const bool of_keys = KeyThread::index() < kRun;
  const ptrdiff_t to_own = of_keys ? 0 : to_values(pages);
  const int bytes = dims * static_cast<int>(cached_bytes(pages.dtype));
  const Guess guess(forward, place, tile.kv_head, own);
  if (kAhead && guess.key != nullptr) ask_for(guess.key + to_own, bytes);
  wait_for_earlier();
  const Visible visible(given, place, row);
  const int listed = visible.blocks[min(guess.block, given.stride - 1)];
  Arithmetic::take_queries(shared.queries, query, tile.heads, dims);
  if (first >= visible.count) return;
  const std::byte* key = guess.key;
  if (!guess.holds(visible, listed)) {
    // Behind the last key there is the last again.
    const int i = min(own, visible.count - 1);
    key = visible.key(forward, tile.kv_head, i, visible.block(w, i));
    if (kAhead && !of_keys) ask_for(key + to_own, bytes);
  }
  if (of_keys) shared.keys[0][KeyThread::index()] = key;
  if (KeyThread::index() < Shared::kHeads) shared.softmax[KeyThread::index()] = of_no_keys();
  auto* gates = reinterpret_cast<float*>(&shared + 1);
  if constexpr (kReach == Reach::kOnly) Arithmetic::take_gates(gates, query, tile.heads, dims);
  sync_row<kReach>();
  Quad sums[Arithmetic::kQuads] = {};
  take_parts<Arithmetic, kReach>(sums, shared, first, visible, tile, query, given);
  if constexpr (kReach == Reach::kAll) {
    write_outputs<Arithmetic, kReach>(given.out, shared, sums, tile, dims,
                                      query + dims + tile.panel, 2 * dims);
  } else if constexpr (kReach == Reach::kOnly) {
    await_copies();
    write_outputs<Arithmetic, kReach>(given.out, shared, sums, tile, dims, gates, kPanel);
  }
}

// A part that joins those before it.
struct alignas(16) Joining {
  Shares shares;
  float total;
};

// Parts that had thread blocks of their own meet: one row, one head, kMeetDims dims. All is loaded
// at once; one warp joins.
__global__ void __launch_bounds__(kMeetParts) meet_kernel(const __grid_constant__ Attend given) {
  constexpr int kWarps = kMeetParts / kWarp;
  __shared__ float sums[kMeetParts][kMeetDims];
  __shared__ Joining joining[kMeetParts];
  __shared__ float highest_of[kWarps];
  let_later_start();
  const AttentionWeights& w = given.forward.w;
  const int dims = w.head_dim;
  const int row = static_cast<int>(blockIdx.x);
  const int tokens = given.forward.place(row).position + 1;
  const int most = div_ceil(most_visible(w, tokens), kRun);
  const int64_t head = int64_t{row} * w.heads + blockIdx.y;
  const int64_t part_at = head * given.parts.most;
  const int d = static_cast<int>(blockIdx.z) * kMeetDims + Thread::lane();
  wait_for_earlier();
  const bool writes = Thread::warp() == 0 && d < dims;
  const float gate = writes ? given.query_gate[(2 * head + 1) * dims + d] : 0.0F;
  // That takes a while to come, so what may count is loaded before it is here.
  const int visible = given.counts[row] * w.block_tokens + tokens % w.block_tokens;
  float before = -INFINITY;  // the highest of earlier rounds
  float sum = 0;
  float total = 0;
  for (int first = 0; first < most; first += kMeetParts) {
    const int own = Thread::index();
    Softmax part = of_no_keys();
    if (first + own < most) part = given.parts.softmax[part_at + first + own];
    for (int i = Thread::warp(); d < dims && i < min(kMeetParts, most - first); i += kWarps) {
      start_copy<4>(&sums[i][Thread::lane()], given.parts.sums + (part_at + first + i) * dims + d);
    }
    const int here = min(kMeetParts, div_ceil(visible, kRun) - first);
    if (own >= here) part = of_no_keys();
    float highest = part.highest;  // up to the thread's part, of its warp's
    for (int step = 1; step < kWarp; step *= 2) {
      const float other = __shfl_up_sync(kAllLanes, highest, step);
      if (Thread::lane() >= step) highest = fmaxf(highest, other);
    }
    float earlier = __shfl_up_sync(kAllLanes, highest, 1);
    if (Thread::lane() == 0) earlier = -INFINITY;
    if (Thread::lane() == kWarp - 1) highest_of[Thread::warp()] = highest;
    __syncthreads();
    earlier = fmaxf(before, earlier);
    for (int warp = 0; warp < kWarps; ++warp) {
      if (warp < Thread::warp()) earlier = fmaxf(earlier, highest_of[warp]);
      before = fmaxf(before, highest_of[warp]);
    }
    joining[own] = {shares_of(earlier, part.highest), part.total};
    await_copies();
    __syncthreads();
#pragma unroll 4
    for (int i = 0; writes && i < here; ++i) {
      sum = join(sum, sums[i][Thread::lane()], joining[i].shares);
      total = join(total, joining[i].total, joining[i].shares);
    }
    __syncthreads();  // nobody still reads this round's
  }
  if (writes) given.out[head * dims + d] = gated(sum, total, gate);
}

int most_keys(const AttentionWeights& w) {
  return w.block_budget * w.block_tokens + w.block_tokens - 1;
}
int most_parts(const AttentionWeights& w) {
  return div_ceil(most_keys(w), kRun);
}

// Of this forward's rows.
int most_parts(const Segments& segments, const AttentionWeights& w) {
  int longest = 0;
  for (int s = 0; s < segments.count; ++s) {
    longest = std::max(longest, segments.of[s].start_position + segments.of[s].row_count);
  }
  return div_ceil(std::min(longest, most_keys(w)), kRun);
}

bool is_split(int rows, const AttentionWeights& w) {
  return rows <= kMaxWindow && most_parts(w) > 1 && most_parts(w) <= kMostParts;
}

// Floats that hold all parts' softmax.
int64_t softmax_floats(int rows, const AttentionWeights& w) {
  return round_up(int64_t{rows} * w.heads * most_parts(w) * 2, int64_t{kQuad});
}

template <typename Arithmetic, Reach kReach>
void launch_attend(cudaStream_t stream, const Attend& given) {
  constexpr size_t kGates = kReach == Reach::kOnly ? Arithmetic::kTileHeads * kPanel : 0;
  constexpr size_t kShared = sizeof(AttendShared<Arithmetic>);
  const auto kernel = attend_kernel<Arithmetic, kReach>;
  int together = 1;
  if (kReach == Reach::kAll) {
    static const cudaError_t allowed = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_bytes());
    (void)allowed;  // else that error is found where launches are
    if (given.rows >= kRowsTogether) {
      together = std::clamp(most_shared_bytes() / static_cast<int>(kShared), 1, kMostTogether);
    }
  }
  const AttentionWeights& w = given.forward.w;
  const int tiles = w.kv_heads * div_ceil(w.heads / w.kv_heads, Arithmetic::kTileHeads);
  const dim3 grid(div_ceil(given.rows, together), tiles * div_ceil(w.head_dim, kPanel),
                  kReach == Reach::kPart ? given.parts.most : 1);
  launch_sized(stream, kernel, grid, kKeyThreads * together,
               kShared * together + sizeof(float) * kGates, given);
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
  const int parts = most_parts(segments, weights);
  const bool split = parts > 1 && is_split(rows, weights);
  Attend given = {.out = out,
                  .query_gate = query_gate,
                  .blocks = blocks,
                  .counts = counts,
                  .stride = stride,
                  .rows = rows,
                  .scale = 1.0F / std::sqrt(static_cast<float>(weights.head_dim)),
                  .parts = {},
                  .forward = {segments, cache, weights}};
  if (split) {
    given.parts = {reinterpret_cast<Softmax*>(scratch), scratch + softmax_floats(rows, weights),
                   parts};
  }
  const auto launch = [&](auto arithmetic) {
    using Arithmetic = decltype(arithmetic);
    split ? launch_attend<Arithmetic, Reach::kPart>(stream, given)
          : launch_attend<Arithmetic, Reach::kAll>(stream, given);
  };
  if (!suits_tensor_cores(cache.pages, weights.head_dim)) {
    with_loader(cache.pages, query_gate, weights.head_dim,
                [&](auto load) { launch(ByFloats<decltype(load)>()); });
  } else if (parts == 1 && rows <= kMaxWindow) {
    // Little work, so it is dealt out to many.
    launch_attend<ByTensorCores<1, 4>, Reach::kOnly>(stream, given);
  } else {
    launch(ByTensorCores<2, 16>());
  }
  if (!split) return;
  const dim3 grid(rows, weights.heads, div_ceil(weights.head_dim, kMeetDims));
  launch_after(stream, meet_kernel, grid, kMeetParts, given);
}

}  // namespace flashlane::kernels::cuda
