// What every backend refuses to prepare. Apart from matrix.h, which GPU code includes too.
#pragma once

#include "base/result.h"
#include "kernels/matrix.h"

namespace flashlane::kernels {

// Names what no stored format has: a width, a group, bytes that are missing.
Status check_matrix(const Matrix& matrix);

}  // namespace flashlane::kernels
