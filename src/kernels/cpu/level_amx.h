// The matrix product on tile registers. One multiplication adds to each sum the chunk's products of
// even columns and of odd columns, each summed from zero in ascending order by fused steps, then
// added up: the sequence of docs/row_rule.md. A row of sums depends on that row of the input alone.
// Included by level_amx.cc, inside its target pragma and anonymous namespace.

// The tile instructions are written out, because GCC 12's intrinsics don't say that they read and
// write memory. Tiles 0 to 3 accumulate, 4 holds input rows, 6 and 7 hold weights.
template <int kTile>
inline void tile_zero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}
template <int kTile>
inline void tile_load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}
template <int kTile>
inline void tile_store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}
template <int kSum, int kWeights>
inline void tile_multiply() {
  asm volatile("tdpbf16ps %%tmm%c1, %%tmm4, %%tmm%c0" : : "i"(kSum), "i"(kWeights));
}

// Sets the shapes for `rows` input rows, unless this thread has them already.
inline void configure_tiles(int rows) {
  static thread_local int configured = 0;
  if (configured == rows) return;
  struct alignas(64) Config {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  } config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = kLineBytes;
    config.rows[tile] = static_cast<uint8_t>(tile < 6 ? rows : 16);
  }
  asm volatile("ldtilecfg %0" : : "m"(config) : "memory");
  configured = rows;
}

inline constexpr int kMostBlocks = 4;  // blocks of 16 rows that share expanded weights
inline constexpr int kMostChunks = 4;  // of a group of 128 columns

// Memory of one product: the expanded weights of a group and its sums, both twice, because a tile
// load waits for the stores that it reads: what is loaded was stored a step before.
struct alignas(64) TileScratch {
  std::byte weights[2][kMostChunks * kTileLines * kTileBytes];
  float sums[2][kTileLines][16][kLanes];
  float totals[kMostBlocks * 16][kTileLines][kLanes];
};

// All lines of a tile of panels against equal blocks of rows that lie equally far apart. The lines
// take turns with the multiplier, because each has to wait for its own last sum.
template <int kBits>
class TileProduct {
 public:
  TileProduct(const PanelTile& tile, const InputRow* rows, int block_rows, int blocks,
              TileScratch& scratch)
      : table_(code_table_of<kBits>()),
        tile_(tile),
        format_(*tile.format),
        rows_(rows),
        block_rows_(block_rows),
        blocks_(blocks),
        pitch_(block_rows * blocks > 1 ? reinterpret_cast<const std::byte*>(rows[1].pairs) -
                                             reinterpret_cast<const std::byte*>(rows[0].pairs)
                                       : kLineBytes),
        line_stride_(static_cast<int64_t>(tile.subs) * kLineBytes),
        group_bytes_(static_cast<int64_t>(tile.format->group_bytes(tile.subs))),
        chunks_(tile.format->group / kChunk),
        scale_at_(tile.format->lines() * line_stride_),
        scratch_(scratch) {
    for (int line = 0; line < tile.lines; ++line) first_[line] = first_byte(tile, line);
  }

  void run() {
    const int count = block_rows_ * blocks_;
    for (int r = 0; r < count; ++r) {
      for (int line = 0; line < tile_.lines; ++line) {
        store(scratch_.totals[r][line], zero_lanes());
      }
    }
    expand(0);
    int64_t step = 0;
    for (int64_t group = 0; group < tile_.groups; ++group) {
      if (group + 1 < tile_.groups) expand(group + 1);
      for (int block = 0; block < blocks_; ++block, ++step) {
        multiply(group, block, scratch_.sums[step & 1]);
        if (step > 0) accumulate(step - 1);
      }
    }
    accumulate(step - 1);
    for (int r = 0; r < count; ++r) {
      for (int64_t line = 0; line < tile_.lines; ++line) {
        store_outputs(rows_[r].out + line * kLanes, load(scratch_.totals[r][line]),
                      tile_.outputs - line * kLanes);
      }
    }
  }

 private:
  // All codes of a group as bf16 tiles, [chunk][line]; bf16 weights are tiles already.
  void expand(int64_t group) const {
    if constexpr (kBits != 16) {
      const int64_t chunk_bytes = kBits * line_stride_;
      std::byte* to = scratch_.weights[group & 1];
      for (int chunk = 0; chunk < chunks_; ++chunk, to += kTileLines * kTileBytes) {
        for (int line = 0; line < tile_.lines; ++line) {
          std::byte* tile = to + line * kTileBytes;
          expand_chunk<kBits>(first_[line] + group * group_bytes_ + chunk * chunk_bytes,
                              line_stride_, table_, [&](int row, __m512i values) {
                                _mm512_store_si512(tile + row * kLineBytes, values);
                              });
        }
      }
    }
  }

