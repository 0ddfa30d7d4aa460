// Slices share bytes, so only what joins or changes text is charged to the budget by size.
#include "text/template_strings.h"

#include <utf8proc.h>

#include <algorithm>

#include "text/template_print.h"
#include "text/utf8.h"

namespace flashlane::text {
namespace {

bool is_one_of(std::string_view characters, std::string_view character) {
  for (size_t at = 0; at < characters.size();) {
    const size_t length = std::max<size_t>(1, decode_utf8(characters, at).length);
    if (characters.substr(at, length) == character) return true;
    at += length;
  }
  return false;
}

bool is_letter(char32_t point) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(point));
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

}  // namespace

Text strip(const Text& text, const std::string_view* characters, Side side) {
  const std::string_view view = text.view();
  size_t begin = 0;
  size_t end = view.size();
  if (characters == nullptr) {
    if (side != Side::kRight) begin = skip_leading_space(view);
    if (side != Side::kLeft) end = std::max(begin, skip_trailing_space(view));
    return text.slice(begin, end);
  }
  while (side != Side::kRight && begin < end) {
    const size_t length = std::max<size_t>(1, decode_utf8(view, begin).length);
    if (!is_one_of(*characters, view.substr(begin, length))) break;
    begin += length;
  }
  while (side != Side::kLeft && end > begin) {
    size_t start = end - 1;
    while (start > begin && (static_cast<uint8_t>(view[start]) & 0xC0) == 0x80) --start;
    if (!is_one_of(*characters, view.substr(start, end - start))) break;
    end = start;
  }
  return text.slice(begin, end);
}

Result<std::vector<Value>> split(const Text& text, std::string_view separator, int64_t limit,
                                 bool from_right, Budget& budget) {
  if (separator.empty()) return invalid("split: the separator is empty");
  const std::string_view view = text.view();
  RETURN_IF_ERROR(budget.spend_steps(view.size() / 16 + 1));
  std::vector<Value> parts;
  const auto more = [&] { return limit < 0 || static_cast<int64_t>(parts.size()) < limit; };
  if (!from_right) {
    size_t begin = 0;
    for (size_t at = view.find(separator); at != view.npos && more();
         at = view.find(separator, begin)) {
      parts.push_back(Value::text(text.slice(begin, at)));
      begin = at + separator.size();
      RETURN_IF_ERROR(budget.spend_items(1));
    }
    parts.push_back(Value::text(text.slice(begin, view.size())));
    return parts;
  }
  size_t end = view.size();
  while (more() && end >= separator.size()) {
    const size_t at = view.rfind(separator, end - separator.size());
    if (at == view.npos) break;
    parts.push_back(Value::text(text.slice(at + separator.size(), end)));
    end = at;
    RETURN_IF_ERROR(budget.spend_items(1));
  }
  parts.push_back(Value::text(text.slice(0, end)));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Result<std::vector<Value>> split_at_space(const Text& text, int64_t limit, Budget& budget) {
  const std::string_view view = text.view();
  RETURN_IF_ERROR(budget.spend_steps(view.size() / 16 + 1));
  std::vector<Value> parts;
  size_t at = skip_leading_space(view);
  while (at < view.size()) {
    if (limit >= 0 && static_cast<int64_t>(parts.size()) == limit) {
      parts.push_back(Value::text(text.slice(at, view.size())));  // its end stays as it is
      break;
    }
    size_t end = at;
    while (end < view.size()) {
      const CodePoint point = decode_utf8(view, end);
      if (is_unicode_space(point.value)) break;
      end += std::max<size_t>(1, point.length);
    }
    parts.push_back(Value::text(text.slice(at, end)));
    RETURN_IF_ERROR(budget.spend_items(1));
    at = end + skip_leading_space(view.substr(end));
  }
  return parts;
}

Result<std::vector<Value>> split_lines(const Text& text, Budget& budget) {
  const std::string_view view = text.view();
  std::vector<Value> lines;
  for (size_t begin = 0; begin < view.size();) {
    size_t end = std::min(view.find_first_of("\r\n", begin), view.size());
    lines.push_back(Value::text(text.slice(begin, end)));
    RETURN_IF_ERROR(budget.spend_items(1));
    if (view.substr(end, 2) == "\r\n") ++end;
    begin = end + 1;
  }
  return lines;
}

Result<Text> replace(const Text& text, std::string_view old_part, const Text& new_part,
                     int64_t limit, Budget& budget) {
  const std::string_view view = text.view();
  TextBuilder out;
  size_t done = 0;
  int64_t count = 0;
  const auto put = [&](size_t at) -> Status {
    out.append(text.slice(done, at));
    out.append(new_part);
    done = at;
    ++count;
    RETURN_IF_ERROR(budget.spend_steps(1));
    return budget.spend_text(new_part);
  };
  RETURN_IF_ERROR(budget.spend_text(text));
  if (old_part.empty()) {  // Python puts the new part around every character
    for (size_t at = 0; at <= view.size() && (limit < 0 || count < limit);) {
      RETURN_IF_ERROR(put(at));
      at += at < view.size() ? std::max<size_t>(1, decode_utf8(view, at).length) : 1;
    }
  } else {
    for (size_t at = view.find(old_part); at != view.npos && (limit < 0 || count < limit);
         at = view.find(old_part, done)) {
      RETURN_IF_ERROR(put(at));
      done = at + old_part.size();
    }
  }
  out.append(text.slice(done, view.size()));
  if (out.size() > Budget::kMaxTextBytes) return invalid("replace: the text becomes too long");
  return out.take();
}

Result<Text> change_case(const Text& text, Case kind, Budget& budget) {
  const std::string_view view = text.view();
  RETURN_IF_ERROR(budget.spend_bytes(view.size() * 2));
  TextBuilder out;
  bool inside_word = false;
  size_t range = 0;
  for (size_t at = 0; at < view.size();) {
    const CodePoint point = decode_utf8(view, at);
    const bool upper = kind == Case::kUpper || (kind != Case::kLower && !inside_word);
    const auto code = static_cast<utf8proc_int32_t>(point.value);
    std::string changed;
    append_utf8(changed,
                static_cast<char32_t>(upper ? utf8proc_toupper(code) : utf8proc_tolower(code)));
    while (range < text.data().size() && text.data()[range].end <= at) ++range;
    out.append(changed, range < text.data().size() && text.data()[range].begin <= at);
    inside_word = kind == Case::kCapitalized || is_letter(point.value);
    at += std::max<size_t>(1, point.length);
  }
  return out.take();
}

Result<Text> join(const std::vector<Value>& items, const Text& separator, Budget& budget) {
  TextBuilder out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.append(separator);
    ASSIGN_OR_RETURN(const Text part, print(items[i], Budget::kMaxTextBytes));
    RETURN_IF_ERROR(budget.spend_text(part));
    RETURN_IF_ERROR(budget.spend_text(separator));
    out.append(part);
    if (out.size() > Budget::kMaxTextBytes) return invalid("join: the text becomes too long");
  }
  return out.take();
}

}  // namespace flashlane::text
