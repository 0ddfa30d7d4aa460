// The reference's true shape (spec/kv-pool.md 2 to 4), worked out from the model's dimensions:
// bytes of the pieces of one sequence and of a block of rows.
#pragma once

#include <cstddef>
#include <vector>

namespace flashlane::testing {

inline constexpr int kBlock = 4;  // rows with one pooled key
inline constexpr size_t kDeltaLayers = 36;
inline constexpr size_t kStateBytes = 48 * 128 * 128 * 4;
inline constexpr size_t kConvBytes = 3 * 10'240 * 2;
inline constexpr size_t kNgramBytes = 9 * 10'240 * 2;
inline constexpr size_t kLogBytes = 1'594'368;
// Wider than a page, so outside the pool or in a run: streams of a prompt chunk, a window's logits.
inline constexpr size_t kStreamsBytes = size_t{1'536} * 10'240 * 2;
inline constexpr size_t kLogitsBytes = size_t{248'320} * 2 * 32;

enum class Head { kNone, kWithoutLogs, kWithLogs };

// In the order of the families' lists, each state cut into `parts`.
inline std::vector<size_t> reference_sizes(Head head, size_t parts = 1) {
  std::vector<size_t> sizes;
  const auto add = [&](size_t count, size_t bytes) { sizes.insert(sizes.end(), count, bytes); };
  add(kDeltaLayers * parts, kStateBytes / parts);
  add(kDeltaLayers, kConvBytes);
  add(1, kNgramBytes);
  if (head == Head::kNone) return sizes;
  add(kDeltaLayers * parts, kStateBytes / parts);  // spare
  add(kDeltaLayers, kConvBytes);                   // saved
  add(kDeltaLayers, 32 * 16'480 * 2);              // saved projections
  add(1, kNgramBytes);                             // saved
  add(1, 32 * 10'240 * 2);                         // saved n-gram rows
  add(1, 20'480);                                  // output row
  add(1, 65'536);                                  // draft scores
  add(1, 4'096);                                   // best values
  if (head == Head::kWithoutLogs) return sizes;
  add(1, 256);  // control word
  add(kDeltaLayers, kLogBytes);
  return sizes;
}

struct RowFormat {
  size_t layer_bytes;  // of a row: keys, values, index key, a block's share of its pooled key
};
inline constexpr RowFormat kBf16 = {2 * 256 * 2 * 2 + 320};
inline constexpr RowFormat kFp8 = {2 * (256 + 16) + 2 * 256 + 320};
inline constexpr RowFormat kInt8 = {2 * 2 * (256 + 16) + 320};
inline constexpr RowFormat kInt4 = {2 * 2 * (128 + 16) + 320};

inline constexpr size_t block_bytes(RowFormat format, bool head) {
  return format.layer_bytes * (head ? 13 : 12) * kBlock;
}
inline constexpr size_t page_bytes(int page_rows, bool head) {
  return static_cast<size_t>(page_rows / kBlock) * block_bytes(kBf16, head);
}
inline double to_mib(size_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

}  // namespace flashlane::testing
