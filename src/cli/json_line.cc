// Appends to one string; the only state is whether the next value needs a comma before it.
#include "cli/json_line.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

#include "text/utf8.h"

namespace flashlane::cli {

namespace {

void append_escaped(std::string& out, char c) {
  switch (c) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    default:
      break;
  }
  if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
    fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
  } else {
    out.push_back(c);
  }
}

}  // namespace

std::string json_string(std::string_view text) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const size_t count = text::decode_utf8(text, at).length;
    if (count == 0) {
      out += text::kReplacement;
    } else if (count == 1) {
      append_escaped(out, text[at]);
    } else {
      out += text.substr(at, count);
    }
    at += count == 0 ? 1 : count;
  }
  out.push_back('"');
  return out;
}

void JsonLine::separate() {
  if (comma_) out_.push_back(',');
  comma_ = true;
}

JsonLine& JsonLine::begin_object() {
  separate();
  out_.push_back('{');
  comma_ = false;
  return *this;
}

JsonLine& JsonLine::end_object() {
  out_.push_back('}');
  comma_ = true;
  return *this;
}

JsonLine& JsonLine::begin_array() {
  separate();
  out_.push_back('[');
  comma_ = false;
  return *this;
}

JsonLine& JsonLine::end_array() {
  out_.push_back(']');
  comma_ = true;
  return *this;
}

JsonLine& JsonLine::key(std::string_view name) {
  separate();
  out_ += json_string(name);
  out_.push_back(':');
  comma_ = false;
  return *this;
}

JsonLine& JsonLine::text(std::string_view value) {
  separate();
  out_ += json_string(value);
  return *this;
}

JsonLine& JsonLine::integer(int64_t value) {
  separate();
  fmt::format_to(std::back_inserter(out_), "{}", value);
  return *this;
}

JsonLine& JsonLine::unsigned_integer(uint64_t value) {
  separate();
  fmt::format_to(std::back_inserter(out_), "{}", value);
  return *this;
}

JsonLine& JsonLine::number(double value) {
  if (!std::isfinite(value)) return null();
  separate();
  fmt::format_to(std::back_inserter(out_), "{:.9g}", value);
  return *this;
}

JsonLine& JsonLine::boolean(bool value) {
  separate();
  out_ += value ? "true" : "false";
  return *this;
}

JsonLine& JsonLine::null() {
  separate();
  out_ += "null";
  return *this;
}

JsonLine& JsonLine::ids(std::span<const int32_t> values) {
  begin_array();
  for (const int32_t value : values) integer(value);
  return end_array();
}

void JsonLine::clear() {
  out_.clear();
  comma_ = false;
}

}  // namespace flashlane::cli
