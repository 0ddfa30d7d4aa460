// The leaf functions compiled for AVX-512 (F, BW, DQ, VL) with tile registers (AMX-TILE, AMX-BF16).
// Everything between the pragmas has internal linkage and uses no function of a shared header, so
// that no code with wider instructions is emitted under a name that other files use.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/level.h"

#if defined(__clang__)
#pragma clang attribute push(                                                                 \
    __attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-bf16"))), \
    apply_to = function)
#else
// GCC 12 takes the deliberately undefined operand inside its own AVX-512 intrinsics for a mistake.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,amx-tile,amx-bf16")
#endif

namespace flashlane::kernels::cpu {
namespace {

// Each uses the ones before it.
// clang-format off
#include "kernels/cpu/lanes_avx512.h"
#include "kernels/cpu/level_project.h"
#include "kernels/cpu/level_rows.h"
#include "kernels/cpu/level_gdn.h"
#include "kernels/cpu/level_attend.h"
#include "kernels/cpu/level_tiles.h"
#include "kernels/cpu/level_amx.h"
#include "kernels/cpu/level_table.h"
// clang-format on

}  // namespace
}  // namespace flashlane::kernels::cpu

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace flashlane::kernels::cpu {

namespace {

constexpr LevelKernels tiles_table() {
  LevelKernels table = table_named("amx");
  table.project = project_any;
  table.pairs = true;
  table.row_block = kMostRowBlock;
  return table;
}

}  // namespace

const LevelKernels& amx_kernels() {
  static constexpr LevelKernels kTable = tiles_table();
  return kTable;
}

}  // namespace flashlane::kernels::cpu