  // One step of every line: its accumulator is the tile of its number.
  void multiply_lines(const std::byte* const (&weights)[kTileLines], int64_t stride) const {
    tile_load<6>(weights[0], stride);
    tile_multiply<0, 6>();
    if (tile_.lines > 1) {
      tile_load<7>(weights[1], stride);
      tile_multiply<1, 7>();
    }
    if (tile_.lines > 2) {
      tile_load<6>(weights[2], stride);
      tile_multiply<2, 6>();
    }
    if (tile_.lines > 3) {
      tile_load<7>(weights[3], stride);
      tile_multiply<3, 7>();
    }
  }

  void multiply(int64_t group, int block, float (&sums)[kTileLines][16][kLanes]) const {
    tile_zero<0>();
    tile_zero<1>();
    tile_zero<2>();
    tile_zero<3>();
    const uint16_t* x = rows_[block * block_rows_].pairs + group * format_.group;
    const std::byte* expanded = scratch_.weights[group & 1];
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      tile_load<4>(x + static_cast<int64_t>(chunk) * kChunk, pitch_);
      const std::byte* weights[kTileLines];
      for (int line = 0; line < tile_.lines; ++line) {
        weights[line] = kBits == 16
                            ? first_[line] + group * group_bytes_ + chunk * 16 * line_stride_
                            : expanded + (chunk * kTileLines + line) * kTileBytes;
      }
      multiply_lines(weights, kBits == 16 ? line_stride_ : kLineBytes);
    }
    tile_store<0>(sums[0], kLineBytes);
    if (tile_.lines > 1) tile_store<1>(sums[1], kLineBytes);
    if (tile_.lines > 2) tile_store<2>(sums[2], kLineBytes);
    if (tile_.lines > 3) tile_store<3>(sums[3], kLineBytes);
  }

  void accumulate(int64_t step) const {
    const int64_t group = step / blocks_;
    const int first_row = static_cast<int>(step % blocks_) * block_rows_;
    const auto& sums = scratch_.sums[step & 1];
    for (int line = 0; line < tile_.lines; ++line) {
      const GroupScales scales =
          load_scales(format_, first_[line] + group * group_bytes_ + scale_at_, line_stride_);
      for (int r = 0; r < block_rows_; ++r) {
        float* to = scratch_.totals[first_row + r][line];
        store(to, with_group(format_, scales, rows_[first_row + r], group, load(sums[line][r]),
                             load(to)));
      }
    }
  }

  const CodeTable table_;  // first, as it is aligned to a line
  const PanelTile& tile_;
  const PanelFormat& format_;
  const InputRow* rows_;
  const int block_rows_;
  const int blocks_;
  const int64_t pitch_;  // bytes from one input row to the next
  const int64_t line_stride_;
  const int64_t group_bytes_;
  const int chunks_;  // of a group
  const int64_t scale_at_;
  TileScratch& scratch_;
  const std::byte* first_[kTileLines];
};

template <int kBits>
void project_on_tiles(const PanelTile& tile, const InputRow* rows, int row_count) {
  TileScratch scratch;
  while (row_count > 0) {
    const int block_rows = row_count < 16 ? row_count : 16;
    int blocks = row_count / block_rows;
    if (blocks > kMostBlocks) blocks = kMostBlocks;
    configure_tiles(block_rows);
    TileProduct<kBits>(tile, rows, block_rows, blocks, scratch).run();
    rows += block_rows * blocks;
    row_count -= block_rows * blocks;
  }
}

// Few rows are faster without tiles; the bits are the same.
inline constexpr int kFewestTileRows = 4;

inline void project_any(const PanelTile& tile, const InputRow* rows, int row_count) {
  const FlushDenormals flush;
  if (row_count < kFewestTileRows || tile.format->bits == 32) {
    project_floats(tile, rows, row_count);
    return;
  }
  switch (tile.format->bits) {
    case 2:
      project_on_tiles<2>(tile, rows, row_count);
      break;
    case 4:
      project_on_tiles<4>(tile, rows, row_count);
      break;
    case 8:
      project_on_tiles<8>(tile, rows, row_count);
      break;
    default:
      project_on_tiles<16>(tile, rows, row_count);
      break;
  }
}
