// Which instruction levels this CPU and its operating system offer, and refusals that say so.
#include "kernels/cpu/level.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

#include "kernels/ops.h"

namespace flashlane::kernels {
namespace cpu {
namespace {

struct Level {
  std::string_view name;
  bool (*present)();
  const LevelKernels& (*kernels)();
};

// __builtin_cpu_supports also asks whether the operating system saves the wide registers.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
// The compiler's test doesn't know these bits, and Linux wants to be asked before the first use, as
// the registers are large.
bool has_amx() {
  constexpr unsigned kBf16 = 1U << 22;
  constexpr unsigned kTile = 1U << 24;
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // its number among the saved states
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (!has_avx512() || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kBf16) == 0 || (d & kTile) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

constexpr std::array<Level, 4> kLevels = {{
    {"avx2", has_avx2, avx2_kernels},
    {"avx512", has_avx512, avx512_kernels},
    {"avx512_bf16", has_avx512_bf16, avx512_bf16_kernels},
    {"amx", has_amx, amx_kernels},
}};

}  // namespace

Result<const LevelKernels*> find_level(std::string_view isa) {
  const std::string available = available_isa_levels();
  const std::string has = available.empty() ? "none" : available;
  if (isa == "auto") {
    for (auto level = kLevels.rbegin(); level != kLevels.rend(); ++level) {
      if (level->present()) return &level->kernels();
    }
    return error(ErrorCode::kUnsupported,
                 "the cpu backend needs AVX2 with FMA, which this CPU lacks; use the reference "
                 "backend");
  }
  for (const Level& level : kLevels) {
    if (level.name != isa) continue;
    if (level.present()) return &level.kernels();
    return error(ErrorCode::kUnsupported,
                 "instruction level \"{}\" is not available: this CPU has {}", isa, has);
  }
  return invalid("instruction level \"{}\" is unknown; this CPU has {}", isa, has);
}

}  // namespace cpu

std::string available_isa_levels() {
  std::string names;
  for (const cpu::Level& level : cpu::kLevels) {
    if (!level.present()) continue;
    if (!names.empty()) names += ", ";
    names += level.name;
  }
  return names;
}

}  // namespace flashlane::kernels
