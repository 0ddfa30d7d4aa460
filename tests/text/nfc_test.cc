// Form C against utf8proc's own, and the claim that inert characters may skip it.
#include "text/nfc.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <utf8proc.h>

#include <cstdlib>
#include <set>

#include "text/utf8.h"

namespace flashlane::text {
namespace {

std::string reference_nfc(const std::string& text) {
  utf8proc_uint8_t* out = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &out,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  EXPECT_GE(length, 0);
  std::string result(reinterpret_cast<const char*>(out), static_cast<size_t>(length));
  std::free(out);
  return result;
}

TEST(Nfc, InertCharactersStayAndNeverJoinTheOneBefore) {
  std::set<char32_t> seconds;  // characters that some composition ends with
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    utf8proc_int32_t parts[16];
    int boundary = 0;
    const auto count = utf8proc_decompose_char(
        static_cast<utf8proc_int32_t>(c), parts, 16,
        static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE), &boundary);
    for (utf8proc_ssize_t i = 1; i < count; ++i) seconds.insert(static_cast<char32_t>(parts[i]));
  }
  ASSERT_TRUE(seconds.contains(0x301));
  for (char32_t c = 0; c <= 0x10FFFF; ++c) {
    if ((c >= 0xD800 && c <= 0xDFFF) || !is_nfc_inert(c)) continue;
    std::string text;
    append_utf8(text, c);
    ASSERT_EQ(reference_nfc(text), text) << static_cast<uint32_t>(c);
    ASSERT_EQ(utf8proc_get_property(static_cast<utf8proc_int32_t>(c))->combining_class, 0)
        << static_cast<uint32_t>(c);
    ASSERT_FALSE(seconds.contains(c)) << static_cast<uint32_t>(c);
  }
}

TEST(Nfc, EqualsTheLibraryOnRandomText) {
  EXPECT_TRUE(rc::check("own ordering equals the library's", [] {
    std::string text;
    const auto points = *rc::gen::container<std::vector<uint32_t>>(rc::gen::oneOf(
        rc::gen::inRange<uint32_t>(0x41, 0x250), rc::gen::inRange<uint32_t>(0x300, 0x370),
        rc::gen::inRange<uint32_t>(0x1100, 0x1200), rc::gen::inRange<uint32_t>(0xAC00, 0xAC40),
        rc::gen::inRange<uint32_t>(0x900, 0xD00), rc::gen::inRange<uint32_t>(0x1E00, 0x2200),
        rc::gen::inRange<uint32_t>(0x3040, 0x3100), rc::gen::inRange<uint32_t>(0x10000, 0x20000)));
    for (const uint32_t point : points) append_utf8(text, point);
    RC_ASSERT(to_nfc(text) == reference_nfc(text));
    RC_ASSERT(!is_surely_nfc(text) || reference_nfc(text) == text);
  }));
}

}  // namespace
}  // namespace flashlane::text
