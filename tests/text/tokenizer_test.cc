// The tokenizer against recorded ids, its rules for added tokens and provenance, merges against a
// plain oracle, and every way in which a tokenizer.json may be wrong.
#include "text/tokenizer.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <thread>

#include "tests/text/text_fixtures.h"
#include "text/detokenizer.h"
#include "text/nfc.h"

namespace flashlane::text {
namespace {

namespace json = boost::json;

std::vector<int32_t> encode(const Tokenizer& tokenizer, std::string_view text,
                            bool parse_special = true) {
  return tokenizer.encode(text, {parse_special}).value();
}

std::unique_ptr<Tokenizer> small_tokenizer(const json::object& file = small_tokenizer_json()) {
  return Tokenizer::parse(json::serialize(file)).value();
}

TEST(Tokenizer, EncodesAndDecodesTheRecordedStrings) {
  const Tokenizer& tokenizer = nano_tokenizer();
  const json::value cases = read_json("tests/fixtures/tokenizer_strings.json");
  ASSERT_EQ(cases.as_array().size(), 133u);
  for (const json::value& each : cases.as_array()) {
    const std::string text(each.at("text").as_string());
    const auto ids = ids_of(each.at("ids"));
    EXPECT_EQ(encode(tokenizer, text), ids) << text;
    EXPECT_EQ(tokenizer.decode(ids, false).value(), each.at("decoded").as_string()) << text;
    EXPECT_EQ(tokenizer.decode(ids, true).value(), each.at("plain").as_string()) << text;
  }
}

TEST(Tokenizer, DecodesHalfCharactersAsRecorded) {
  const json::value cases = read_json("tests/fixtures/tokenizer_partial.json");
  ASSERT_EQ(cases.as_array().size(), 19u);
  for (const json::value& each : cases.as_array()) {
    const auto ids = ids_of(each.at("ids"));
    EXPECT_EQ(nano_tokenizer().decode(ids, false).value(), each.at("decoded").as_string());
  }
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer& tokenizer = nano_tokenizer();
  EXPECT_EQ(tokenizer.vocabulary(), 8186);
  EXPECT_EQ(tokenizer.added_token("<|im_end|>"), 8162);
  EXPECT_EQ(tokenizer.added_token("</think>"), 8185);
  EXPECT_EQ(tokenizer.added_token("nothing"), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(8162));
  EXPECT_TRUE(tokenizer.is_added(8185));
  EXPECT_FALSE(tokenizer.is_special(8185));
  EXPECT_FALSE(tokenizer.is_added(64));
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_FALSE(tokenizer.is_added(8186));
  EXPECT_EQ(tokenizer.token_bytes(64), "a");
  EXPECT_EQ(tokenizer.token_bytes(8185), "</think>");
  EXPECT_EQ(tokenizer.token_bytes(8186), "");
}

TEST(Tokenizer, RefusesIdsOutOfRangeByName) {
  const std::vector<int32_t> ids{64, 8186};
  EXPECT_EQ(nano_tokenizer().decode(ids, false).error().message,
            "token id 8186 is outside the vocabulary, 0 to 8185");
  const std::vector<int32_t> negative{-1};
  EXPECT_FALSE(nano_tokenizer().decode(negative, false).ok());
}

TEST(Tokenizer, RefusesMalformedTextAtItsOffset) {
  for (const auto& [text, offset] : std::vector<std::pair<std::string, int>>{
           {"ab\xFFz", 2}, {"\xC3", 0}, {"a\xE4\xB8", 1}, {"\xED\xA0\x80", 0}, {"é\x80", 2}}) {
    EXPECT_EQ(nano_tokenizer().encode(text, {}).error().message,
              "the text is not valid UTF-8 at byte " + std::to_string(offset));
  }
}

TEST(Tokenizer, PlainTextNeverBecomesAnAddedToken) {
  const Tokenizer& tokenizer = nano_tokenizer();
  const auto ids = encode(tokenizer, "a<|im_end|></think>", false);
  for (const int32_t id : ids) EXPECT_FALSE(tokenizer.is_added(id));
  EXPECT_EQ(tokenizer.decode(ids, true).value(), "a<|im_end|></think>");
}

TEST(Tokenizer, TakesTheLeftmostLongestAddedToken) {
  const auto tokenizer = small_tokenizer();
  EXPECT_EQ(encode(*tokenizer, "<a>>"), std::vector<int32_t>{260});
  EXPECT_EQ(encode(*tokenizer, "<a>x"), (std::vector<int32_t>{259, 'x'}));
  EXPECT_EQ(encode(*tokenizer, "<<a>"), (std::vector<int32_t>{'<', 259}));
}

using Pieces = std::vector<Tokenizer::Piece>;

TEST(Tokenizer, AnAddedTokenThatTouchesDataIsText) {
  const auto tokenizer = small_tokenizer();
  const auto added = [&](const Pieces& pieces) {
    std::vector<int32_t> found;
    const auto ids = tokenizer->encode_pieces(pieces).value();
    for (const int32_t id : ids) {
      if (tokenizer->is_added(id)) found.push_back(id);
    }
    return found;
  };
  EXPECT_EQ(added({{"<a>", true}}), std::vector<int32_t>{259});
  EXPECT_EQ(added({{"<a>", false}}), std::vector<int32_t>{});
  EXPECT_EQ(added({{"<", true}, {"a", false}, {">", true}}), std::vector<int32_t>{});
  EXPECT_EQ(added({{"<a", true}, {">", false}}), std::vector<int32_t>{});
  // Template text in two steps is one text; the longer token would need a byte of data.
  EXPECT_EQ(added({{"<a", true}, {"", false}, {">", true}}), std::vector<int32_t>{259});
  EXPECT_EQ(added({{"<a>", true}, {">", false}}), std::vector<int32_t>{259});
  EXPECT_EQ(added({{"<a>", true}, {">", true}}), std::vector<int32_t>{260});
}

TEST(Tokenizer, PiecesMergeAsTheJoinedText) {
  const Tokenizer& tokenizer = nano_tokenizer();
  const std::string text = "<|im_start|>user\nHello  wörld 한국어<|im_end|>\n";
  const auto whole = encode(tokenizer, text);
  for (size_t cut = 12; cut <= text.size() - 11; ++cut) {
    const std::string head = text.substr(0, cut);
    const Pieces safe{{head, true}, {std::string_view(text).substr(cut), true}};
    ASSERT_EQ(tokenizer.encode_pieces(safe).value(), whole) << cut;
  }
}

// The rule in its plainest words: join the leftmost pair of lowest rank until none is left.
std::vector<std::string> merge_plainly(const std::string& word, const json::array& merges) {
  std::vector<std::string> symbols;
  for (const char c : word) symbols.emplace_back(1, c);
  while (true) {
    size_t best = merges.size();
    size_t place = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (size_t rank = 0; rank < best; ++rank) {
        if (merges[rank].at(0).as_string() == symbols[i] &&
            merges[rank].at(1).as_string() == symbols[i + 1]) {
          best = rank;
          place = i;
        }
      }
    }
    if (best == merges.size()) return symbols;
    symbols[place] += symbols[place + 1];
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(place) + 1);
  }
}

