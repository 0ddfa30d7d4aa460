#include "base/sha256.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/evp.h>

#include <array>

#include "base/check.h"

namespace flashlane {
namespace {

using Digest = std::array<unsigned char, 32>;

std::string hex_of(const Digest& digest) {
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

Digest digest(std::string_view bytes) {
  Digest out;
  unsigned int length = 0;
  CHECK(EVP_Digest(bytes.data(), bytes.size(), out.data(), &length, EVP_sha256(), nullptr) == 1);
  CHECK_EQ(length, out.size());
  return out;
}

}  // namespace

std::string sha256_hex(std::string_view bytes) {
  return hex_of(digest(bytes));
}

struct Sha256::State {
  struct Free {
    void operator()(EVP_MD_CTX* made) const noexcept { EVP_MD_CTX_free(made); }
  };
  std::unique_ptr<EVP_MD_CTX, Free> context{EVP_MD_CTX_new()};
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  CHECK(state_->context != nullptr);
  CHECK(EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr) == 1);
}

Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()) == 1);
}

std::string Sha256::hex() {
  Digest out;
  unsigned int length = 0;
  CHECK(EVP_DigestFinal_ex(state_->context.get(), out.data(), &length) == 1);
  CHECK_EQ(length, out.size());
  return hex_of(out);
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
