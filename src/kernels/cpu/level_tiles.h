// Weights in tiles of 16 output rows and 32 columns, for levels that multiply bf16 pairs: codes
// become bf16 values exactly, in the order that the multiplying instructions take: 16 rows of 64
// bytes, row j holding columns 2j and 2j+1 of each output. Included by level_avx512_bf16.cc and
// level_amx.cc, inside their target pragma and anonymous namespace.

inline constexpr int kTileBytes = 16 * kLineBytes;

// 32 words; a look-up reads the low five bits of a word, so the table repeats with its period.
struct CodeTable {
  __m512i words;
};

struct alignas(64) TableWords {
  uint16_t words[32];
};

// Values of code mod period for 32 codes in a row.
constexpr TableWords table_words(int period) {
  TableWords table = {};
  for (int i = 0; i < 32; ++i) {
    const auto value = static_cast<float>(i % period);
    table.words[i] = static_cast<uint16_t>(__builtin_bit_cast(uint32_t, value) >> 16);
  }
  return table;
}
template <int kPeriod>
inline constexpr TableWords kTableWords = table_words(kPeriod);

template <int kPeriod>
CodeTable code_table() {
  return {_mm512_load_si512(kTableWords<kPeriod>.words)};
}

template <int kBits>
CodeTable code_table_of() {
  if constexpr (kBits == 2) {
    return code_table<4>();
  } else {
    return code_table<16>();
  }
}

template <int kShift>
__m512i shifted_words(__m512i words) {
  return kShift == 0 ? words : _mm512_srli_epi16(words, kShift);
}

// Four rows of a tile from one line of nibbles.
template <typename Sink>
inline void look_up_nibbles(const std::byte* line, CodeTable table, int row, const Sink& sink) {
  const __m512i words = _mm512_loadu_si512(line);
  sink(row, _mm512_permutexvar_epi16(words, table.words));
  sink(row + 1, _mm512_permutexvar_epi16(shifted_words<4>(words), table.words));
  sink(row + 2, _mm512_permutexvar_epi16(shifted_words<8>(words), table.words));
  sink(row + 3, _mm512_permutexvar_epi16(shifted_words<12>(words), table.words));
}

// Eight rows of a tile from one line of two-bit codes.
template <typename Sink>
inline void look_up_pairs(const std::byte* line, CodeTable table, int row, const Sink& sink) {
  const __m512i words = _mm512_loadu_si512(line);
  sink(row, _mm512_permutexvar_epi16(words, table.words));
  sink(row + 1, _mm512_permutexvar_epi16(shifted_words<2>(words), table.words));
  sink(row + 2, _mm512_permutexvar_epi16(shifted_words<4>(words), table.words));
  sink(row + 3, _mm512_permutexvar_epi16(shifted_words<6>(words), table.words));
  sink(row + 4, _mm512_permutexvar_epi16(shifted_words<8>(words), table.words));
  sink(row + 5, _mm512_permutexvar_epi16(shifted_words<10>(words), table.words));
  sink(row + 6, _mm512_permutexvar_epi16(shifted_words<12>(words), table.words));
  sink(row + 7, _mm512_permutexvar_epi16(shifted_words<14>(words), table.words));
}

// Numbers up to 255 in 16 bits each, as bf16.
inline __m512i bytes_to_bf16(__m512i words) {
  const __m512i even = _mm512_and_si512(words, _mm512_set1_epi32(0xffff));
  const __m512i odd = _mm512_srli_epi32(words, 16);
  const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(_mm512_cvtepi32_ps(even)), 16);
  // The upper half of an exact float is its bf16 already.
  return _mm512_or_si512(low, _mm512_castps_si512(_mm512_cvtepi32_ps(odd)));
}

template <typename Sink>
inline void convert_bytes(const std::byte* line, int row, const Sink& sink) {
  const __m512i words = _mm512_loadu_si512(line);
  sink(row, bytes_to_bf16(_mm512_and_si512(words, _mm512_set1_epi16(0xff))));
  sink(row + 1, bytes_to_bf16(shifted_words<8>(words)));
}

// The tile of one chunk of 32 columns: sink(row, 32 bf16 values).
template <int kBits, typename Sink>
inline void expand_chunk(const std::byte* lines, int64_t line_stride, CodeTable table,
                         const Sink& sink) {
  if constexpr (kBits == 16) {
    for (int row = 0; row < 16; ++row) sink(row, _mm512_loadu_si512(lines + row * line_stride));
  } else if constexpr (kBits == 2) {
    for (int q = 0; q < 2; ++q) look_up_pairs(lines + q * line_stride, table, 8 * q, sink);
  } else if constexpr (kBits == 4) {
    for (int q = 0; q < 4; ++q) look_up_nibbles(lines + q * line_stride, table, 4 * q, sink);
  } else {
    for (int q = 0; q < 8; ++q) convert_bytes(lines + q * line_stride, 2 * q, sink);
  }
}
