// Ranges go to the source by the handful, so that a step allocates nothing.
#include "model/ngram_ahead.h"

#include <algorithm>
#include <array>

#include "base/check.h"

namespace flashlane::model {

void ask_for_rows(const format::TensorSource& source, const kernels::NgramTable& table,
                  std::span<const int64_t> rows) {
  CHECK(!table.computed);
  std::array<format::ByteRange, 96> ranges;
  size_t count = 0;
  const auto flush = [&] {
    source.advise({ranges.data(), count}, format::Advice::kSoon);
    count = 0;
  };
  const int64_t* end = table.shard_starts + table.shard_count + 1;
  for (const int64_t row : rows) {
    const auto index = std::upper_bound(table.shard_starts, end, row) - table.shard_starts - 1;
    const kernels::Matrix& shard = table.shards[index];
    const auto in_shard = static_cast<size_t>(row - table.shard_starts[index]);
    if (count + 3 > ranges.size()) flush();
    ranges[count++] = {shard.data + in_shard * shard.row_bytes(), shard.row_bytes()};
    if (shard.layout != kernels::Layout::kAffine) continue;
    const size_t scales = shard.scale_row_bytes();
    ranges[count++] = {shard.scales + in_shard * scales, scales};
    ranges[count++] = {shard.biases + in_shard * scales, scales};
  }
  if (count != 0) flush();
}

}  // namespace flashlane::model
