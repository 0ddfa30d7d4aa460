// Reads a tokenizer.json into a Tokenizer: checks every key that changes ids, and builds the
// tables. Nothing in the file is trusted; what is not built is refused with the key's name and
// value.
#pragma once

#include <simdjson.h>

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/tokenizer.h"

namespace flashlane::text {

class TokenizerReader {
 public:
  Result<std::unique_ptr<Tokenizer>> read(std::string_view json);

 private:
  struct Entry {
    std::string bytes;
    bool byte_level = false;
    uint8_t flags = 0;
  };

  Status read_root(simdjson::dom::object root);
  Status read_normalizer(simdjson::dom::object root);
  Status read_pre_tokenizer(simdjson::dom::object root);
  Status read_split(simdjson::dom::object step);
  Status read_byte_level(simdjson::dom::object step, bool alone);
  Status read_ends(simdjson::dom::object root);
  Status read_model(simdjson::dom::object root);
  Status read_vocabulary(simdjson::dom::object vocabulary);
  Status read_merges(simdjson::dom::array merges);
  Status read_merge(simdjson::dom::element element, size_t rank, MergeTable& table);
  Status read_added(simdjson::dom::object root);
  Status read_added_token(simdjson::dom::object token);
  Result<size_t> claim_id(std::string_view what, int64_t id);
  Status build_tables();

  std::unique_ptr<Tokenizer> tokenizer_;
  std::vector<Entry> entries_;                                 // by id
  std::unordered_map<std::string_view, int32_t> by_spelling_;  // views into the parsed JSON
  MergeTable merges_;
};

}  // namespace flashlane::text