TEST(Tokenizer, MergesAsThePlainRuleForShortAndLongWords) {
  EXPECT_TRUE(rc::check("merges equal the plain rule", [] {
    json::object file = small_tokenizer_json();
    json::object& model = file["model"].as_object();
    json::object& vocabulary = model["vocab"].as_object();
    json::array merges;
    std::vector<std::string> spellings{"a", "b", "c"};
    file["added_tokens"] = json::array{};
    const int count = *rc::gen::inRange(0, 12);
    for (int i = 0; i < count; ++i) {
      const auto left = spellings[*rc::gen::inRange<size_t>(0, spellings.size())];
      const auto right = spellings[*rc::gen::inRange<size_t>(0, spellings.size())];
      if (vocabulary.contains(left + right)) continue;
      vocabulary[left + right] = vocabulary.size();
      merges.push_back(json::array{left, right});
      spellings.push_back(left + right);
    }
    model["merges"] = merges;
    const auto tokenizer = small_tokenizer(file);
    std::string word;
    const int length = *rc::gen::inRange(1, 130);
    for (int i = 0; i < length; ++i) word += *rc::gen::element('a', 'b', 'c');
    std::vector<int32_t> expected;
    for (const std::string& symbol : merge_plainly(word, merges)) {
      expected.push_back(vocabulary.at(symbol).to_number<int32_t>());
    }
    RC_ASSERT(encode(*tokenizer, word) == expected);
  }));
}

