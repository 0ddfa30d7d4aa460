// Which products of few rows go together, and how many blocks each gets.
#include <algorithm>

#include "base/int_math.h"
#include "kernels/cuda/product_few.cuh"

namespace flashlane::kernels::cuda {
namespace {

int entry_subs(const FewEntry& entry, int slices) {
  switch (entry.epilogue) {
    case Epilogue::kGated:
      return 2;
    case Epilogue::kMix:
      return entry.streams;
    default:
      return std::max(1, 4 / slices);
  }
}

int entry_slices(const FewEntry& entry) {
  return slices_of(entry.weight.steps());
}

bool fused(const FewEntry& entry) {
  return entry.epilogue == Epilogue::kGated || entry.epilogue == Epilogue::kMix;
}

// Blocks with `subs` tiles each.
int entry_blocks(const FewEntry& entry, const FewProducts& products, int subs) {
  int blocks = div_ceil(entry.weight.tiles(), subs);
  if (entry.epilogue == Epilogue::kGated) blocks = entry.weight.tiles();
  if (entry.epilogue == Epilogue::kMix) blocks = entry.weight.tiles() / entry.streams;
  return entry.listed ? blocks * products.row_count * products.top : blocks;
}

void launch(cudaStream_t stream, FewLaunch& launch) {
  FewProducts& products = launch.products;
  launch.slices = entry_slices(products.entries[0]);
  launch.subs = entry_subs(products.entries[0], launch.slices);
  for (int e = 0; e < products.entry_count; ++e) {
    const FewEntry& entry = products.entries[e];
    launch.first_block[e + 1] = launch.first_block[e] + entry_blocks(entry, products, launch.subs);
    launch.aligned = launch.aligned && entry.weight.cols % 8 == 0 &&
                     reinterpret_cast<uintptr_t>(entry.x) % 16 == 0;
  }
  switch (products.entries[0].weight.bits) {
    case 2:
      return launch_few<2>(stream, launch);
    case 3:
      return launch_few<3>(stream, launch);
    case 4:
      return launch_few<4>(stream, launch);
    case 5:
      return launch_few<5>(stream, launch);
    case 6:
      return launch_few<6>(stream, launch);
    case 8:
      return launch_few<8>(stream, launch);
    default:
      return launch_few<kPlainBits>(stream, launch);
  }
}

// Whether `entry` can be launched with `first`, which chooses the blocks.
bool go_together(const FewEntry& first, const FewEntry& entry) {
  return first.weight.bits == entry.weight.bits && entry_slices(first) == entry_slices(entry) &&
         (!fused(entry) ||
          entry_subs(first, entry_slices(first)) == entry_subs(entry, entry_slices(entry)));
}

}  // namespace

bool can_fuse(const FewEntry& entry) {
  const int slices = entry_slices(entry);
  if (!fused(entry)) return true;
  if (entry_subs(entry, slices) * slices > kMostFewWarps) return false;
  if (entry.epilogue == Epilogue::kMix) {
    return entry.weight.rows % (int64_t{kTileRows} * entry.streams) == 0;
  }
  return entry.weight.bits == entry.second.bits && entry.weight.cols == entry.second.cols &&
         entry.weight.rows == entry.second.rows && entry.second.tiled();
}

void launch_few_rows(cudaStream_t stream, const FewProducts& products) {
  bool done[kMostFewEntries] = {};
  for (int first = 0; first < products.entry_count; ++first) {
    if (done[first]) continue;
    FewLaunch together;
    together.products.row_count = products.row_count;
    together.products.ids = products.ids;
    together.products.top = products.top;
    for (int e = first; e < products.entry_count; ++e) {
      if (done[e] || !go_together(products.entries[first], products.entries[e])) continue;
      together.products.add(products.entries[e]);
      done[e] = true;
    }
    launch(stream, together);
  }
}

}  // namespace flashlane::kernels::cuda
