// SHA-256 as lower-case hex. token_sha is the hash of a reply's decimal ids joined by commas: the
// figure by which two replies are compared (design section 9).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace flashlane {

std::string sha256_hex(std::string_view bytes);

// The same of bytes that come in parts.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes);
  // Of all that was added; nothing may be added afterwards.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string token_sha(std::span<const int32_t> ids);

// The seed of a request that brings none: the first 8 bytes, little-endian, top bit cleared, of the
// SHA-256 of the decimal prompt ids joined by commas, a bar and the salt.
uint64_t default_seed(std::span<const int32_t> prompt_ids, uint64_t salt);

}  // namespace flashlane