TEST(Tokenizer, ReadsMergesAsLinesToo) {
  json::object file = small_tokenizer_json();
  json::array lines;
  for (const json::value& pair : file["model"].at("merges").as_array()) {
    lines.emplace_back(std::string(pair.at(0).as_string()) + " " +
                       std::string(pair.at(1).as_string()));
  }
  const auto pairs = small_tokenizer(file);
  file["model"].as_object()["merges"] = lines;
  const auto from_lines = small_tokenizer(file);
  for (const char* text : {"ababab", "abc bcbc", "cab"}) {
    EXPECT_EQ(encode(*pairs, text), encode(*from_lines, text));
  }
  EXPECT_EQ(encode(*pairs, "abab"), std::vector<int32_t>{257});
}

TEST(Tokenizer, IgnoreMergesTakesAWholeWord) {
  json::object file = small_tokenizer_json();
  file["model"].as_object()["vocab"].as_object()["xyz"] = 300;
  EXPECT_EQ(encode(*small_tokenizer(file), "xyz").size(), 3u);
  file["model"].as_object()["ignore_merges"] = true;
  EXPECT_EQ(encode(*small_tokenizer(file), "xyz"), std::vector<int32_t>{300});
}

TEST(Tokenizer, EveryTextComesBackInFormC) {
  EXPECT_TRUE(rc::check("decode(encode(text)) is NFC(text)", [] {
    const Tokenizer& tokenizer = nano_tokenizer();
    std::string text;
    for (const auto part : *rc::gen::container<std::vector<int>>(rc::gen::inRange(0, 14))) {
      constexpr const char* kParts[] = {"a",       " ",  "\n",       "<|im_end|>",   "é",
                                        "e\u0301", "한", "👍🏽", "\u0323\u0301", "\t",
                                        "'s",      "12", "<",        "世界"};
      text += kParts[part];
    }
    const auto ids = encode(tokenizer, text, false);
    RC_ASSERT(tokenizer.decode(ids, true).value() == to_nfc(text));
    const auto parsed = encode(tokenizer, text);
    RC_ASSERT(tokenizer.decode(parsed, false).value() == to_nfc(text));
  }));
}

TEST(Tokenizer, LongTextsOfOneKindTakeLinearWork) {
  // A quadratic path would take minutes here; the test's own time limit is the judge.
  for (const char* unit : {"a", " ", "\n", "!", "'", "1", "\u0301", "\u0315\u0323", "é", "世",
                           "ab ", " \n", "<", "<|im_start|"}) {
    std::string text;
    while (text.size() < (1u << 20)) text += unit;
    const auto ids = nano_tokenizer().encode(text, {});
    ASSERT_TRUE(ids.ok()) << unit << ": " << ids.error().message;
    EXPECT_EQ(nano_tokenizer().decode(*ids, false).value(), to_nfc(text)) << unit;
  }
}

TEST(Tokenizer, ManyThreadsMayUseOne) {
  const std::string text = "Hello, wörld! 123 <|im_end|>\n  don't 한국어";
  const auto expected = encode(nano_tokenizer(), text);
  std::vector<std::thread> threads;
  std::array<int, 4> wrong{};
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += encode(nano_tokenizer(), text) != expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, (std::array<int, 4>{}));
}

