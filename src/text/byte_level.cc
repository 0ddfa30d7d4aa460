// Printable Latin-1 bytes stand for themselves; the 68 others are numbered from U+0100 in order.
#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace flashlane::text {
namespace {

constexpr size_t kAlphabetEnd = 0x100 + 68;

constexpr bool stands_for_itself(int byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, 256> kCharacters = [] {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    characters[static_cast<size_t>(byte)] =
        stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return characters;
}();

constexpr std::array<int, kAlphabetEnd> kBytes = [] {
  std::array<int, kAlphabetEnd> bytes{};
  for (int& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) bytes[kCharacters[static_cast<size_t>(byte)]] = byte;
  return bytes;
}();

}  // namespace

char32_t byte_level_character(unsigned char byte) {
  return kCharacters[byte];
}

std::optional<std::string> byte_level_bytes(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  for (size_t at = 0; at < spelling.size();) {
    const CodePoint point = decode_utf8(spelling, at);
    if (point.length == 0 || point.value >= kAlphabetEnd || kBytes[point.value] < 0) {
      return std::nullopt;
    }
    bytes += static_cast<char>(kBytes[point.value]);
    at += point.length;
  }
  return bytes;
}

}  // namespace flashlane::text
