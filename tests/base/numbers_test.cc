// Keyed random bits, hashes and integer helpers: published replies depend on these values, so they
// are pinned.
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <vector>

#include "base/int_math.h"
#include "base/keyed_random.h"
#include "base/sha256.h"

namespace flashlane {
namespace {

TEST(KeyedRandom, HasItsPublishedValues) {
  EXPECT_EQ(keyed_bits(7, 11, 13), 0xffa4c0c9f2757968ULL);
  EXPECT_EQ(keyed_uniform(7, 11, 13), 0.9986076825175214);
  EXPECT_EQ(keyed_bits(12345, 0, 0), 0xbf8b290cd0189424ULL);
  EXPECT_EQ(keyed_bits(0, 0, 0), 0x33fe8bd4f9c57863ULL);
}

TEST(KeyedRandom, UniformLiesStrictlyInside) {
  double sum = 0;
  constexpr int kDraws = 100'000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double value = keyed_uniform(1, i, 2 * i);
    ASSERT_GT(value, 0.0);
    ASSERT_LT(value, 1.0);
    sum += value;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 0.005);
}

TEST(KeyedRandom, HashesNames) {
  EXPECT_EQ(fnv1a64(""), 0xcbf29ce484222325ULL);
  EXPECT_EQ(fnv1a64("model.language_model.embed_tokens.weight"), 0xddb796cdcc616f74ULL);
  // Bytes above 127 count as unsigned.
  EXPECT_EQ(fnv1a64("\xff"), (0xcbf29ce484222325ULL ^ 0xff) * 0x100000001b3ULL);
}

// The tiny model's first multiplier (spec 8) is 2 * (splitmix64(seed + gamma) mod half) + 1.
TEST(KeyedRandom, SplitMixIncrementsFirst) {
  constexpr uint64_t kHalf = INT64_MAX / 512 / 2;
  EXPECT_EQ(2 * (splitmix64(1234 + kGoldenGamma) % kHalf) + 1, 4295158889763781ULL);
}

TEST(Sha256, HashesTextAndTokens) {
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  const std::vector<int32_t> ids = {1, -2, 248319};
  EXPECT_EQ(token_sha(ids), sha256_hex("1,-2,248319"));
  EXPECT_EQ(token_sha({}), sha256_hex(""));
}

TEST(Sha256, GivesTheDefaultSeed) {
  const std::vector<int32_t> ids = {1, 2, 3};
  EXPECT_EQ(default_seed(ids, 0), 2418267834652783048ULL);
  EXPECT_NE(default_seed(ids, 1), default_seed(ids, 0));
  for (uint64_t salt = 0; salt < 64; ++salt) EXPECT_EQ(default_seed(ids, salt) >> 63, 0U);
}

TEST(IntMath, Rounds) {
  EXPECT_EQ(div_ceil(7, 4), 2);
  EXPECT_EQ(div_ceil(8, 4), 2);
  EXPECT_EQ(div_ceil(0, 4), 0);
  EXPECT_EQ(round_up(9, 4), 12);
  EXPECT_EQ(round_up(12, 4), 12);
  // No overflow on the way to a quotient that fits.
  EXPECT_EQ(div_ceil(SIZE_MAX, size_t{2}), SIZE_MAX / 2 + 1);
}

TEST(IntMath, ChecksOverflow) {
  EXPECT_EQ(checked_add(INT64_MAX - 1, int64_t{1}), INT64_MAX);
  EXPECT_EQ(checked_add(INT64_MAX, int64_t{1}), std::nullopt);
  EXPECT_EQ(checked_add(INT64_MIN, int64_t{-1}), std::nullopt);
  EXPECT_EQ(checked_mul(int64_t{1} << 31, int64_t{1} << 31), int64_t{1} << 62);
  EXPECT_EQ(checked_mul(int64_t{1} << 32, int64_t{1} << 31), std::nullopt);
  EXPECT_EQ(checked_mul<uint32_t>(65536, 65536), std::nullopt);
  EXPECT_EQ(checked_mul<int64_t>(0, INT64_MAX), 0);
}

}  // namespace
}  // namespace flashlane
