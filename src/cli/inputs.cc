// Files are read whole with a limit; ids go through Boost.JSON, whose numbers keep their type, so
// that 1.0, 1e3 and 99999999999999999999 are refused rather than rounded.
#include "cli/inputs.h"

#include <boost/json.hpp>
#include <iostream>
#include <iterator>

#include "format/checkpoint.h"

namespace flashlane::cli {

namespace {

constexpr size_t kInputLimit = size_t{1} << 30;

std::string input_name(const std::string& path) {
  return path == "-" ? "standard input" : path;
}

std::string value_text(const boost::json::value& value) {
  constexpr size_t kShown = 40;
  std::string text = boost::json::serialize(value);
  if (text.size() > kShown) text = text.substr(0, kShown) + "…";
  return text;
}

}  // namespace

Result<std::string> read_input(const std::string& path) {
  if (path != "-") return format::read_text_file(path, kInputLimit);
  std::string text;
  char block[1 << 16];
  while (std::cin.read(block, sizeof(block)) || std::cin.gcount() > 0) {
    text.append(block, static_cast<size_t>(std::cin.gcount()));
    if (text.size() > kInputLimit) {
      return invalid("standard input has more than {} bytes", kInputLimit);
    }
  }
  return text;
}

Result<std::vector<int32_t>> parse_ids(std::string_view json, std::string_view name,
                                       int vocabulary) {
  boost::json::error_code code;
  const boost::json::value value =
      boost::json::parse(boost::json::string_view(json.data(), json.size()), code);
  if (code) return invalid("{} is not JSON: {}", name, code.message());
  const boost::json::array* array = value.if_array();
  if (array == nullptr) return invalid("{} must be a JSON array of token ids", name);
  std::vector<int32_t> ids;
  ids.reserve(array->size());
  for (size_t i = 0; i < array->size(); ++i) {
    const boost::json::value& element = (*array)[i];
    const int64_t* id = element.if_int64();
    if (id == nullptr || *id < 0 || *id >= vocabulary) {
      return invalid("{}: index {} holds {}; token ids are whole numbers from 0 to {}", name, i,
                     value_text(element), vocabulary - 1);
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

Result<std::vector<int32_t>> read_ids(const std::string& path, int vocabulary) {
  ASSIGN_OR_RETURN(const std::string text, read_input(path));
  return parse_ids(text, input_name(path), vocabulary);
}

}  // namespace flashlane::cli
