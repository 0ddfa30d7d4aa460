// JsonLine: one JSON object or array written left to right, the way every `--json` output is made.
// Floats are printed with 9 significant digits, which bring a float back to the bit; doubles of
// times and sizes likewise. Not a document model: what is written stays written.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace flashlane::cli {

// A JSON string literal with quotes; bytes that are not UTF-8 become U+FFFD.
std::string json_string(std::string_view text);

class JsonLine {
 public:
  JsonLine& begin_object();
  JsonLine& end_object();
  JsonLine& begin_array();
  JsonLine& end_array();
  JsonLine& key(std::string_view name);
  JsonLine& text(std::string_view value);
  JsonLine& integer(int64_t value);
  JsonLine& unsigned_integer(uint64_t value);
  JsonLine& number(double value);  // null when it is not finite
  JsonLine& boolean(bool value);
  JsonLine& null();
  JsonLine& ids(std::span<const int32_t> values);

  const std::string& str() const { return out_; }
  void clear();

 private:
  void separate();

  std::string out_;
  bool comma_ = false;
};

}  // namespace flashlane::cli
