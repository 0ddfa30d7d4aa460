// What works on streams gives the same text however the stream is cut: detokenizer, reasoning
// splitter, stop strings.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "tests/text/text_fixtures.h"
#include "text/detokenizer.h"
#include "text/reasoning.h"
#include "text/stop_strings.h"
#include "text/utf8.h"

namespace flashlane::text {
namespace {

TEST(LossyUtf8, ReplacesEachMaximalSubpartOnce) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"a\xFFz", "a\uFFFDz"},
      {"\xE4\xB8", "\uFFFD"},
      {"\xE4\xB8x", "\uFFFDx"},
      {"\xF0\x9F\x98\xE4", "\uFFFD\uFFFD"},
      {"\x80\x80", "\uFFFD\uFFFD"},
      {"\xC0\xAF", "\uFFFD\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xE2\x82\xAC", "\u20AC"}};
  for (const auto& [bytes, expected] : cases) {
    LossyUtf8 stream;
    std::string out;
    stream.push(bytes, out);
    stream.finish(out);
    EXPECT_EQ(out, expected);
  }
}

TEST(Detokenizer, AnyIdsStreamToTheWholeDecode) {
  EXPECT_TRUE(rc::check("stream equals whole", [](bool skip_special) {
    const Tokenizer& tokenizer = nano_tokenizer();
    // Low ids are single bytes, so half characters are common.
    const auto ids = *rc::gen::container<std::vector<int32_t>>(rc::gen::oneOf(
        rc::gen::inRange(0, 260), rc::gen::inRange(0, 8186), rc::gen::inRange(8160, 8186)));
    Detokenizer stream(tokenizer, skip_special);
    std::string joined;
    size_t bytes = 0;
    for (const int32_t id : ids) {
      const std::string part = stream.push(id);
      RC_ASSERT(!find_invalid_utf8(part).has_value());
      joined += part;
      if (!(skip_special && tokenizer.is_special(id))) bytes += tokenizer.token_bytes(id).size();
    }
    // Replacement characters are 3 bytes for 1 to 3, so the text never lags by more than 3 bytes.
    RC_ASSERT(joined.size() + 3 >= bytes);
    joined += stream.finish();
    RC_ASSERT(joined == tokenizer.decode(ids, skip_special).value());
  }));
}

TEST(Detokenizer, GivesNothingForIdsWithoutAToken) {
  Detokenizer stream(nano_tokenizer(), false);
  EXPECT_EQ(stream.push(8191), "");
  EXPECT_EQ(stream.push(-1), "");
  EXPECT_EQ(stream.push(64), "a");
}

struct Split {
  std::string reasoning;
  std::string content;
};

Split split(std::string_view reply, bool starts_in_reasoning, bool parse_special = true) {
  const auto ids = nano_tokenizer().encode(reply, {parse_special}).value();
  ReasoningSplitter splitter(nano_tokenizer(), starts_in_reasoning);
  Split whole;
  const auto add = [&](const ReasoningSplitter::Delta& delta) {
    EXPECT_TRUE(!find_invalid_utf8(delta.reasoning) && !find_invalid_utf8(delta.content));
    whole.reasoning += delta.reasoning;
    whole.content += delta.content;
  };
  for (const int32_t id : ids) add(splitter.push(id));
  add(splitter.finish());
  return whole;
}

TEST(ReasoningSplitter, SplitsReplies) {
  struct Case {
    const char* reply;
    bool in_reasoning;
    const char* reasoning;
    const char* content;
  };
  const Case cases[] = {
      {"thinking\n</think>\n\nHello", true, "thinking\n", "Hello"},
      {"<think>\nso</think>x", true, "so", "x"},
      {"\n<think>so</think>x", true, "so", "x"},
      {"<think><think>a</think>b", true, "<think>a", "b"},
      {"never closed", true, "never closed", ""},
      {"\n</think>\n\n", true, "\n", ""},
      {"</think>\n\n  Hi \n", true, "", "Hi \n"},
      {"a</think> b</think>\n c", true, "a", "b</think>\n c"},
      {"  hi <think>x", false, "", "  hi <think>x"},
      {"<think>\nr\n</think>\n\nc", false, "r\n", "c"},
      {" \n<think>r</think>c", false, "r", "c"},
      {"plain </think> text", false, "", "plain </think> text"},
      {"", true, "", ""},
      {"\n\n", false, "", "\n\n"},
      {"한</think>\n한<|im_end|>", true, "한", "한"},
  };
  for (const Case& each : cases) {
    const Split parts = split(each.reply, each.in_reasoning);
    EXPECT_EQ(parts.reasoning, each.reasoning) << each.reply;
    EXPECT_EQ(parts.content, each.content) << each.reply;
  }
}

