// UTF-8 by code points: checking, decoding, appending, and the lossy stream that turns any bytes
// into valid text. An incomplete or invalid sequence becomes one U+FFFD per maximal subpart, so a
// stream cut anywhere gives the same text as the whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flashlane::text {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

struct CodePoint {
  char32_t value = 0;
  size_t length = 0;  // bytes; 0 means that no valid character starts here
};

// The character that starts at byte `at`, which must be inside `text`.
CodePoint decode_utf8(std::string_view text, size_t at);
// Offset of the first byte that starts no valid character; nothing if all of it is valid.
std::optional<size_t> find_invalid_utf8(std::string_view text);
void append_utf8(std::string& out, char32_t code_point);
// Characters of valid UTF-8.
size_t count_code_points(std::string_view text);
// What Python's str.isspace and str.strip take for white space.
bool is_unicode_space(char32_t code_point);
// Bounds of `text` (valid UTF-8) without the white space at its ends.
size_t skip_leading_space(std::string_view text);
size_t skip_trailing_space(std::string_view text);

class LossyUtf8 {
 public:
  // Appends to `out` every character that is complete; holds back at most 3 bytes.
  void push(std::string_view bytes, std::string& out);
  void finish(std::string& out);

 private:
  void start(uint8_t byte, std::string& out);

  char held_[4] = {};
  int held_count_ = 0;
  int needed_ = 0;  // continuation bytes still to come
  uint8_t lower_ = 0x80;
  uint8_t upper_ = 0xBF;
};

}  // namespace flashlane::text
