// Stop strings: any split of a text into tokens stops at the byte that completes a match.
#include "scheduler/stop.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <optional>

namespace flashlane::scheduler {
namespace {

// The first length of `text` at which a stop string ends; nothing when none does.
std::optional<size_t> first_match(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t length = 1; length <= text.size(); ++length) {
    for (const std::string& stop : stops) {
      if (!stop.empty() && std::string_view(text).substr(0, length).ends_with(stop)) return length;
    }
  }
  return std::nullopt;
}

TEST(StopMatcher, FindsAMatchAcrossPushes) {
  StopMatcher matcher({"END"});
  EXPECT_FALSE(matcher.push("the E"));
  EXPECT_FALSE(matcher.push("N"));
  EXPECT_TRUE(matcher.push("D of"));
}

TEST(StopMatcher, DoesNotReportAMatchTwice) {
  StopMatcher matcher({"ab", "xxxxxx"});
  EXPECT_TRUE(matcher.push("ab"));
  EXPECT_FALSE(matcher.push("c"));
  EXPECT_FALSE(matcher.push(""));
}

TEST(StopMatcher, FindsTheSecondOfOverlappingStarts) {
  StopMatcher matcher({"aab"});
  EXPECT_FALSE(matcher.push("aa"));
  EXPECT_FALSE(matcher.push("a"));
  EXPECT_TRUE(matcher.push("b"));
}

TEST(StopMatcher, IgnoresEmptyStops) {
  StopMatcher matcher({"", ""});
  EXPECT_FALSE(matcher.push("anything"));
  EXPECT_FALSE(StopMatcher().push("anything"));
}

TEST(StopMatcher, MatchesBytesNotCharacters) {
  StopMatcher matcher({"\xc3\xa9", std::string("\0x", 2)});
  EXPECT_FALSE(matcher.push("\xc3"));
  EXPECT_TRUE(matcher.push("\xa9"));
  EXPECT_FALSE(matcher.push(std::string_view("\0", 1)));
  EXPECT_TRUE(matcher.push("x"));
}

TEST(StopMatcher, SplitAnywhereIsTheSame) {
  const auto letters = rc::gen::container<std::string>(rc::gen::element('a', 'b', 'c'));
  const bool passed = rc::check("split anywhere", [&] {
    const std::string text = *rc::gen::resize(60, letters);
    const auto stops = *rc::gen::resize(
        3, rc::gen::container<std::vector<std::string>>(rc::gen::resize(5, letters)));
    const auto expected = first_match(text, stops);
    StopMatcher matcher(stops);
    size_t done = 0;
    bool stopped = false;
    while (done < text.size() && !stopped) {
      const size_t take = *rc::gen::inRange<size_t>(1, std::min<size_t>(text.size() - done, 7) + 1);
      stopped = matcher.push(std::string_view(text).substr(done, take));
      if (stopped) {
        RC_ASSERT(expected.has_value());
        RC_ASSERT(*expected > done);
        RC_ASSERT(*expected <= done + take);
      }
      done += take;
    }
    RC_ASSERT(stopped == expected.has_value());
  });
  EXPECT_TRUE(passed);
}

TEST(TokenBytes, GivesEachIdItsBytesAndOthersNone) {
  const std::vector<std::string> tokens = {"a", "", std::string("b\0c", 3)};
  const TokenBytes table(tokens);
  EXPECT_EQ(table.bytes(0), "a");
  EXPECT_EQ(table.bytes(1), "");
  EXPECT_EQ(table.bytes(2), std::string_view("b\0c", 3));
  EXPECT_EQ(table.bytes(3), "");
  EXPECT_EQ(table.bytes(-1), "");
  EXPECT_EQ(TokenBytes({}).bytes(0), "");
}

}  // namespace
}  // namespace flashlane::scheduler
