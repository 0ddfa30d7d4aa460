// The list of sessions (Z1, T10): what it says, each thing that it must not say, and random texts
// against a second reading of the same rules.
#include "memory/session_list.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/sim/dice.h"

namespace flashlane::memory {
namespace {

constexpr int kMost = 15;
constexpr int kLimit = 262'144;
constexpr int kIntMost = std::numeric_limits<int>::max();

using Rows = std::vector<int>;

Rows parsed(std::string_view text, int most = kMost, int limit = kLimit) {
  const Result<Rows> list = parse_session_list(text, most, limit);
  EXPECT_TRUE(list.ok()) << text << ": " << (list.ok() ? "" : list.error().message);
  return list.ok() ? *list : Rows{};
}

// The error, which must be the caller's fault; empty where the text was taken.
std::string refused(std::string_view text, int most = kMost, int limit = kLimit) {
  const Result<Rows> list = parse_session_list(text, most, limit);
  EXPECT_FALSE(list.ok()) << text;
  if (list.ok()) return {};
  EXPECT_EQ(list.error().code, ErrorCode::kInvalidArgument);
  return list.error().message;
}

TEST(SessionList, EachEntryIsItsTokensAndTheMargin) {
  static_assert(kSessionMargin == 32);
  EXPECT_EQ(parsed("16384"), (Rows{16'416}));
  EXPECT_EQ(parsed("4096"), (Rows{4'128}));
  EXPECT_EQ(parsed("1"), (Rows{33}));
  EXPECT_EQ(parsed("0004096"), (Rows{4'128}));
  EXPECT_EQ(parsed("4096,16384,512"), (Rows{4'128, 16'416, 544}));
}

TEST(SessionList, RepeatsStandInPlace) {
  EXPECT_EQ(parsed("100x2,50,200x3"), (Rows{132, 132, 82, 232, 232, 232}));
  EXPECT_EQ(parsed("100x1"), (Rows{132}));
  Rows published = {65'568};
  published.insert(published.end(), 3, 32'800);
  published.insert(published.end(), 11, 16'416);
  EXPECT_EQ(parsed("65536,32768x3,16384x11"), published);
}

TEST(SessionList, NoSessionIsLargerThanTheLimit) {
  EXPECT_EQ(parsed("968,969,1000,5000", kMost, 1'000), (Rows{1'000, 1'000, 1'000, 1'000}));
  EXPECT_EQ(parsed("967", kMost, 1'000), (Rows{999}));
  EXPECT_EQ(parsed("5", kMost, 1), (Rows{1}));
  EXPECT_EQ(parsed("2147483615", kMost, kLimit), (Rows{kLimit}));
  EXPECT_EQ(parsed("2147483615", kMost, kIntMost), (Rows{kIntMost}));
}

TEST(SessionList, AnythingButDigitsAndOneCrossIsRefused) {
  for (const char* text :
       {"",        ",",        "4096,",   ",4096",  "4096,,512", "x",       "x3",      "4096x",
        "4096xx3", "4096x3x2", " 4096",   "4096 ",  "4096, 512", "4096 x3", "4096x 3", "+4096",
        "-4096",   "4096x-1",  "4096x+1", "4096X3", "4096*3",    "4k",      "4.0",     "0x10y",
        "4096;5",  "auto",     "4096\n",  "\t1",    "1e3",       "4096x3,a"}) {
    const std::string message = refused(text);
    EXPECT_NE(message.find("must be TOKENS or TOKENSxREPEATS"), std::string::npos)
        << "'" << text << "': " << message;
  }
  EXPECT_NE(refused(std::string_view("1\0", 2)).find("in digits"), std::string::npos);
}

TEST(SessionList, NothingIsNoCount) {
  EXPECT_EQ(refused("0"), "entry 1 is '0'; its tokens must be 1 to 2147483615");
  EXPECT_EQ(refused("4096,000x2"), "entry 2 is '000x2'; its tokens must be 1 to 2147483615");
  EXPECT_EQ(refused("4096x0"), "entry 1 is '4096x0'; it repeats at least once");
  EXPECT_EQ(refused("4096,1x00"), "entry 2 is '1x00'; it repeats at least once");
}

TEST(SessionList, NumbersThatOverflowAreRefusedThoughTheLimitWouldCutThem) {
  // With the margin one more than an int holds; then past an int, past 64 bits, and far past.
  for (const char* tokens :
       {"2147483616", "2147483647", "2147483648", "4294967297", "9223372036854775807",
        "9223372036854775808", "18446744073709551617", "100000000000000000000000000000000004096"}) {
    const std::string place = "entry 2 is '" + std::string(tokens);
    const std::string range = "'; its tokens must be 1 to 2147483615";
    EXPECT_EQ(refused("7," + std::string(tokens)), place + range);
    EXPECT_EQ(refused("7," + std::string(tokens) + "x2"), place + "x2" + range);
  }
  // No list could grow to the greatest of these before the limit is asked.
  for (const char* repeats : {"2147483648", "4294967297", "9223372036854775807",
                              "18446744073709551617", "100000000000000000000000000000000000001"}) {
    EXPECT_EQ(refused("7x" + std::string(repeats)),
              "entry 1 is '7x" + std::string(repeats) +
                  "'; 15 sessions are the most, and 0 are listed before it");
  }
}

TEST(SessionList, ARepeatIsComparedWithWhatIsLeft) {
  EXPECT_EQ(parsed("7x15").size(), 15U);
  EXPECT_EQ(parsed("7x14,8").size(), 15U);
  EXPECT_EQ(refused("7x16"),
            "entry 1 is '7x16'; 15 sessions are the most, and 0 are listed before it");
  EXPECT_EQ(refused("7x14,8x2"),
            "entry 2 is '8x2'; 15 sessions are the most, and 14 are listed before it");
  EXPECT_EQ(refused("7x15,8"),
            "entry 2 is '8'; 15 sessions are the most, and 15 are listed before it");
  EXPECT_EQ(refused("7", 0), "entry 1 is '7'; 0 sessions are the most, and 0 are listed before it");
  EXPECT_EQ(parsed("7x2", 2).size(), 2U);
}

TEST(SessionList, TheFirstFaultIsTheOneNamed) {
  EXPECT_EQ(refused("7x16,a"),
            "entry 1 is '7x16'; 15 sessions are the most, and 0 are listed before it");
  EXPECT_EQ(refused("7,0x99"), "entry 2 is '0x99'; its tokens must be 1 to 2147483615");
  EXPECT_EQ(refused("7,b,0"), "entry 2 is 'b'; it must be TOKENS or TOKENSxREPEATS, in digits");
}

// Digits as a number; a million millions where there are too many of them.
int64_t number(const std::string& digits) {
  const size_t first = digits.find_first_not_of('0');
  if (first == std::string::npos) return 0;
  return digits.size() - first > 12 ? 1'000'000'000'000 : std::stoll(digits.substr(first));
}

// What stands between the separators, empty parts too.
std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts = {""};
  for (const char character : text) {
    if (character == separator) {
      parts.emplace_back();
    } else {
      parts.back() += character;
    }
  }
  return parts;
}

std::optional<Rows> read_again(const std::string& text, int most, int limit) {
  Rows rows;
  for (const std::string& entry : split(text, ',')) {
    std::vector<std::string> numbers = split(entry, 'x');
    if (numbers.size() > 2) return std::nullopt;
    for (const std::string& digits : numbers) {
      const bool right = digits.find_first_not_of("0123456789") == std::string::npos;
      if (digits.empty() || !right) return std::nullopt;
    }
    const int64_t tokens = number(numbers[0]);
    const int64_t repeats = numbers.size() == 2 ? number(numbers[1]) : 1;
    if (tokens == 0 || repeats == 0 || tokens + kSessionMargin > kIntMost) return std::nullopt;
    for (int64_t i = 0; i < repeats; ++i) {
      if (static_cast<int>(rows.size()) == most) return std::nullopt;
      rows.push_back(static_cast<int>(std::min<int64_t>(limit, tokens + kSessionMargin)));
    }
  }
  return rows;
}

// Mostly a list, with a wrong character now and then.
std::string random_list(sim::Dice& dice) {
  static const std::string kWrong[] = {"x", ",", "-", "+", " ", "X", "a", ""};
  static const std::string kNumbers[] = {
      "0", "1", "2", "16", "4096", "2147483615", "2147483616", "2147483648", "4294967298", "007"};
  std::string text;
  for (int entries = dice.roll(1, 5); entries > 0; --entries) {
    text += dice.once_in(4) ? kNumbers[dice.roll(0, 9)] : std::to_string(dice.roll(1, 300'000));
    if (dice.once_in(2)) {
      text += "x" + (dice.once_in(6) ? kNumbers[dice.roll(0, 9)] : std::to_string(dice.roll(1, 6)));
    }
    if (dice.once_in(30)) text += kWrong[dice.roll(0, 7)];
    if (entries > 1) text += ",";
  }
  return text;
}

TEST(SessionList, ReadsRandomTextsAsASecondReadingDoes) {
  sim::Dice dice(20);
  int taken = 0;
  int turned_away = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string text = random_list(dice);
    const int most = dice.roll(0, kMost);
    const int limit = dice.once_in(3) ? kIntMost : dice.roll(1, kLimit);
    const std::optional<Rows> expected = read_again(text, most, limit);
    const Result<Rows> list = parse_session_list(text, most, limit);
    ASSERT_EQ(list.ok(), expected.has_value()) << text << ", " << most << " at most";
    ++(expected ? taken : turned_away);
    if (expected) {
      ASSERT_EQ(*list, *expected) << text << " to " << limit;
    }
  }
  EXPECT_GT(taken, 4'000);
  EXPECT_GT(turned_away, 4'000);
}

}  // namespace
}  // namespace flashlane::memory
