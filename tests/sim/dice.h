// The simulator's only source of chance: a counter and a hash, so that a seed means the same world
// with every compiler and library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/keyed_random.h"

namespace flashlane::sim {

class Dice {
 public:
  explicit Dice(uint64_t seed) : state_(splitmix64(seed)) {}

  uint64_t next() { return mix64(state_ += kGoldenGamma); }
  int roll(int low, int high) {  // both included
    return low + static_cast<int>(next() % static_cast<uint64_t>(high - low + 1));
  }
  // Once in `times`, on average; never for 0.
  bool once_in(int times) { return times > 0 && next() % static_cast<uint64_t>(times) == 0; }
  template <typename T>
  const T& pick(std::span<const T> values) {
    return values[static_cast<size_t>(next() % values.size())];
  }

 private:
  uint64_t state_;
};

}  // namespace flashlane::sim
