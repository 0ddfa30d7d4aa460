// An index of a page of some pool.
#pragma once

#include <cstdint>

namespace flashlane::memory {

using PageId = int32_t;
inline constexpr PageId kNoPage = -1;

}  // namespace flashlane::memory
