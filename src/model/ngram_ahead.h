// Asking for the rows of a large n-gram table before they are read. The rows of a token depend on
// ids alone, so a forward knows them at its start, a layer or more before their place; pages that
// are not in memory come while that layer is worked on, all at once and not one fault at a time.
#pragma once

#include <cstdint>
#include <span>

#include "format/tensor_source.h"
#include "kernels/layers.h"

namespace flashlane::model {

// Tells the source that the stored table's rows will be read soon. Rows are in range.
void ask_for_rows(const format::TensorSource& source, const kernels::NgramTable& table,
                  std::span<const int64_t> rows);

}  // namespace flashlane::model
