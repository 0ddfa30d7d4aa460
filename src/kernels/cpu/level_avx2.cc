// The leaf functions compiled for AVX2 with FMA: 16 lanes in two registers. Everything between the
// pragmas has internal linkage and uses no function of a shared header, so that no code with wider
// instructions is emitted under a name that other files use.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/level.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif

namespace flashlane::kernels::cpu {
namespace {

// Each uses the ones before it.
// clang-format off
#include "kernels/cpu/lanes_avx2.h"
#include "kernels/cpu/level_project.h"
#include "kernels/cpu/level_rows.h"
#include "kernels/cpu/level_gdn.h"
#include "kernels/cpu/level_attend.h"
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

const LevelKernels& avx2_kernels() {
  static constexpr LevelKernels kTable = table_named("avx2");
  return kTable;
}

}  // namespace flashlane::kernels::cpu
