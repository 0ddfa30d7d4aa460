// The byte-level alphabet of GPT-2: each of the 256 bytes is written as one printable character, so
// that a JSON vocabulary can spell any bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace flashlane::text {

// The character that stands for `byte`.
char32_t byte_level_character(unsigned char byte);
// The bytes a byte-level spelling (valid UTF-8) stands for; nothing if a character is not in the
// alphabet.
std::optional<std::string> byte_level_bytes(std::string_view spelling);

}  // namespace flashlane::text
