// One body over vectors of eight, compiled for each instruction level that makes a difference: the
// 64-bit products are what costs, and only AVX-512 has them as one instruction.
#include "model/synth_values.h"

#include "base/keyed_random.h"
#include "tensor/dtype.h"

namespace flashlane::model {
namespace {

constexpr size_t kWidth = 8;
using Words = uint64_t __attribute__((vector_size(kWidth * 8)));
using Ints = int32_t __attribute__((vector_size(kWidth * 4)));
using Bits = uint32_t __attribute__((vector_size(kWidth * 4)));
using Floats = float __attribute__((vector_size(kWidth * 4)));

float draw_one(uint64_t hash, const ValueRule& rule, uint64_t index) {
  // 24 bits: the product and the difference are exact in f32.
  const auto bits = static_cast<float>(splitmix64(hash + index) >> 40);
  const float r = bits * 0x1.0p-23F - 1.0F;
  return round_to_bf16(rule.scale * r + rule.offset);
}

[[gnu::always_inline]] inline void draw(uint64_t hash, const ValueRule& rule, uint64_t first,
                                        float* out, size_t count) {
  size_t k = 0;
  for (; k + kWidth <= count; k += kWidth) {
    Words v = {0, 1, 2, 3, 4, 5, 6, 7};
    v += hash + first + k + kGoldenGamma;
    v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9ULL;
    v = (v ^ (v >> 27)) * 0x94D049BB133111EBULL;
    // The last step of splitmix64, v ^= v >> 31, changes no bit that is kept.
    const Floats bits = __builtin_convertvector(__builtin_convertvector(v >> 40, Ints), Floats);
    const Floats r = bits * 0x1.0p-23F - 1.0F;
    const Floats value = rule.scale * r + rule.offset;
    // round_to_bf16; no value here is a NaN.
    Bits word;
    __builtin_memcpy(&word, &value, sizeof(word));
    word = (word + 0x7fffU + ((word >> 16) & 1U)) & 0xffff0000U;
    __builtin_memcpy(out + k, &word, sizeof(word));
  }
  for (; k < count; ++k) out[k] = draw_one(hash, rule, first + k);
}

using Draw = void (*)(uint64_t, const ValueRule&, uint64_t, float*, size_t);

void draw_plain(uint64_t hash, const ValueRule& rule, uint64_t first, float* out, size_t count) {
  draw(hash, rule, first, out, count);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void draw_avx2(uint64_t hash, const ValueRule& rule, uint64_t first,
                                       float* out, size_t count) {
  draw(hash, rule, first, out, count);
}
[[gnu::target("avx512f,avx512dq,avx512bw,avx512vl")]] void draw_avx512(uint64_t hash,
                                                                       const ValueRule& rule,
                                                                       uint64_t first, float* out,
                                                                       size_t count) {
  draw(hash, rule, first, out, count);
}
#endif

Draw best_draw() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    return draw_avx512;
  }
  if (__builtin_cpu_supports("avx2")) return draw_avx2;
#endif
  return draw_plain;
}

}  // namespace

void draw_values(uint64_t hash, const ValueRule& rule, uint64_t first, std::span<float> values) {
  static const Draw chosen = best_draw();
  chosen(hash, rule, first, values.data(), values.size());
}

}  // namespace flashlane::model
