// Which products of few rows go together, and how many blocks each gets.
#include <algorithm>

#include "base/int_math.h"
#include "kernels/cuda/product_few.cuh"

namespace flashlane::kernels::cuda {
namespace {

int entry_blocks(const FewEntry& entry, const FewProducts& products, int slices) {
  const int together = tiles_of_value(entry, products.hyper.streams);
  const bool split = entry.epilogue == Epilogue::kMix;  // the weight has a tile for each stream
  const int values = split ? entry.weight.tiles() / together : entry.weight.tiles();
  const int blocks = div_ceil(values, kFewWarps / slices / together);
  return blocks * entry.chunks * (entry.listed ? products.row_count * products.top : 1);
}

bool aligned(const float* x) {  // so that four are read at a time
  return reinterpret_cast<uintptr_t>(x) % 16 == 0;
}

int entry_slices(const FewEntry& entry) {
  return slices_of(entry.weight, entry.chunks, entry.epilogue == Epilogue::kGated);
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

// What a block makes of the entry's x.
int made_bytes(const FewEntry& entry, const FewProducts& products) {
  if (!blocks_make_x(entry, products)) return 0;
  const auto cols = static_cast<int>(entry.weight.cols / entry.chunks);
  const int low = entry.epilogue == Epilogue::kMix ? static_cast<int>(sizeof(float)) : 0;
  return units_bytes(products.row_count, cols) + products.row_count * cols * low;
}

// The first entry that has the x of number `e`.
int first_with_x(const FewProducts& products, int e) {
  for (int other = 0; other < e; ++other) {
    if (products.entries[other].x == products.entries[e].x) return other;
  }
  return e;
}

struct PackedRows {
  XUnits to;
  const float* x;
  int cols;
};

// A warp eight units of a row.
__global__ void pack_x_kernel(const __grid_constant__ PackedRows rows) {
  let_later_start();
  wait_for_earlier();
  const int part = static_cast<int>(blockIdx.x) * kFewWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (part * 8 >= units_of(rows.cols)) return;
  make_units_of_row(rows.to, rows.cols, static_cast<int>(blockIdx.y), part * 8,
                    ListedRow{rows.x, rows.cols, nullptr, 1});
}

// Those entries of `products` that have the bits of the first one that is not `done`.
FewLaunch plan_next(const FewProducts& products, const XUnits* packed, bool* done) {
  FewLaunch launch;
  launch.products = products;
  launch.products.entry_count = 0;
  for (int e = 0; e < products.entry_count; ++e) {
    const FewEntry& entry = products.entries[e];
    const int own = launch.products.entry_count;
    if (done[e] || (own > 0 && entry.weight.bits != launch.products.entries[0].weight.bits)) {
      continue;
    }
    done[e] = true;
    launch.products.add(entry);
    launch.slices[own] = entry_slices(entry);
    launch.first_block[own + 1] =
        launch.first_block[own] + entry_blocks(entry, products, launch.slices[own]);
    launch.made_bytes = std::max(launch.made_bytes, made_bytes(entry, products));
    launch.packed[own] = packed[e];
    for (const DeviceMatrix* weight : {&entry.weight, &entry.second}) {
      if (weight->rows == 0) continue;
      launch.stage_bytes = std::max(launch.stage_bytes, static_cast<int>(stage_bytes(*weight)));
    }
  }
  return launch;
}

void launch_planned(cudaStream_t stream, const FewLaunch& launch) {
  with_bits(launch.products.entries[0].weight.bits,
            [&](auto bits) { launch_few<bits.value>(stream, launch); });
}

// Whether the tiles of a value fit in a block.
bool fits(const FewEntry& entry, int streams) {
  const int together = tiles_of_value(entry, streams);
  return kFewWarps / entry_slices(entry) % together == 0;
}

bool can_launch(const FewEntry& entry, const HyperStep& hyper) {
  if (!entry.weight.tiled() || entry.weight.steps() % entry.chunks != 0) return false;
  if (entry.weight.cols % 8 != 0 || !aligned(entry.x)) return false;
  if (!fits(entry, hyper.streams)) return false;
  switch (entry.epilogue) {
    case Epilogue::kGated:
      return entry.second.tiled() && entry.weight.bits == entry.second.bits &&
             entry.weight.cols == entry.second.cols && entry.weight.rows == entry.second.rows &&
             entry.weight.count == entry.second.count;
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
  if (hyper.from != nullptr &&
      (hyper.hidden % kStepCols != 0 || !aligned(hyper.from) || !aligned(hyper.gain))) {
    return false;
  }
  const bool possible =
      std::all_of(products.entries, products.entries + products.entry_count,
                  [&](const FewEntry& entry) { return can_launch(entry, hyper); });
  const XUnits none[kMostFewEntries] = {};
  bool done[kMostFewEntries] = {};
  for (int e = 0; possible && e < products.entry_count; ++e) {
    if (done[e]) continue;
    if (plan_next(products, none, done).shared_bytes() > most_shared_bytes()) return false;
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
    packed[e] = first < e ? packed[first] : XUnits{at, rows};
    if (first < e) continue;
    at += units_bytes(rows, cols);
    const dim3 grid(static_cast<unsigned>(div_ceil(units_of(cols), 8 * kFewWarps)),
                    static_cast<unsigned>(rows));
    launch_after(stream, pack_x_kernel, grid, kNormThreads, PackedRows{packed[e], entry.x, cols});
  }
  bool done[kMostFewEntries] = {};
  for (int e = 0; e < products.entry_count; ++e) {
    if (!done[e]) launch_planned(stream, plan_next(products, packed, done));
  }
}

}  // namespace flashlane::kernels::cuda
