#include "memory/session_list.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>

namespace flashlane::memory {

namespace {

constexpr int kMostTokens = std::numeric_limits<int>::max() - kSessionMargin;

struct Entry {
  int64_t tokens = 0;
  int64_t repeats = 1;
};

bool is_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// Where the number is greater than the type, its greatest value: more than any limit allows.
int64_t number_of(std::string_view digits) {
  int64_t value = 0;
  const auto [end, failed] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return failed == std::errc() ? value : std::numeric_limits<int64_t>::max();
}

// `place` counts from 1.
Result<Entry> parse_entry(std::string_view text, int place) {
  const size_t cross = text.find('x');
  const std::string_view tokens = text.substr(0, cross);
  const std::string_view repeats = cross == std::string_view::npos ? "1" : text.substr(cross + 1);
  if (!is_digits(tokens) || !is_digits(repeats)) {
    return invalid("entry {} is '{}'; it must be TOKENS or TOKENSxREPEATS, in digits", place, text);
  }
  const Entry entry = {.tokens = number_of(tokens), .repeats = number_of(repeats)};
  if (entry.tokens < 1 || entry.tokens > kMostTokens) {
    return invalid("entry {} is '{}'; its tokens must be 1 to {}", place, text, kMostTokens);
  }
  if (entry.repeats < 1) return invalid("entry {} is '{}'; it repeats at least once", place, text);
  return entry;
}

}  // namespace

Result<std::vector<int>> parse_session_list(std::string_view text, int most, int limit) {
  CHECK_GE(most, 0);
  CHECK_GE(limit, 1);
  std::vector<int> capacities;
  int place = 0;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    const std::string_view entry_text = text.substr(start, end - start);
    ASSIGN_OR_RETURN(const Entry entry, parse_entry(entry_text, ++place));
    const int listed = static_cast<int>(capacities.size());
    if (entry.repeats > most - listed) {
      return invalid("entry {} is '{}'; {} sessions are the most, and {} are listed before it",
                     place, entry_text, most, listed);
    }
    const int rows = static_cast<int>(entry.tokens) + kSessionMargin;
    capacities.insert(capacities.end(), static_cast<size_t>(entry.repeats), std::min(limit, rows));
    start = end + 1;
  }
  return capacities;
}

}  // namespace flashlane::memory
