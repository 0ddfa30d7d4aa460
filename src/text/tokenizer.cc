// Encoding: added tokens first, then per segment NFC, split, merges. Decoding: bytes joined, then
// made valid.
#include "text/tokenizer.h"

#include "text/nfc.h"
#include "text/utf8.h"

namespace flashlane::text {

bool Tokenizer::has_flag(int32_t id, Flag flag) const {
  return id >= 0 && id < vocabulary() && (flags_[static_cast<size_t>(id)] & flag) != 0;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (!has_flag(id, kDefined)) return {};
  const auto at = static_cast<size_t>(id);
  return std::string_view(bytes_).substr(offsets_[at], offsets_[at + 1] - offsets_[at]);
}

bool Tokenizer::is_special(int32_t id) const {
  return has_flag(id, kSpecial);
}
bool Tokenizer::is_added(int32_t id) const {
  return has_flag(id, kAdded);
}

std::optional<int32_t> Tokenizer::added_token(std::string_view content) const {
  const auto found = added_by_content_.find(std::string(content));
  if (found == added_by_content_.end()) return std::nullopt;
  return found->second;
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, EncodeOptions options) const {
  const Range whole{0, text.size()};
  return encode_ranges(text, std::span(&whole, options.parse_special ? 1 : 0));
}

Result<std::vector<int32_t>> Tokenizer::encode_pieces(std::span<const Piece> pieces) const {
  std::string text;
  std::vector<Range> ranges;
  for (const Piece& piece : pieces) {
    const size_t begin = text.size();
    text += piece.text;
    if (!piece.parse_special || piece.text.empty()) continue;
    // Neighbouring pieces of template text are one: a marker may be written in two steps.
    if (!ranges.empty() && ranges.back().end == begin) {
      ranges.back().end = text.size();
    } else {
      ranges.push_back({begin, text.size()});
    }
  }
  return encode_ranges(text, ranges);
}

Result<std::vector<int32_t>> Tokenizer::encode_ranges(std::string_view text,
                                                      std::span<const Range> special_ranges) const {
  if (const auto offset = find_invalid_utf8(text)) {
    return invalid("the text is not valid UTF-8 at byte {}", *offset);
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + 4);
  size_t done = 0;
  for (const Range& range : special_ranges) {
    for (size_t from = range.begin; from < range.end;) {
      const AddedTokens::Match match = added_.find(text, from, range.end);
      if (match.id < 0) break;
      RETURN_IF_ERROR(encode_plain(text.substr(done, match.begin - done), ids));
      ids.push_back(match.id);
      done = from = match.end;
    }
  }
  RETURN_IF_ERROR(encode_plain(text.substr(done), ids));
  return ids;
}

Status Tokenizer::encode_plain(std::string_view text, std::vector<int32_t>& ids) const {
  if (text.empty()) return {};
  std::string normal;
  if (normalize_nfc_ && !is_surely_nfc(text)) {
    normal = to_nfc(text);
    text = normal;
  }
  std::vector<std::string_view> words;
  if (pattern_ == nullptr) {
    words.push_back(text);
  } else {
    RETURN_IF_ERROR(pattern_->split(text, words));
  }
  for (const std::string_view word : words) {
    if (ignore_merges_) {
      if (const auto found = words_.find(word); found != words_.end()) {
        ids.push_back(found->second);
        continue;
      }
    }
    bpe_.encode(word, ids);
  }
  return {};
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string text;
  LossyUtf8 stream;
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocabulary()) {
      return invalid("token id {} is outside the vocabulary, 0 to {}", id, vocabulary() - 1);
    }
    if (skip_special && is_special(id)) continue;
    stream.push(token_bytes(id), text);
  }
  stream.finish(text);
  return text;
}

}  // namespace flashlane::text