TEST(ReasoningSplitter, MarkersSpelledByPlainTokensAreText) {
  const Split parts = split("a</think>b", true, false);
  EXPECT_EQ(parts.reasoning, "a</think>b");
  EXPECT_EQ(parts.content, "");
}

TEST(ReasoningSplitter, LosesNothingButMarkersAndSpace) {
  EXPECT_TRUE(rc::check("text without spaces comes through", [](bool starts) {
    const auto ids = *rc::gen::container<std::vector<int32_t>>(
        rc::gen::oneOf(rc::gen::inRange(64, 90), rc::gen::inRange(120, 180), rc::gen::just(8185)));
    ReasoningSplitter splitter(nano_tokenizer(), starts);
    std::string reasoning;
    std::string content;
    bool closed = !starts;
    std::vector<int32_t> before;
    std::vector<int32_t> after;
    for (const int32_t id : ids) {
      const auto delta = splitter.push(id);
      reasoning += delta.reasoning;
      content += delta.content;
      if (!closed && id == 8185) {
        closed = true;
      } else {
        (closed ? after : before).push_back(id);
      }
    }
    const auto delta = splitter.finish();
    RC_ASSERT(reasoning + delta.reasoning == nano_tokenizer().decode(before, true).value());
    RC_ASSERT(content + delta.content == nano_tokenizer().decode(after, true).value());
  }));
}

// The rule in plain words over the whole text.
std::pair<std::string, std::string> stop_plainly(const std::vector<std::string>& stops,
                                                 const std::string& text) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string best;
    for (const std::string& stop : stops) {
      const bool here = stop.size() <= end && !stop.empty() &&
                        text.compare(end - stop.size(), stop.size(), stop) == 0;
      if (here && stop.size() > best.size()) best = stop;
    }
    if (!best.empty()) return {text.substr(0, end - best.size()), best};
  }
  return {text, ""};
}

TEST(StopStringFilter, EverySplitGivesThePlainRule) {
  const std::vector<std::vector<std::string>> lists{
      {"END"}, {"aab", "ab"}, {"ab", "aab"}, {"abab"}, {"\n\n", "\n"}, {"aaa", "b"}, {"é한", "한"},
      {},      {""}};
  const std::vector<std::string> texts{"xxENDyy", "EEND",   "aaab", "ababab",
                                       "abaabab", "a\n\nb", "\n",   "aaéé한",
                                       "xE",      "",       "aab",  "ENENDEND"};
  for (const auto& stops : lists) {
    for (const std::string& text : texts) {
      const auto [expected, match] = stop_plainly(stops, text);
      for (size_t first = 0; first <= text.size(); ++first) {
        for (size_t second = first; second <= text.size(); ++second) {
          StopStringFilter filter(stops);
          std::string out = filter.push(text.substr(0, first));
          out += filter.push(text.substr(first, second - first));
          out += filter.push(text.substr(second));
          out += filter.finish();
          ASSERT_EQ(out, expected) << text << " " << first << " " << second;
          ASSERT_EQ(filter.matched(), !match.empty());
          if (filter.matched()) {
            ASSERT_EQ(filter.match(), match);
          }
        }
      }
    }
  }
}

TEST(StopStringFilter, RandomTextsGiveThePlainRule) {
  EXPECT_TRUE(rc::check("filter equals the plain rule", [] {
    const auto word = rc::gen::container<std::string>(rc::gen::element('a', 'b', 'c'));
    const auto stops = *rc::gen::container<std::vector<std::string>>(word);
    const auto parts = *rc::gen::container<std::vector<std::string>>(word);
    StopStringFilter filter(stops);
    std::string text;
    std::string out;
    for (const std::string& part : parts) {
      text += part;
      out += filter.push(part);
    }
    out += filter.finish();
    RC_ASSERT(out == stop_plainly(stops, text).first);
  }));
}

TEST(StopStringFilter, HoldsBackNoMoreThanItMust) {
  StopStringFilter filter({"abcd"});
  EXPECT_EQ(filter.push("xab"), "x");
  EXPECT_EQ(filter.push("ab"), "ab");
  EXPECT_EQ(filter.push("c"), "");
  EXPECT_EQ(filter.push("e"), "abce");
  EXPECT_EQ(filter.push("a"), "");
  EXPECT_EQ(filter.finish(), "a");
}

}  // namespace
}  // namespace flashlane::text