TEST(Tokenizer, WhiteSpaceIsSpelledOutForPcre) {
  EXPECT_EQ(spell_out_white_space("\\s+(?!\\S)"),
            "[\\p{Z}\\t-\\r\\x{85}]+(?![^\\p{Z}\\t-\\r\\x{85}])");
  EXPECT_EQ(spell_out_white_space("[^\\s\\p{L}]\\\\s"), "[^\\p{Z}\\t-\\r\\x{85}\\p{L}]\\\\s");
  EXPECT_EQ(spell_out_white_space("[]\\s]\\s"), "[]\\p{Z}\\t-\\r\\x{85}][\\p{Z}\\t-\\r\\x{85}]");
  // U+180E is no white space for a tokenizer: it is one word with the mark before it.
  const auto pattern = SplitPattern::compile(" ?[^\\s\\p{L}\\p{N}]+|\\s+|\\p{L}+").value();
  std::vector<std::string_view> words;
  ASSERT_TRUE(pattern->split("!\u180E a\u3000", words).ok());
  EXPECT_EQ(words, (std::vector<std::string_view>{"!\u180E", " ", "a", "\u3000"}));
}

TEST(Tokenizer, APatternsGapsAreWords) {
  const auto pattern = SplitPattern::compile("[0-9]+").value();
  std::vector<std::string_view> words;
  ASSERT_TRUE(pattern->split("añ12b", words).ok());
  EXPECT_EQ(words, (std::vector<std::string_view>{"añ", "12", "b"}));
}

TEST(Tokenizer, ARunawayPatternIsAnErrorNotAHang) {
  const auto pattern = SplitPattern::compile("(a+)+[bc]").value();
  std::vector<std::string_view> words;
  const Status status = pattern->split(std::string(200, 'a'), words);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.error().message.find("match limit"), std::string::npos)
      << status.error().message;
}

struct Spoiled {
  const char* path;   // JSON pointer
  const char* value;  // JSON; empty: remove the key
  const char* message;
};

class BadTokenizerFile : public testing::TestWithParam<Spoiled> {};

