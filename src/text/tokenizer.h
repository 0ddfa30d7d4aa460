// Byte-level BPE as in a tokenizer.json: text to ids and back. Immutable after parse, so many
// threads may use one; everything in the file that would change ids and is not built is refused by
// name.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/split_pattern.h"

namespace flashlane::text {

class Tokenizer {
 public:
  // Errors name what is wrong in the file.
  static Result<std::unique_ptr<Tokenizer>> parse(std::string_view tokenizer_json);

  struct EncodeOptions {
    bool parse_special = true;  // false: added tokens spelled in the text are plain text
  };
  // Invalid UTF-8 is refused, naming the byte offset.
  Result<std::vector<int32_t>> encode(std::string_view text, EncodeOptions options) const;

  struct Piece {
    std::string_view text;
    bool parse_special = true;
  };
  // The ids of the joined text, where an added token counts only if all of its bytes come from
  // pieces with parse_special: what a message spells, alone or with its neighbours, is no marker.
  Result<std::vector<int32_t>> encode_pieces(std::span<const Piece> pieces) const;

  // Incomplete or invalid bytes become U+FFFD. An id out of range is an error; an id inside the
  // range that the file does not define decodes to nothing.
  Result<std::string> decode(std::span<const int32_t> ids, bool skip_special) const;

  int vocabulary() const { return static_cast<int>(flags_.size()); }  // highest id + 1
  // Raw bytes; added tokens: their content. Empty for an id without a token.
  std::string_view token_bytes(int32_t id) const;
  bool is_special(int32_t id) const;  // added token with "special": true
  bool is_added(int32_t id) const;
  std::optional<int32_t> added_token(std::string_view content) const;

 private:
  friend class TokenizerReader;
  struct Range {
    size_t begin = 0;
    size_t end = 0;
  };
  enum Flag : uint8_t { kDefined = 1, kAdded = 2, kSpecial = 4 };

  Tokenizer() = default;
  bool has_flag(int32_t id, Flag flag) const;
  Result<std::vector<int32_t>> encode_ranges(std::string_view text,
                                             std::span<const Range> special_ranges) const;
  Status encode_plain(std::string_view text, std::vector<int32_t>& ids) const;

  std::vector<uint8_t> flags_;   // by id
  std::vector<size_t> offsets_;  // by id, one more at the end, into bytes_
  std::string bytes_;
  std::unordered_map<std::string, int32_t> added_by_content_;
  AddedTokens added_;
  bool normalize_nfc_ = false;
  bool ignore_merges_ = false;
  std::unordered_map<std::string_view, int32_t> words_;  // bytes -> id, only for ignore_merges
  std::unique_ptr<SplitPattern> pattern_;                // null: a segment is one word
  Bpe bpe_;
};

}  // namespace flashlane::text
