// 16 float lanes in one 512-bit register: the same functions as lanes_avx2.h, lane for lane and
// with the same reduction tree. Included by level_avx512.cc alone, inside its target pragma and
// anonymous namespace: nothing here may be emitted for other files.

struct Lanes {
  static constexpr int kWidth = 16;
  __m512 all;
};

inline Lanes zero_lanes() {
  return {_mm512_setzero_ps()};
}
inline Lanes all_lanes(float value) {
  return {_mm512_set1_ps(value)};
}
inline Lanes load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
inline void store(float* p, Lanes v) {
  _mm512_storeu_ps(p, v.all);
}
inline Lanes load_bf16(const std::byte* p) {
  const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}

// 16 words of 32 bits, one for each lane.
struct Words {
  __m512i all;
};

inline Words load_words(const std::byte* p) {
  return {_mm512_loadu_si512(p)};
}
inline Words masked(Words w, uint32_t mask) {
  return {_mm512_and_si512(w.all, _mm512_set1_epi32(static_cast<int>(mask)))};
}
template <int kCount>
Words shifted_up(Words w) {
  return {_mm512_slli_epi32(w.all, kCount)};
}
template <int kCount>
Words shifted_down(Words w) {
  return {_mm512_srli_epi32(w.all, kCount)};
}
inline Lanes as_lanes(Words w) {
  return {_mm512_castsi512_ps(w.all)};
}
inline Lanes to_lanes(Words w) {
  return {_mm512_cvtepi32_ps(w.all)};
}
inline Lanes add(Lanes a, Lanes b) {
  return {_mm512_add_ps(a.all, b.all)};
}
inline Lanes sub(Lanes a, Lanes b) {
  return {_mm512_sub_ps(a.all, b.all)};
}
inline Lanes mul(Lanes a, Lanes b) {
  return {_mm512_mul_ps(a.all, b.all)};
}
inline Lanes div(Lanes a, Lanes b) {
  return {_mm512_div_ps(a.all, b.all)};
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm512_fmadd_ps(a.all, b.all, c.all)};
}
// a < b ? x : y, lane by lane; false where either is NaN.
inline Lanes where_less(Lanes a, Lanes b, Lanes x, Lanes y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.all, b.all, _CMP_LT_OQ), y.all, x.all)};
}
inline Lanes where_nan(Lanes a, Lanes x, Lanes y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.all, a.all, _CMP_UNORD_Q), y.all, x.all)};
}
// mantissa * 2^n where n is the integer in the low bits of `shifted` (see exp_lanes).
inline Lanes scale_by_power(Lanes mantissa, Lanes shifted) {
  const __m512i exponent =
      _mm512_sub_epi32(_mm512_castps_si512(shifted.all), _mm512_set1_epi32(0x4B400000));
  const __m512i half = _mm512_srai_epi32(exponent, 1);
  const __m512i bias = _mm512_set1_epi32(127);
  const __m512i first = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
  const __m512i second =
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(exponent, half), bias), 23);
  return {_mm512_mul_ps(_mm512_mul_ps(mantissa.all, _mm512_castsi512_ps(first)),
                        _mm512_castsi512_ps(second))};
}
inline Lanes round_bf16(Lanes v) {
  const __m512i bits = _mm512_castps_si512(v.all);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
  const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
  const __mmask16 nan = _mm512_cmp_ps_mask(v.all, v.all, _CMP_UNORD_Q);
  const __m512i chosen = _mm512_mask_blend_epi32(nan, up, quiet);
  return {_mm512_castsi512_ps(_mm512_and_si512(chosen, _mm512_set1_epi32(-0x10000)))};
}
// 16 columns in the order of their words (panel_format.h).
template <int kBits>
Lanes in_word_order(Lanes v) {
  if constexpr (kBits >= 16) return v;
  constexpr WordOrder kOrder = word_order(kBits);
  return {_mm512_permutexvar_ps(_mm512_loadu_si512(kOrder.column), v.all)};
}
// The upper halves of the lanes.
inline void store_bf16(uint16_t* p, Lanes v) {
  const __m512i upper = _mm512_srli_epi32(_mm512_castps_si512(v.all), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(upper));
}

// The fixed tree: lane i with i + 8, then + 4, + 2, + 1.
inline float sum_lanes(Lanes v) {
  const __m256 eight =
      _mm256_add_ps(_mm512_castps512_ps256(v.all), _mm512_extractf32x8_ps(v.all, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
