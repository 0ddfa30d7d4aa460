// Which products of few rows go together, and how many blocks each gets.
#include <algorithm>

#include "base/int_math.h"
#include "kernels/cuda/product_few.cuh"

namespace flashlane::kernels::cuda {
namespace {

constexpr int kMostSpreadWarps = 9600;
constexpr int kManyBlocks = 264;  // so many that smaller ones are better

// Tiles whose sums make one value.
int tiles_of_value(const FewEntry& entry, int streams) {
  return entry.epilogue == Epilogue::kGated ? 2 : (entry.epilogue == Epilogue::kMix ? streams : 1);
}
// Values of 16 columns of out.
int value_tiles(const FewEntry& entry, const FewProducts& products) {
  const bool split = entry.epilogue == Epilogue::kMix;  // the weight has a tile for each stream
  return split ? entry.weight.tiles() / products.hyper.streams : entry.weight.tiles();
}

int entry_blocks(const FewEntry& entry, const FewProducts& products, int warps, int spread) {
  const int together = tiles_of_value(entry, products.hyper.streams);
  const int blocks = div_ceil(value_tiles(entry, products), warps / spread / together);
  return blocks * entry.chunks * (entry.listed ? products.row_count * products.top : 1);
}

bool aligned(const float* x) {  // so that four are read at a time
  return reinterpret_cast<uintptr_t>(x) % 16 == 0;
}

int entry_slices(const FewEntry& entry) {
  return slices_of(entry.weight, entry.chunks, entry.epilogue == Epilogue::kGated);
}

// A warp for each slice of a tile, unless so many blocks come of it that their beginnings would
// cost more than the longer way of a warp that has all slices.
int entry_spread(const FewEntry& entry, const FewProducts& products, int warps) {
  const int slices = entry_slices(entry);
  const int together = tiles_of_value(entry, products.hyper.streams);
  const bool fits = slices <= warps && warps / slices % together == 0;
  const int most = kMostSpreadWarps / warps;
  return fits && entry_blocks(entry, products, warps, slices) <= most ? slices : 1;
}

int ring_bytes_of(const FewEntry& entry, int spread, int stage_bytes, int row_count) {
  const int pairs_of_chunk = div_ceil(entry.weight.steps() / entry.chunks, kPair);
  const int pairs = std::min(slots_of(entry.weight.bits), div_ceil(pairs_of_chunk, spread));
  return std::max(pairs * kPair * stage_bytes, row_count * kSumBytes);
}

// Rows of x that the entry reads from.
int x_rows(const FewEntry& entry, const FewProducts& products) {
  return entry.listed && entry.pairs_per_row == 1 ? products.row_count * products.top
                                                  : products.row_count;
}

bool blocks_make_x(const FewEntry& entry, const FewProducts& products) {
  return products.row_count <= kNormedRows || products.hyper.from != nullptr ||
         entry.epilogue == Epilogue::kMix;
}

// What a block makes of the entry's x; blocks with few of the listed rows do so anyway.
int made_bytes(const FewEntry& entry, const FewProducts& products) {
  const bool always = blocks_make_x(entry, products);
  if (!always && !entry.listed) return 0;
  const int rows = always ? products.row_count : kNormedRows;
  const auto cols = static_cast<int>(entry.weight.cols / entry.chunks);
  const int low = entry.epilogue == Epilogue::kMix ? static_cast<int>(sizeof(float)) : 0;
  return units_bytes(rows, cols) + rows * cols * low;
}

// The first entry that has the x of number `e`.
int first_with_x(const FewProducts& products, int e) {
  for (int other = 0; other < e; ++other) {
    const FewEntry& first = products.entries[other];
    const FewEntry& entry = products.entries[e];
    if (first.x == entry.x && first.weight.cols == entry.weight.cols &&
        x_rows(first, products) == x_rows(entry, products)) {
      return other;
    }
  }
  return e;
}

struct PackedRows {
  XUnits to;
  const float* x;
  int cols;
};

// A warp a part of a row.
__global__ void pack_x_kernel(const __grid_constant__ PackedRows rows) {
  let_later_start();
  wait_for_earlier();
  UnitPart own;
  own.row = static_cast<int>(blockIdx.y);
  own.part = static_cast<int>(blockIdx.x) * kFewerWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (own.part >= unit_parts_of(rows.cols)) return;
  own.load(rows.cols, ListedRow{rows.x, rows.cols, nullptr, 1});
  own.store(rows.to, rows.cols);
}

// Of the entries that are launched together.
int warps_of_blocks(const FewProducts& products) {
  if (products.hyper.from != nullptr) return kMostWarps;  // as norms are summed
  int blocks = 0;
  for (int e = 0; e < products.entry_count; ++e) {
    const FewEntry& entry = products.entries[e];
    const int spread = entry_spread(entry, products, kMostWarps);
    if (spread * tiles_of_value(entry, products.hyper.streams) > kFewerWarps) return kMostWarps;
    blocks += entry_blocks(entry, products, kMostWarps, spread);
  }
  return blocks > kManyBlocks ? kFewerWarps : kMostWarps;
}

int shift_of(int power_of_two) {
  int shift = 0;
  while (1 << shift < power_of_two) ++shift;
  return shift;
}

EntryPlan plan_entry(const FewEntry& entry, const FewProducts& products, int warps,
                     const XUnits& packed) {
  const int spread = entry_spread(entry, products, warps);
  EntryPlan plan;
  plan.tiles = value_tiles(entry, products);
  plan.steps = entry.weight.steps() / entry.chunks;
  plan.tile_steps = entry.weight.steps();
  plan.cols = static_cast<int>(entry.weight.cols / entry.chunks);
  plan.chunks_shift = shift_of(entry.chunks);
  plan.slices = entry_slices(entry);
  plan.warps_shift = shift_of(spread);
  plan.together_shift = shift_of(tiles_of_value(entry, products.hyper.streams));
  plan.values_shift = shift_of(warps) - plan.warps_shift - plan.together_shift;
  plan.step_scale_bytes = static_cast<int>(entry.weight.step_scale_bytes());
  plan.matrix_values_bytes = entry.weight.values_bytes();
  plan.matrix_scales_bytes = entry.weight.scales_bytes();
  plan.width = int64_t{plan.tiles} * kTileRows;
  if (entry.epilogue != Epilogue::kMix) plan.width = entry.weight.rows;
  plan.packed = packed;
  return plan;
}

// Which blocks each entry has, of so many warps.
void plan_blocks(FewLaunch& launch, const XUnits* packed, int warps) {
  launch.warps = warps;
  launch.blocks = 0;
  launch.ring_bytes = 0;
  for (int e = 0; e < launch.products.entry_count; ++e) {
    const FewEntry& entry = launch.products.entries[e];
    EntryPlan& plan = launch.plans[e];
    plan = plan_entry(entry, launch.products, warps, packed[e]);
    plan.first_block = launch.blocks;
    const int spread = 1 << plan.warps_shift;
    launch.blocks += entry_blocks(entry, launch.products, warps, spread);
    launch.ring_bytes = std::max(launch.ring_bytes, ring_bytes_of(entry, spread, launch.stage_bytes,
                                                                  launch.products.row_count));
  }
}

// Those entries of `products` that have the bits of the first one that is not `done`.
FewLaunch plan_next(const FewProducts& products, const XUnits* packed, bool* done) {
  FewLaunch launch;
  launch.products = products;
  launch.products.entry_count = 0;
  launch.pairs = products.row_count * products.top;
  if (launch.pairs > 1) {
    launch.pairs_inverse = static_cast<uint32_t>(((uint64_t{1} << 32) - 1) / launch.pairs + 1);
  }
  XUnits own_packed[kMostFewEntries] = {};
  for (int e = 0; e < products.entry_count; ++e) {
    const FewEntry& entry = products.entries[e];
    const int own = launch.products.entry_count;
    if (done[e] || (own > 0 && entry.weight.bits != launch.products.entries[0].weight.bits)) {
      continue;
    }
    done[e] = true;
    launch.products.add(entry);
    own_packed[own] = packed[e];
    launch.made_bytes = std::max(launch.made_bytes, made_bytes(entry, products));
    launch.stage_bytes = std::max(launch.stage_bytes, static_cast<int>(stage_bytes(entry.weight)));
  }
  plan_blocks(launch, own_packed, warps_of_blocks(launch.products));
  if (launch.shared_bytes() > most_shared_bytes() && launch.products.hyper.from == nullptr) {
    plan_blocks(launch, own_packed, kFewerWarps);
  }
  return launch;
}

void launch_planned(cudaStream_t stream, const FewLaunch& launch) {
  with_bits(launch.products.entries[0].weight.bits,
            [&](auto bits) { launch_few<bits.value>(stream, launch); });
}

bool is_power_of_two(int n) {
  return n > 0 && (n & (n - 1)) == 0;
}

bool can_launch(const FewEntry& entry, const HyperStep& hyper) {
  if (!entry.weight.tiled() || entry.weight.steps() % entry.chunks != 0) return false;
  if (entry.chunks > 1 && entry.weight.cols != int64_t{entry.chunks} * hyper.hidden) return false;
  if (entry.weight.cols % 8 != 0 || !aligned(entry.x)) return false;
  const int together = tiles_of_value(entry, hyper.streams);
  if (!is_power_of_two(entry.chunks) || !is_power_of_two(together) || together > kFewerWarps) {
    return false;
  }
  switch (entry.epilogue) {
    case Epilogue::kGated:
      return entry.second.tiled() && entry.weight.bits == entry.second.bits &&
             entry.weight.cols == entry.second.cols && entry.weight.rows == entry.second.rows &&
             entry.weight.count == entry.second.count && entry.weight.group == entry.second.group &&
             entry.weight.scale_dtype == entry.second.scale_dtype;
    case Epilogue::kMix:
      return entry.weight.rows % (int64_t{kTileRows} * hyper.streams) == 0;
    default:
      return true;
  }
}

}  // namespace

bool can_launch_few(const FewProducts& products) {
  if (products.row_count > kFewRows) return false;
  const HyperStep& hyper = products.hyper;
  if (hyper.from != nullptr && (products.row_count > kNormedRows || hyper.hidden % kStepCols != 0 ||
                                !aligned(hyper.from) || !aligned(hyper.gain))) {
    return false;
  }
  const bool possible =
      std::all_of(products.entries, products.entries + products.entry_count,
                  [&](const FewEntry& entry) { return can_launch(entry, hyper); });
  const XUnits none[kMostFewEntries] = {};
  bool done[kMostFewEntries] = {};
  for (int e = 0; possible && e < products.entry_count; ++e) {
    if (done[e]) continue;
    const FewLaunch launch = plan_next(products, none, done);
    if (launch.shared_bytes() > most_shared_bytes()) return false;
    if (launch.pairs > 0 && launch.blocks > kMostListedBlocks) return false;
  }
  return possible;
}

int64_t few_room_floats(const FewProducts& products) {
  int64_t bytes = 0;
  for (int e = 0; e < products.entry_count; ++e) {
    const FewEntry& entry = products.entries[e];
    if (blocks_make_x(entry, products) || first_with_x(products, e) != e) continue;
    bytes += units_bytes(x_rows(entry, products), static_cast<int>(entry.weight.cols));
  }
  return bytes / int64_t{sizeof(float)};
}

void launch_few_rows(cudaStream_t stream, const FewProducts& products, float* room) {
  if (products.row_count == 0) return;
  XUnits packed[kMostFewEntries] = {};
  auto* at = reinterpret_cast<std::byte*>(room);
  for (int e = 0; e < products.entry_count; ++e) {
    const FewEntry& entry = products.entries[e];
    if (blocks_make_x(entry, products)) continue;
    const int first = first_with_x(products, e);
    const auto cols = static_cast<int>(entry.weight.cols);
    const int rows = x_rows(entry, products);
    packed[e] = first < e ? packed[first] : units_in(at, rows, cols);
    if (first < e) continue;
    at += units_bytes(rows, cols);
    const dim3 grid(static_cast<unsigned>(div_ceil(unit_parts_of(cols), kFewerWarps)),
                    static_cast<unsigned>(rows));
    launch_after(stream, pack_x_kernel, grid, kFewerWarps * kWarp,
                 PackedRows{packed[e], entry.x, cols});
  }
  bool done[kMostFewEntries] = {};
  for (int e = 0; e < products.entry_count; ++e) {
    if (!done[e]) launch_planned(stream, plan_next(products, packed, done));
  }
}

}  // namespace flashlane::kernels::cuda
