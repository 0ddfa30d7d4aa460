// 16 float lanes in two 256-bit registers. Included by level_avx2.cc alone, inside its target
// pragma and anonymous namespace: nothing here may be emitted for other files.

struct Lanes {
  static constexpr int kWidth = 16;
  __m256 low, high;
};

inline Lanes zero_lanes() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
inline Lanes all_lanes(float value) {
  const __m256 v = _mm256_set1_ps(value);
  return {v, v};
}
inline Lanes load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
inline void store(float* p, Lanes v) {
  _mm256_storeu_ps(p, v.low);
  _mm256_storeu_ps(p + 8, v.high);
}
inline __m256 widen_bf16(const void* p) {
  const __m128i half = _mm_loadu_si128(static_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
inline Lanes load_bf16(const std::byte* p) {
  return {widen_bf16(p), widen_bf16(p + 16)};
}

// 16 words of 32 bits, one for each lane.
struct Words {
  __m256i low, high;
};

inline Words load_words(const std::byte* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
}
inline Words masked(Words w, uint32_t mask) {
  const __m256i all = _mm256_set1_epi32(static_cast<int>(mask));
  return {_mm256_and_si256(w.low, all), _mm256_and_si256(w.high, all)};
}
template <int kCount>
Words shifted_up(Words w) {
  return {_mm256_slli_epi32(w.low, kCount), _mm256_slli_epi32(w.high, kCount)};
}
template <int kCount>
Words shifted_down(Words w) {
  return {_mm256_srli_epi32(w.low, kCount), _mm256_srli_epi32(w.high, kCount)};
}
inline Lanes as_lanes(Words w) {
  return {_mm256_castsi256_ps(w.low), _mm256_castsi256_ps(w.high)};
}
inline Lanes to_lanes(Words w) {
  return {_mm256_cvtepi32_ps(w.low), _mm256_cvtepi32_ps(w.high)};
}
inline Lanes add(Lanes a, Lanes b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline Lanes sub(Lanes a, Lanes b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline Lanes mul(Lanes a, Lanes b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline Lanes div(Lanes a, Lanes b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
// a < b ? x : y, lane by lane; false where either is NaN.
inline Lanes where_less(Lanes a, Lanes b, Lanes x, Lanes y) {
  return {_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}
inline Lanes where_nan(Lanes a, Lanes x, Lanes y) {
  return {_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, a.low, _CMP_UNORD_Q)),
          _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, a.high, _CMP_UNORD_Q))};
}
// mantissa * 2^n where n is the integer in the low bits of `shifted` (see exp_lanes).
inline __m256 scale_by_power(__m256 mantissa, __m256 shifted) {
  const __m256i exponent =
      _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_set1_epi32(0x4B400000));
  const __m256i half = _mm256_srai_epi32(exponent, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i second =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(exponent, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(mantissa, _mm256_castsi256_ps(first)),
                       _mm256_castsi256_ps(second));
}
inline Lanes scale_by_power(Lanes mantissa, Lanes shifted) {
  return {scale_by_power(mantissa.low, shifted.low), scale_by_power(mantissa.high, shifted.high)};
}
inline __m256 round_bf16(__m256 value) {
  const __m256i bits = _mm256_castps_si256(value);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
  const __m256 nan = _mm256_cmp_ps(value, value, _CMP_UNORD_Q);
  const __m256 chosen = _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), nan);
  return _mm256_and_ps(chosen, _mm256_castsi256_ps(_mm256_set1_epi32(-0x10000)));
}
inline Lanes round_bf16(Lanes v) {
  return {round_bf16(v.low), round_bf16(v.high)};
}
// 16 columns in the order of their words (panel_format.h).
template <int kBits>
Lanes in_word_order(Lanes v) {
  if constexpr (kBits >= 16) {
    return v;
  } else if constexpr (kBits == 2) {
    const __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(v.low, v.high, 0x88));
    const __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(v.low, v.high, 0xdd));
    return {_mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8)),
            _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8))};
  } else {
    constexpr WordOrder kOrder = word_order(kBits);
    const __m256i order = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kOrder.column));
    return {_mm256_permutevar8x32_ps(v.low, order), _mm256_permutevar8x32_ps(v.high, order)};
  }
}
// The upper halves of the lanes.
inline void store_bf16(uint16_t* p, Lanes v) {
  const __m256i low = _mm256_srli_epi32(_mm256_castps_si256(v.low), 16);
  const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(v.high), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
}

// The fixed tree: lane i with i + 8, then + 4, + 2, + 1.
inline float sum_lanes(Lanes v) {
  const __m256 eight = _mm256_add_ps(v.low, v.high);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
