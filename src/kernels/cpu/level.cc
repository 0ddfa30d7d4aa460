// Which instruction levels this CPU and its operating system offer, and refusals that say so.
#include "kernels/cpu/level.h"

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

constexpr std::array<Level, 2> kLevels = {{
    {"avx2", has_avx2, avx2_kernels},
    {"avx512", has_avx512, avx512_kernels},
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
  if (isa == "avx512_bf16" || isa == "amx") {
    return error(
        ErrorCode::kUnsupported,
        "instruction level \"{}\" is not built into the cpu backend yet; on this CPU it has "
        "{}",
        isa, has);
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
