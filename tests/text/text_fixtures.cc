// Fixture files are part of the tree: a missing one fails the test that asks for it.
#include "tests/text/text_fixtures.h"

#include <fstream>
#include <sstream>

#include "base/check.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace flashlane::text {

namespace json = boost::json;

std::string read_file(const std::string& path_in_tree) {
  std::ifstream file(std::string(FLASHLANE_SOURCE_DIR) + "/" + path_in_tree, std::ios::binary);
  CHECK(file.good());
  std::stringstream content;
  content << file.rdbuf();
  return content.str();
}

json::value read_json(const std::string& path_in_tree) {
  return json::parse(read_file(path_in_tree));
}

const Tokenizer& nano_tokenizer() {
  static const auto tokenizer =
      Tokenizer::parse(read_file("models/flash-next-nano-6bit/tokenizer.json")).value().release();
  return *tokenizer;
}

const ChatTemplate& nano_template() {
  static const auto chat_template =
      ChatTemplate::parse(read_file("models/flash-next-nano-6bit/chat_template.jinja"))
          .value()
          .release();
  return *chat_template;
}

std::vector<int32_t> ids_of(const json::value& list) {
  std::vector<int32_t> ids;
  for (const json::value& id : list.as_array()) ids.push_back(id.to_number<int32_t>());
  return ids;
}

json::object small_tokenizer_json() {
  json::object vocabulary;
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    append_utf8(spelling, byte_level_character(static_cast<unsigned char>(byte)));
    vocabulary[spelling] = byte;
  }
  json::array merges;
  const auto merge = [&](const char* left, const char* right) {
    vocabulary[std::string(left) + right] = vocabulary.size();
    merges.push_back(json::array{left, right});
  };
  merge("a", "b");
  merge("ab", "ab");
  merge("b", "c");
  json::array added;
  const auto add = [&](const char* content, bool special) {
    added.push_back(json::object{{"id", 256 + merges.size() + added.size()},
                                 {"content", content},
                                 {"special", special},
                                 {"normalized", false}});
  };
  add("<a>", true);
  add("<a>>", false);
  add("</think>", false);
  add("<think>", false);
  add("<|end|>", true);
  return {{"added_tokens", added},
          {"normalizer", json::object{{"type", "NFC"}}},
          {"pre_tokenizer",
           json::object{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"decoder", json::object{{"type", "ByteLevel"}}},
          {"model", json::object{{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}}};
}

}  // namespace flashlane::text
