// The matrix product with the instruction that adds products of bf16 pairs to 16 f32 sums. Each
// lane is one output row; a group's columns go pair by pair from zero; then the group is scaled and
// added to the total as at the other levels. An order of its own, so its bits are its own. Included
// by level_avx512_bf16.cc, inside its target pragma and anonymous namespace.

template <int kBits, int kRows>
void project_line(const PanelTile& tile, int line, CodeTable table, const InputRow* rows) {
  const PanelFormat& format = *tile.format;
  const int64_t line_stride = static_cast<int64_t>(tile.subs) * kLineBytes;
  const auto group_bytes = static_cast<int64_t>(format.group_bytes(tile.subs));
  const int chunks = format.group / kChunk;
  const uint16_t* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = rows[r].pairs;
  Lanes total[kRows];
  for (int r = 0; r < kRows; ++r) total[r] = zero_lanes();
  const std::byte* at = first_byte(tile, line);
  for (int64_t group = 0; group < tile.groups; ++group, at += group_bytes) {
    Lanes partial[kRows];
    for (int r = 0; r < kRows; ++r) partial[r] = zero_lanes();
    for (int chunk = 0; chunk < chunks; ++chunk) {
      expand_chunk<kBits>(at + chunk * kBits * line_stride, line_stride, table,
                          [&](int row, __m512i values) {
                            for (int r = 0; r < kRows; ++r) {
                              int32_t pair;
                              __builtin_memcpy(&pair, x[r] + 2 * row, sizeof(pair));
                              partial[r].all = _mm512_dpbf16_ps(partial[r].all, (__m512bh)values,
                                                                (__m512bh)_mm512_set1_epi32(pair));
                            }
                          });
      for (int r = 0; r < kRows; ++r) x[r] += kChunk;
    }
    const GroupScales scales = load_scales(format, at + format.lines() * line_stride, line_stride);
    for (int r = 0; r < kRows; ++r) {
      total[r] = with_group(format, scales, rows[r], group, partial[r], total[r]);
    }
  }
  const int64_t first = static_cast<int64_t>(line) * kLanes;
  for (int r = 0; r < kRows; ++r) {
    store_outputs(rows[r].out + first, total[r], tile.outputs - first);
  }
}

template <int kBits>
void project_pairs(const PanelTile& tile, const InputRow* rows, int row_count) {
  const CodeTable table = code_table_of<kBits>();
  while (row_count > 0) {
    const int count = row_count >= 8 ? 8 : (row_count >= 4 ? 4 : (row_count >= 2 ? 2 : 1));
    for (int line = 0; line < tile.lines; ++line) {
      if (count == 8) project_line<kBits, 8>(tile, line, table, rows);
      if (count == 4) project_line<kBits, 4>(tile, line, table, rows);
      if (count == 2) project_line<kBits, 2>(tile, line, table, rows);
      if (count == 1) project_line<kBits, 1>(tile, line, table, rows);
    }
    rows += count;
    row_count -= count;
  }
}

inline void project_any(const PanelTile& tile, const InputRow* rows, int row_count) {
  switch (tile.format->bits) {
    case 2:
      project_pairs<2>(tile, rows, row_count);
      break;
    case 4:
      project_pairs<4>(tile, rows, row_count);
      break;
    case 8:
      project_pairs<8>(tile, rows, row_count);
      break;
    case 16:
      project_pairs<16>(tile, rows, row_count);
      break;
    default:
      project(tile, rows, row_count);
      break;
  }
}
