// RepetitionGuard: finds a thinking block that runs in circles. It fires on the token that makes
// the last 256 each equal to the token one period before, for the smallest period of 1 to 8, once
// at least 64 tokens lie before that run. Tokens in, a period out: counts of equal tokens are all
// it keeps, so a token costs the same work whatever came before, and nothing depends on rounds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace flashlane::scheduler {

class RepetitionGuard {
 public:
  static constexpr int kLongestPeriod = 8;
  static constexpr int kRun = 256;
  static constexpr int kWarmIn = 64;

  // The next token of the reply, from its first on; the period at which the guard fires on it,
  // or 0.
  int push(int32_t token);

 private:
  int64_t pushed_ = 0;
  std::array<int32_t, size_t{kLongestPeriod}> recent_ = {};  // token i stands at i % 8
  // By period - 1: how many of the newest tokens, without a gap, equal the one a period before.
  std::array<int, size_t{kLongestPeriod}> runs_ = {};
};

}  // namespace flashlane::scheduler
