// One row of an n-gram table as floats, from its shard or computed from its number. Shared by all
// host backends: a row lookup is exact, there is nothing to vectorise differently.
#pragma once

#include "kernels/layers.h"

namespace flashlane::kernels {

// out: [row_width]. `row` is in range.
void ngram_table_row(const NgramTable& table, int64_t row, float* out);

}  // namespace flashlane::kernels
