#include "base/sha256.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <array>

#include "base/check.h"

namespace flashlane {
namespace {

std::array<unsigned char, 32> digest(std::string_view bytes) {
  std::array<unsigned char, 32> out;
  unsigned int length = 0;
  CHECK(EVP_Digest(bytes.data(), bytes.size(), out.data(), &length, EVP_sha256(), nullptr) == 1);
  CHECK_EQ(length, out.size());
  return out;
}

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  std::string hex;
  for (const unsigned char byte : digest(bytes)) hex += fmt::format("{:02x}", byte);
  return hex;
}

std::string token_sha(std::span<const int32_t> ids) {
  return sha256_hex(fmt::format("{}", fmt::join(ids, ",")));
}

uint64_t default_seed(std::span<const int32_t> prompt_ids, uint64_t salt) {
  const auto bytes = digest(fmt::format("{}|{}", fmt::join(prompt_ids, ","), salt));
  uint64_t seed = 0;
  for (int i = 7; i >= 0; --i) seed = seed << 8 | bytes[static_cast<size_t>(i)];
  return seed & ~(uint64_t{1} << 63);
}

}  // namespace flashlane
