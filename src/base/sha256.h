// SHA-256 as lower-case hex. token_sha is the hash of a reply's decimal ids joined by commas: the
// figure by which two replies are compared (design section 9).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace flashlane {

std::string sha256_hex(std::string_view bytes);
std::string token_sha(std::span<const int32_t> ids);

// The seed of a request that brings none: the first 8 bytes, little-endian, top bit cleared, of the
// SHA-256 of the decimal prompt ids joined by commas, a bar and the salt.
uint64_t default_seed(std::span<const int32_t> prompt_ids, uint64_t salt);

}  // namespace flashlane
