// The matrix product over packed panels, as one template over format, lines and rows. Each lane is
// one output row, so there is no reduction across lanes. Every instance does one sequence per
// output and row, that of docs/row_rule.md, so tiling changes no bit; tile registers do the same
// sequence. Included by level_*.cc, inside their target pragma and anonymous namespace.

// Products and sums treat denormal numbers as zero at every level, as tile registers always do.
class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlush); }
  ~FlushDenormals() { _mm_setcsr(before_); }
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  static constexpr unsigned kFlush = 0x8040;  // of results and of operands
  const unsigned before_;
};

// Value `place` of each word: exact, times 2^(kBits * place) for codes that are not the last.
template <int kBits>
inline Lanes value_at(Words words, int place) {
  constexpr int kPerWord = 32 / kBits;
  if constexpr (kBits == 32) {
    return as_lanes(words);
  } else if constexpr (kBits == 16) {
    return place == 0 ? as_lanes(shifted_up<16>(words)) : as_lanes(masked(words, 0xffff0000U));
  } else {
    constexpr uint32_t kMask = (1U << kBits) - 1;
    if (place == kPerWord - 1) return to_lanes(shifted_down<kBits*(kPerWord - 1)>(words));
    return to_lanes(masked(words, kMask << (kBits * place)));
  }
}

inline void store_outputs(float* out, Lanes total, int64_t valid) {
  if (valid >= kLanes) {
    store(out, total);
    return;
  }
  float all[kLanes];
  store(all, total);
  for (int64_t i = 0; i < valid; ++i) out[i] = all[i];
}

// Where line `line` of a tile of panels begins.
inline const std::byte* first_byte(const PanelTile& tile, int line) {
  return tile.data + static_cast<int64_t>(line / tile.subs) * tile.panel_bytes +
         static_cast<int64_t>(line % tile.subs) * kLineBytes;
}

struct GroupScales {
  Lanes scale, bias;
};

inline GroupScales load_scales(const PanelFormat& format, const std::byte* line,
                               int64_t second_line) {
  if (!format.scaled) return {zero_lanes(), zero_lanes()};
  const Words first = load_words(line);
  if (!format.bf16_scales) return {as_lanes(first), as_lanes(load_words(line + second_line))};
  return {as_lanes(shifted_up<16>(first)), as_lanes(masked(first, 0xffff0000U))};
}

// total + scale * partial + bias * sum; plain formats: total + partial.
inline Lanes with_group(const PanelFormat& format, const GroupScales& scales, const InputRow& row,
                        int64_t group, Lanes partial, Lanes total) {
  if (!format.scaled) return add(total, partial);
  return fma(scales.bias, all_lanes(row.sums[group]), fma(scales.scale, partial, total));
}

// The sums of a chunk's even or odd columns, from zero and ascending. The two halves of a chunk are
// separate passes over its words, so that the sums of more rows fit the registers; the lines take
// turns word by word, so that each one's sums have time to arrive.
template <int kBits, int kCount, int kRows, bool kOdd>
inline void sum_half(const std::byte* const (&at)[kCount], int64_t line_stride,
                     const float* const (&x)[kRows], int64_t column, Lanes (&sums)[kCount][kRows]) {
  for (int s = 0; s < kCount; ++s) {
    for (int r = 0; r < kRows; ++r) sums[s][r] = zero_lanes();
  }
  constexpr int64_t kAhead = 3072;  // bytes that memory is asked for in advance
  constexpr int kPerWord = 32 / kBits;
  // A line of f32 is one column; any other line has both halves.
  constexpr int kStep = kBits == 32 ? 2 : 1;
  constexpr int kFirst = kBits == 32 ? 0 : (kOdd ? kPerWord / 2 : 0);
  constexpr int kPlaces = kBits == 32 ? 1 : kPerWord / 2;
#pragma GCC unroll 4
  for (int line = kBits == 32 && kOdd ? 1 : 0; line < kBits; line += kStep) {
    for (int s = 0; s < kCount; ++s) {
      const std::byte* p = at[s] + line * line_stride;
      if constexpr (!kOdd) __builtin_prefetch(p + kAhead);
      const Words words = load_words(p);
#pragma GCC unroll 8
      for (int place = kFirst; place < kFirst + kPlaces; ++place) {
        const Lanes value = value_at<kBits>(words, place);
        for (int r = 0; r < kRows; ++r) {
          sums[s][r] = fma(value, all_lanes(x[r][column + line * kPerWord + place]), sums[s][r]);
        }
      }
    }
  }
}

