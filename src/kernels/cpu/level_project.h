// The matrix product over packed panels, as one template over panel kind, panels and rows. Each
// lane is one output row, so there is no reduction across lanes: a group's columns are summed in
// ascending order from zero, then scaled and added to the total, groups ascending. Every instance
// does this same sequence per output and row, so tiling changes no bit. Included by level_*.cc,
// inside their target pragma and anonymous namespace.

template <PanelKind kKind>
void load_pair(const std::byte* panel, int64_t col, Lanes* first, Lanes* second) {
  if constexpr (kKind == PanelKind::kF32) {
    const float* p = reinterpret_cast<const float*>(panel) + col * kPanelRows;
    *first = load(p);
    *second = load(p + kPanelRows);
  } else if constexpr (kKind == PanelKind::kBf16) {
    const std::byte* p = panel + col * (2 * kPanelRows);
    *first = load_bf16(p);
    *second = load_bf16(p + 2 * kPanelRows);
  } else if constexpr (kKind == PanelKind::kByte) {
    const std::byte* p = panel + col * kPanelRows;
    *first = load_bytes(p);
    *second = load_bytes(p + kPanelRows);
  } else {
    load_nibbles(panel + col * (kPanelRows / 2), first, second);
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

template <int kPanels, int kRows>
void add_group(const PanelTile& tile, int first_panel, int64_t group, const InputRow* rows,
               const Lanes (&partial)[kPanels][kRows], Lanes (&total)[kPanels][kRows]) {
  if (tile.scales == nullptr) {
    for (int p = 0; p < kPanels; ++p) {
      for (int r = 0; r < kRows; ++r) total[p][r] = add(total[p][r], partial[p][r]);
    }
    return;
  }
  for (int p = 0; p < kPanels; ++p) {
    const std::byte* scales =
        tile.scales + static_cast<size_t>(first_panel + p) * tile.panel_scale_bytes;
    Lanes scale, bias;
    if (tile.bf16_scales) {
      scale = load_bf16(scales + group * (4 * kPanelRows));
      bias = load_bf16(scales + group * (4 * kPanelRows) + 2 * kPanelRows);
    } else {
      const float* wide = reinterpret_cast<const float*>(scales) + group * (2 * kPanelRows);
      scale = load(wide);
      bias = load(wide + kPanelRows);
    }
    for (int r = 0; r < kRows; ++r) {
      total[p][r] = fma(scale, partial[p][r], total[p][r]);
      total[p][r] = fma(bias, all_lanes(rows[r].sums[tile.sum_offset + group]), total[p][r]);
    }
  }
}

template <PanelKind kKind, int kPanels, int kRows>
void project_rows(const PanelTile& tile, int first_panel, const InputRow* rows) {
  Lanes total[kPanels][kRows];
  for (int p = 0; p < kPanels; ++p) {
    for (int r = 0; r < kRows; ++r) total[p][r] = zero_lanes();
  }
  const std::byte* data[kPanels];
  for (int p = 0; p < kPanels; ++p) {
    data[p] = tile.data + static_cast<size_t>(first_panel + p) * tile.panel_bytes;
  }
  const float* x[kRows];
  for (int r = 0; r < kRows; ++r) x[r] = rows[r].x;
  int64_t group = 0;
  for (int64_t start = 0; start < tile.cols; start += tile.group, ++group) {
    const int64_t end = start + tile.group < tile.cols ? start + tile.group : tile.cols;
    Lanes partial[kPanels][kRows];
    for (int p = 0; p < kPanels; ++p) {
      for (int r = 0; r < kRows; ++r) partial[p][r] = zero_lanes();
    }
    for (int64_t col = start; col < end; col += 2) {
      for (int p = 0; p < kPanels; ++p) {
        Lanes first, second;
        load_pair<kKind>(data[p], col, &first, &second);
        for (int r = 0; r < kRows; ++r) {
          partial[p][r] = fma(first, all_lanes(x[r][col]), partial[p][r]);
        }
        for (int r = 0; r < kRows; ++r) {
          partial[p][r] = fma(second, all_lanes(x[r][col + 1]), partial[p][r]);
        }
      }
    }
    add_group<kPanels, kRows>(tile, first_panel, group, rows, partial, total);
  }
  for (int p = 0; p < kPanels; ++p) {
    const int64_t first_output = static_cast<int64_t>(first_panel + p) * kPanelRows;
    for (int r = 0; r < kRows; ++r) {
      store_outputs(rows[r].out + first_output, total[p][r], tile.outputs - first_output);
    }
  }
}

// Few rows: several panels at once, so that enough sums are in flight.
template <PanelKind kKind, int kPanels, int kRows>
void project_panels(const PanelTile& tile, const InputRow* rows) {
  int panel = 0;
  for (; panel + kPanels <= tile.panels; panel += kPanels) {
    project_rows<kKind, kPanels, kRows>(tile, panel, rows);
  }
  for (; panel < tile.panels; ++panel) project_rows<kKind, 1, kRows>(tile, panel, rows);
}

template <PanelKind kKind>
void project_kind(const PanelTile& tile, const InputRow* rows, int row_count) {
  int blocks = (row_count + kRowBlock - 1) / kRowBlock;
  while (row_count > 0) {
    const int count = (row_count + blocks - 1) / blocks;
    switch (count) {
      case 1:
        project_panels<kKind, 4, 1>(tile, rows);
        break;
      case 2:
        project_panels<kKind, 2, 2>(tile, rows);
        break;
      case 3:
        project_panels<kKind, 1, 3>(tile, rows);
        break;
      case 4:
        project_panels<kKind, 1, 4>(tile, rows);
        break;
      case 5:
        project_panels<kKind, 1, 5>(tile, rows);
        break;
      default:
        project_panels<kKind, 1, 6>(tile, rows);
        break;
    }
    rows += count;
    row_count -= count;
    --blocks;
  }
}

inline void project(const PanelTile& tile, const InputRow* rows, int row_count) {
  switch (tile.kind) {
    case PanelKind::kF32:
      project_kind<PanelKind::kF32>(tile, rows, row_count);
      break;
    case PanelKind::kBf16:
      project_kind<PanelKind::kBf16>(tile, rows, row_count);
      break;
    case PanelKind::kByte:
      project_kind<PanelKind::kByte>(tile, rows, row_count);
      break;
    case PanelKind::kNibble:
      project_kind<PanelKind::kNibble>(tile, rows, row_count);
      break;
  }
}
