// Decompose each character, order the marks, compose: utf8proc gives the tables and the first and
// last step; ordering is ours because utf8proc's is quadratic on long runs of marks.
#include "text/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "text/utf8.h"

namespace flashlane::text {
namespace {

constexpr auto kOptions = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE);

int combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

std::vector<utf8proc_int32_t> decompose(std::string_view text) {
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const CodePoint point = decode_utf8(text, at);
    CHECK_GT(point.length, 0u);
    at += point.length;
    utf8proc_int32_t parts[16];  // the longest canonical decomposition has 4
    int boundary = 0;
    const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(point.value), parts,
                                               16, kOptions, &boundary);
    CHECK(count >= 0 && count <= 16);
    points.insert(points.end(), parts, parts + count);
  }
  return points;
}

void order_marks(std::vector<utf8proc_int32_t>& points) {
  for (size_t begin = 0; begin < points.size();) {
    if (combining_class(points[begin]) == 0) {
      ++begin;
      continue;
    }
    size_t end = begin;
    while (end < points.size() && combining_class(points[end]) != 0) ++end;
    std::stable_sort(points.begin() + static_cast<ptrdiff_t>(begin),
                     points.begin() + static_cast<ptrdiff_t>(end),
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

}  // namespace

bool is_nfc_inert(char32_t c) {
  if (c < 0x300) return true;
  return (c >= 0x0400 && c <= 0x0482) ||  // Cyrillic
         (c >= 0x2010 && c <= 0x2027) ||  // dashes, quotes, ellipsis
         (c >= 0x3001 && c <= 0x3029) ||  // CJK punctuation
         (c >= 0x3041 && c <= 0x3096) ||  // Hiragana, without the combining sound marks
         (c >= 0x30A1 && c <= 0x30FE) ||  // Katakana
         (c >= 0x3400 && c <= 0x9FFF) ||  // CJK ideographs
         (c >= 0xAC00 && c <= 0xD7A3) ||  // Hangul syllables; loose jamo take the long way
         (c >= 0xFF01 && c <= 0xFF60) ||  // full-width forms
         (c >= 0x1F300 && c <= 0x1FAFF);  // emoji
}

bool is_surely_nfc(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < 0xCC) {  // below U+0300
      at += static_cast<uint8_t>(text[at]) < 0x80 ? 1 : 2;
      continue;
    }
    const CodePoint point = decode_utf8(text, at);
    if (point.length == 0 || !is_nfc_inert(point.value)) return false;
    at += point.length;
  }
  return true;
}

std::string to_nfc(std::string_view text) {
  if (is_surely_nfc(text)) return std::string(text);
  std::vector<utf8proc_int32_t> points = decompose(text);
  order_marks(points);
  const auto count = utf8proc_normalize_utf32(
      points.data(), static_cast<utf8proc_ssize_t>(points.size()), kOptions);
  CHECK_GE(count, 0);
  std::string out;
  out.reserve(text.size());
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    append_utf8(out, static_cast<char32_t>(points[static_cast<size_t>(i)]));
  }
  return out;
}

}  // namespace flashlane::text
