// Request bodies as JSON: a bounded parse (UTF-8, depth, memory) whose errors name the byte, and a
// reader that takes typed fields out of an object. null counts as absent. The first error sticks
// and names the field by its path ("messages[2].content"); fields nobody asked for are refused by
// name.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace flashlane::server {

inline constexpr size_t kMaxJsonDepth = 32;

// Parses a body that must be one JSON object.
Result<boost::json::value> parse_json(std::string_view body);

// "a string", "a number" ..., for messages.
std::string_view kind_name(const boost::json::value& value);

// A field whose feature is not built, but which is harmless at one of these values.
struct NeutralField {
  std::string_view name;
  std::vector<std::string_view> values;  // as JSON text; none = only null
};

class ObjectReader {
 public:
  // `failure` is shared by the readers of one request; `path` is empty at the top level.
  ObjectReader(const boost::json::object& object, std::string path, std::optional<Error>& failure);

  bool ok() const { return !failure_.has_value(); }
  void fail(std::string_view name, ErrorCode code, std::string_view problem);

  // The value, or null when absent or null. Marks the name as known.
  const boost::json::value* find(std::string_view name);

  std::optional<bool> boolean(std::string_view name);
  std::optional<std::string> text(std::string_view name);
  std::optional<int64_t> integer(std::string_view name, int64_t least, int64_t most);
  // In [least, most], or (least, most] with `above`.
  std::optional<double> number(std::string_view name, double least, double most,
                               bool above = false);
  // Any 64-bit integer, signed or unsigned, as its bits.
  std::optional<uint64_t> bits64(std::string_view name);
  const boost::json::object* object(std::string_view name);
  // A string or a list of strings, none empty.
  std::vector<std::string> texts(std::string_view name, size_t most);

  void neutral(const NeutralField& field);
  // Refuses what no call above asked for.
  void refuse_rest();

  std::string path_of(std::string_view name) const;

 private:
  void wrong_kind(std::string_view name, std::string_view wanted, const boost::json::value& value);

  const boost::json::object& object_;
  const std::string path_;
  std::optional<Error>& failure_;
  std::vector<std::string> known_;
};

}  // namespace flashlane::server
