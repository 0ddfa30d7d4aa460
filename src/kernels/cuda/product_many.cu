// How a product of many rows is cut into blocks, what room it takes, and the sums of its parts.
#include <algorithm>

#include "base/int_math.h"
#include "kernels/cuda/product_many.cuh"

namespace flashlane::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWantedBlocks = 264;  // so that no SM of a large GPU waits
constexpr int kAlignment = 16;      // bytes

// How blocks share a product: their rows of x in tiles of eight, and how many there are.
struct ManyPlan {
  int x_tiles = 2;
  int items = 0;  // parts of the rows; with lists the most that there may be
  int weight_blocks = 0;
  int parts = 1;  // sums of an output that are added in the end
  bool by_slice = false;

  int blocks() const { return items * weight_blocks * parts; }
};

// A block's rows are the most that an expert has of them as a rule, or that leave enough blocks.
int x_tiles_of(const Product& product, int weight_blocks) {
  const bool listed = product.lists.list != nullptr;
  const auto share = listed ? div_ceil<int64_t>(product.row_count, product.weight.count)
                            : int64_t{product.row_count};
  if (listed) return share <= 6 ? 2 : (share <= 24 ? 4 : kMostXTiles);
  if (share <= 2 * kXTileRows) return 2;
  const int most = kMostXTiles * kXTileRows;
  return div_ceil(product.row_count, most) * weight_blocks * product.chunks < kWantedBlocks
             ? 4
             : kMostXTiles;
}

ManyPlan plan_many(const Product& product) {
  const bool pair = product.second.rows != 0;
  ManyPlan plan;
  plan.weight_blocks = div_ceil(product.weight.tiles(), kManyWarps * (pair ? 1 : kWarpTiles));
  plan.x_tiles = x_tiles_of(product, plan.weight_blocks);
  const int rows = plan.x_tiles * kXTileRows;
  plan.items = div_ceil(product.row_count, rows);
  if (product.lists.list != nullptr) {
    const int experts = std::min(static_cast<int>(product.weight.count), product.row_count);
    plan.items = experts + product.row_count / rows;
  }
  plan.parts = product.chunks;
  if (pair || product.lists.list != nullptr) return plan;
  const int slices = slices_of(product.weight, product.chunks, product.gated);
  plan.by_slice = slices > 1 && 2 * plan.blocks() <= kWantedBlocks;
  if (plan.by_slice) plan.parts *= slices;
  return plan;
}

// Where things lie in a product's room.
struct ManyRoom {
  int64_t sums, items, parts, end;  // x lies at 0
};
ManyRoom room_of(const Product& product, const ManyPlan& plan) {
  const int64_t row_steps = int64_t{product.x_rows()} * product.weight.steps();
  const bool listed = product.lists.list != nullptr;
  ManyRoom room = {};
  room.sums = row_steps * kXStepBytes;
  room.items = round_up<int64_t>(room.sums + row_steps * int64_t{sizeof(float2)}, kAlignment);
  room.parts = room.items + (listed ? plan.items : 0) * int64_t{sizeof(ManyItem)};
  room.end = room.parts;
  if (plan.parts > 1) {
    room.end += plan.parts * product.row_count * product.weight.rows * int64_t{sizeof(float)};
  }
  return room;
}

// out = sums of the chunks, each the sum of its slices' sums.
__global__ void add_parts_kernel(float* out, const float* parts, int64_t count, int chunks,
                                 int slices, bool plain) {
  let_later_start();
  wait_for_earlier();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  float whole = 0;
  for (int c = 0; c < chunks; ++c) {
    float chunk = 0;
    for (int s = 0; s < slices; ++s) chunk += parts[(int64_t{c} * slices + s) * count + i];
    const float own = plain ? unscaled<kPlainBits>(chunk) : unscaled<8>(chunk);
    whole = chunks == 1 ? own : whole + own;
  }
  out[i] = whole;
}

}  // namespace

bool Product::fuses() const {
  return weight.tiled() && second.tiled() && weight.bits == second.bits &&
         weight.rows == second.rows && weight.cols == second.cols && weight.count == second.count &&
         weight.two_groups() == second.two_groups() && weight.wide_scales() == second.wide_scales();
}

int64_t Product::many_room_floats() const {
  if (!weight.tiled()) return 0;
  return div_ceil<int64_t>(room_of(*this, plan_many(*this)).end, sizeof(float));
}

void launch_many_rows(cudaStream_t stream, const Product& product) {
  const ManyPlan plan = plan_many(product);
  const ManyRoom places = room_of(product, plan);
  auto* room = reinterpret_cast<std::byte*>(product.room);
  const bool listed = product.lists.list != nullptr;
  ManyLaunch launch;
  launch.product = product;
  launch.x = {room, reinterpret_cast<float2*>(room + places.sums)};
  auto* items = listed ? reinterpret_cast<ManyItem*>(room + places.items) : nullptr;
  launch.items = items;
  launch.slices = slices_of(product.weight, product.chunks, product.gated);
  launch.by_slice = plan.by_slice;
  if (plan.parts > 1) launch.parts = reinterpret_cast<float*>(room + places.parts);

  launch_many_packing(stream, {.x = product.x,
                               .to = launch.x,
                               .rows = product.x_is_packed ? 0 : product.x_rows(),
                               .cols = product.weight.cols,
                               .lists = product.lists,
                               .items = items,
                               .item_count = plan.items,
                               .experts = static_cast<int>(product.weight.count),
                               .part_rows = plan.x_tiles * kXTileRows});
  const auto items_count = static_cast<unsigned>(plan.items);
  const auto blocks = static_cast<unsigned>(plan.weight_blocks);
  const auto parts = static_cast<unsigned>(plan.parts);
  const dim3 grid = listed ? dim3(blocks, items_count, parts) : dim3(items_count, blocks, parts);
  with_bits(product.weight.bits,
            [&](auto bits) { launch_many<bits.value>(stream, launch, plan.x_tiles, grid); });
  if (plan.parts == 1) return;
  const int64_t count = product.row_count * product.weight.rows;
  launch_after(stream, add_parts_kernel, static_cast<unsigned>(div_ceil<int64_t>(count, kThreads)),
               kThreads, product.out, static_cast<const float*>(launch.parts), count,
               product.chunks, plan.by_slice ? launch.slices : 1,
               product.weight.bits == kPlainBits);
}

}  // namespace flashlane::kernels::cuda
