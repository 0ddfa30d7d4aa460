// One description of a lead byte (how many continuations, and the bounds of the first) serves both
// the checked decoder and the stream, so that they can't disagree about what is valid.
#include "text/utf8.h"

#include "base/check.h"

namespace flashlane::text {
namespace {

struct Lead {
  int continuations = -1;  // -1: no character starts with this byte
  uint8_t lower = 0x80;
  uint8_t upper = 0xBF;
};

// The narrowed bounds keep out overlong forms, surrogates and values above U+10FFFF.
constexpr Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {0};
  if (byte >= 0xC2 && byte <= 0xDF) return {1};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {};
}

}  // namespace

CodePoint decode_utf8(std::string_view text, size_t at) {
  CHECK_LT(at, text.size());
  const auto first = static_cast<uint8_t>(text[at]);
  if (first < 0x80) return {first, 1};
  const Lead lead = lead_of(first);
  const size_t length = static_cast<size_t>(lead.continuations + 1);
  if (lead.continuations < 0 || text.size() - at < length) return {};
  char32_t value = first & (0x3F >> lead.continuations);
  for (size_t i = 1; i < length; ++i) {
    const auto byte = static_cast<uint8_t>(text[at + i]);
    const uint8_t lower = i == 1 ? lead.lower : 0x80;
    const uint8_t upper = i == 1 ? lead.upper : 0xBF;
    if (byte < lower || byte > upper) return {};
    value = value << 6 | (byte & 0x3F);
  }
  return {value, length};
}

std::optional<size_t> find_invalid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    if (point.length == 0) return at;
    at += point.length;
  }
  return std::nullopt;
}

void append_utf8(std::string& out, char32_t code_point) {
  const auto tail = [&](int shift) {
    out += static_cast<char>(0x80 | ((code_point >> shift) & 0x3F));
  };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += static_cast<char>(0xC0 | code_point >> 6);
    tail(0);
  } else if (code_point < 0x10000) {
    out += static_cast<char>(0xE0 | code_point >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | code_point >> 18);
    tail(12);
    tail(6);
    tail(0);
  }
}

size_t count_code_points(std::string_view text) {
  size_t count = 0;
  for (const char c : text) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80;
  return count;
}

bool is_unicode_space(char32_t c) {
  if (c < 0x80) return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

size_t skip_leading_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    // Most spaces are ASCII, and a hostile text has millions.
    const auto first = static_cast<uint8_t>(text[at]);
    if (first < 0x80) {
      if (!is_unicode_space(first)) break;
      ++at;
      continue;
    }
    const CodePoint point = decode_utf8(text, at);
    if (point.length == 0 || !is_unicode_space(point.value)) break;
    at += point.length;
  }
  return at;
}

size_t skip_trailing_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t start = end - 1;
    const auto last = static_cast<uint8_t>(text[start]);
    if (last < 0x80) {
      if (!is_unicode_space(last)) break;
      end = start;
      continue;
    }
    while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) --start;
    const CodePoint point = decode_utf8(text, start);
    if (point.length != end - start || !is_unicode_space(point.value)) break;
    end = start;
  }
  return end;
}

void LossyUtf8::start(uint8_t byte, std::string& out) {
  const Lead lead = lead_of(byte);
  if (lead.continuations == 0) {
    out += static_cast<char>(byte);
  } else if (lead.continuations < 0) {
    out += kReplacement;
  } else {
    held_[0] = static_cast<char>(byte);
    held_count_ = 1;
    needed_ = lead.continuations;
    lower_ = lead.lower;
    upper_ = lead.upper;
  }
}

void LossyUtf8::push(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (needed_ == 0) {
      start(byte, out);
      continue;
    }
    if (byte < lower_ || byte > upper_) {
      finish(out);
      start(byte, out);
      continue;
    }
    lower_ = 0x80;
    upper_ = 0xBF;
    held_[held_count_++] = c;
    if (--needed_ == 0) {
      out.append(held_, static_cast<size_t>(held_count_));
      held_count_ = 0;
    }
  }
}

void LossyUtf8::finish(std::string& out) {
  if (needed_ > 0) out += kReplacement;
  needed_ = 0;
  held_count_ = 0;
}

}  // namespace flashlane::text