TEST_P(BadTokenizerFile, IsRefusedByName) {
  json::value file = small_tokenizer_json();
  const std::string path = GetParam().path;
  const size_t slash = path.rfind('/');
  json::value& parent = file.at_pointer(path.substr(0, slash));
  const std::string key = path.substr(slash + 1);
  if (*GetParam().value == '\0') {
    parent.as_object().erase(key);
  } else if (parent.is_array()) {
    parent.as_array()[std::stoul(key)] = json::parse(GetParam().value);
  } else {
    parent.as_object()[key] = json::parse(GetParam().value);
  }
  const auto tokenizer = Tokenizer::parse(json::serialize(file));
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_NE(tokenizer.error().message.find(GetParam().message), std::string::npos)
      << tokenizer.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    Keys, BadTokenizerFile,
    testing::Values(
        Spoiled{"/model", "", "model is missing"},
        Spoiled{"/model/type", "\"Unigram\"", "model type 'Unigram' is not supported"},
        Spoiled{"/model/vocab", "", "model vocab is missing"},
        Spoiled{"/model/vocab", "[]", "model vocab is missing"},
        Spoiled{"/model/vocab/a", "\"x\"", "vocab token 'a' has the id \"x\""},
        Spoiled{"/model/vocab/a", "-1", "vocab token 'a' has id -1"},
        Spoiled{"/model/vocab/a", "99999999", "has id 99999999, the limit is 4194303"},
        Spoiled{"/model/vocab/a", "1", "id 1 is given to two tokens"},
        Spoiled{"/model/vocab/a", "", "needs the token 'a', which vocab lacks"},
        Spoiled{"/model/vocab/z", "", "vocab has no token for the byte 0x7a"},
        Spoiled{"/model/vocab/", "900", "empty token"},
        Spoiled{"/model/merges", "", "model merges is missing"},
        Spoiled{"/model/merges/0", "[\"a\"]", "merge 0 is [\"a\"], not two tokens"},
        Spoiled{"/model/merges/0", "\"a b c\"", "merge 0 is \"a b c\", not two tokens"},
        Spoiled{"/model/merges/0", "7", "merge 0 is 7"},
        Spoiled{"/model/merges/1", "[\"a\",\"q\"]", "needs the token 'aq', which vocab lacks"},
        Spoiled{"/model/dropout", "0.1", "model dropout 0.1 is not supported"},
        Spoiled{"/model/byte_fallback", "true", "byte_fallback is not supported"},
        Spoiled{"/model/byte_fallback", "3", "byte_fallback is not true or false"},
        Spoiled{"/model/end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
        Spoiled{"/normalizer", "{\"type\":\"Lowercase\"}", "normalizer {\"type\":\"Lowercase\"}"},
        Spoiled{"/pre_tokenizer", "", "pre_tokenizer is missing"},
        Spoiled{"/pre_tokenizer", "{\"type\":\"Metaspace\"}", "Metaspace"},
        Spoiled{"/pre_tokenizer/add_prefix_space", "true", "add_prefix_space"},
        Spoiled{"/post_processor", "{\"type\":\"TemplateProcessing\"}", "TemplateProcessing"},
        Spoiled{"/decoder", "{\"type\":\"WordPiece\"}", "WordPiece"},
        Spoiled{"/decoder", "", "decoder is missing"},
        Spoiled{"/truncation", "{\"max_length\":5}", "truncation"},
        Spoiled{"/added_tokens", "{}", "added_tokens is not a list"},
        Spoiled{"/added_tokens/0", "5", "added token 5 is not an object"},
        Spoiled{"/added_tokens/0/content", "\"\"", "no content"},
        Spoiled{"/added_tokens/0/content", "\"<a>>\"", "'<a>>' is listed twice"},
        Spoiled{"/added_tokens/0/content", "\"ab\"", "'ab' has id 259, but vocab gives it 256"},
        Spoiled{"/added_tokens/0/id", "7", "id 7 is given to two tokens, the second is added"},
        Spoiled{"/added_tokens/0/id", "1.5", "no integer id"},
        Spoiled{"/added_tokens/0/lstrip", "true", "'<a>' with lstrip is not supported"},
        Spoiled{"/added_tokens/0/rstrip", "true", "with rstrip"},
        Spoiled{"/added_tokens/0/single_word", "true", "with single_word"},
        Spoiled{"/added_tokens/1/normalized", "", "'<a>>' with normalized"}));

TEST(Tokenizer, RefusesFilesThatAreNoObject) {
  EXPECT_FALSE(Tokenizer::parse("").ok());
  EXPECT_FALSE(Tokenizer::parse("[]").ok());
  EXPECT_FALSE(Tokenizer::parse("{\"model\":").ok());
  EXPECT_FALSE(Tokenizer::parse("\xFF").ok());
}

TEST(Tokenizer, RefusesSplitPatternsItCannotUse) {
  const auto with = [](const char* split) {
    json::object file = small_tokenizer_json();
    file["pre_tokenizer"] =
        json::parse(std::string("{\"type\":\"Sequence\",\"pretokenizers\":[") + split +
                    ",{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]}");
    const auto tokenizer = Tokenizer::parse(json::serialize(file));
    return tokenizer.ok() ? std::string("accepted") : tokenizer.error().message;
  };
  EXPECT_EQ(with(R"({"type":"Split","pattern":{"Regex":"\\s+"},"behavior":"Isolated"})"),
            "accepted");
  EXPECT_NE(
      with(R"({"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated"})").find("wrong near"),
      std::string::npos);
  EXPECT_NE(
      with(R"({"type":"Split","pattern":{"Regex":"a*"},"behavior":"Isolated"})").find("empty text"),
      std::string::npos);
  EXPECT_NE(
      with(R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"Removed"})").find("'Removed'"),
      std::string::npos);
  EXPECT_NE(
      with(R"({"type":"Split","pattern":{"String":"a"},"behavior":"Isolated"})").find("pattern"),
      std::string::npos);
  EXPECT_NE(with(R"({"type":"Digits"})").find("only Split"), std::string::npos);
}

}  // namespace
}  // namespace flashlane::text