// Output rows of `kCount` lines from `first` on, for kRows input rows.
template <int kBits, int kCount, int kRows>
void project_lines(const PanelTile& tile, int first, const InputRow* rows) {
  const PanelFormat& format = *tile.format;
  const int chunks = format.group / kChunk;
  const int64_t line_stride = static_cast<int64_t>(tile.subs) * kLineBytes;
  const std::byte* at[kCount];
  for (int s = 0; s < kCount; ++s) at[s] = first_byte(tile, first + s);
  const float* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = rows[r].x;
  Lanes total[kCount][kRows];
  for (int s = 0; s < kCount; ++s) {
    for (int r = 0; r < kRows; ++r) total[s][r] = zero_lanes();
  }
  int64_t column = 0;
  for (int64_t group = 0; group < tile.groups; ++group) {
    Lanes partial[kCount][kRows];
    for (int s = 0; s < kCount; ++s) {
      for (int r = 0; r < kRows; ++r) partial[s][r] = zero_lanes();
    }
    for (int chunk = 0; chunk < chunks; ++chunk, column += kChunk) {
      Lanes even[kCount][kRows];
      Lanes odd[kCount][kRows];
      sum_half<kBits, kCount, kRows, false>(at, line_stride, x, column, even);
      sum_half<kBits, kCount, kRows, true>(at, line_stride, x, column, odd);
      for (int s = 0; s < kCount; ++s) {
        at[s] += kBits * line_stride;
        for (int r = 0; r < kRows; ++r) {
          partial[s][r] = add(partial[s][r], add(even[s][r], odd[s][r]));
        }
      }
    }
    for (int s = 0; s < kCount; ++s) {
      const GroupScales scales = load_scales(format, at[s], line_stride);
      for (int r = 0; r < kRows; ++r) {
        total[s][r] = with_group(format, scales, rows[r], group, partial[s][r], total[s][r]);
      }
      at[s] += format.scale_lines() * line_stride;
    }
  }
  for (int s = 0; s < kCount; ++s) {
    const int64_t first_output = static_cast<int64_t>(first + s) * kLanes;
    for (int r = 0; r < kRows; ++r) {
      store_outputs(rows[r].out + first_output, total[s][r], tile.outputs - first_output);
    }
  }
}

inline constexpr int kRowsTogether = 6;  // rows whose sums fit 16 registers, beside a few others

// Few rows: several lines at once, so that enough sums are in flight.
template <int kBits, int kCount, int kRows>
void project_all_lines(const PanelTile& tile, const InputRow* rows) {
  int line = 0;
  for (; line + kCount <= tile.lines; line += kCount) {
    project_lines<kBits, kCount, kRows>(tile, line, rows);
  }
  if constexpr (kCount > 2) {
    for (; line + 2 <= tile.lines; line += 2) project_lines<kBits, 2, kRows>(tile, line, rows);
  }
  for (; line < tile.lines; ++line) project_lines<kBits, 1, kRows>(tile, line, rows);
}

template <int kBits>
void project_bits(const PanelTile& tile, const InputRow* rows, int row_count) {
  while (row_count > 0) {
    const int blocks = (row_count + kRowsTogether - 1) / kRowsTogether;
    const int count = (row_count + blocks - 1) / blocks;
    switch (count) {
      case 1:
        project_all_lines<kBits, 4, 1>(tile, rows);
        break;
      case 2:
        project_all_lines<kBits, 2, 2>(tile, rows);
        break;
      case 3:
        project_all_lines<kBits, 1, 3>(tile, rows);
        break;
      case 4:
        project_all_lines<kBits, 1, 4>(tile, rows);
        break;
      case 5:
        project_all_lines<kBits, 1, 5>(tile, rows);
        break;
      default:
        project_all_lines<kBits, 1, 6>(tile, rows);
        break;
    }
    rows += count;
    row_count -= count;
  }
}

inline void project_floats(const PanelTile& tile, const InputRow* rows, int row_count) {
  switch (tile.format->bits) {
    case 2:
      project_bits<2>(tile, rows, row_count);
      break;
    case 4:
      project_bits<4>(tile, rows, row_count);
      break;
    case 8:
      project_bits<8>(tile, rows, row_count);
      break;
    case 16:
      project_bits<16>(tile, rows, row_count);
      break;
    default:
      project_bits<32>(tile, rows, row_count);
      break;
  }
}

inline void project(const PanelTile& tile, const InputRow* rows, int row_count) {
  const FlushDenormals flush;
  project_floats(tile, rows, row_count);
}
