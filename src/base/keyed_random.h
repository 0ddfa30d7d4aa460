// Counter-based random bits: a value is a pure function of its key, so draws do not depend on who
// else draws or in which order. Used for sampling (seed, position, token), synthetic weights and
// n-gram hash constants. The functions are fixed for ever: published replies depend on them.
#pragma once

#include <cstdint>
#include <string_view>

namespace flashlane {

inline constexpr uint64_t kGoldenGamma = 0x9E3779B97F4A7C15ULL;

// The SplitMix64 finaliser without its increment.
constexpr uint64_t mix64(uint64_t v) {
  v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9ULL;
  v = (v ^ (v >> 27)) * 0x94D049BB133111EBULL;
  return v ^ (v >> 31);
}

// SplitMix64 of state v: increment, then finalise.
constexpr uint64_t splitmix64(uint64_t v) {
  return mix64(v + kGoldenGamma);
}

// 64 bits for the draw of `token` at absolute position `position` under `seed`.
constexpr uint64_t keyed_bits(uint64_t seed, uint64_t position, uint64_t token) {
  constexpr uint64_t kPositionGamma = 0xD1B54A32D192ED03ULL;
  uint64_t v = mix64(seed + kGoldenGamma);
  v = mix64(v ^ (position * kPositionGamma));
  return mix64(v ^ token);
}

// The top 53 bits plus half a unit, in (0, 1).
constexpr double keyed_uniform(uint64_t seed, uint64_t position, uint64_t token) {
  return (static_cast<double>(keyed_bits(seed, position, token) >> 11) + 0.5) * 0x1.0p-53;
}

// FNV-1a, 64 bits.
constexpr uint64_t fnv1a64(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace flashlane
