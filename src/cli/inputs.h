// What a command reads: whole files or standard input, and lists of token ids. Nothing in them is
// trusted: errors name the file, the element, its value and the limit.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace flashlane::cli {

// The bytes of `path`, or of standard input when it is "-".
Result<std::string> read_input(const std::string& path);

// A JSON array of token ids, each in [0, vocabulary). `name` is how messages call the text.
Result<std::vector<int32_t>> parse_ids(std::string_view json, std::string_view name,
                                       int vocabulary);
Result<std::vector<int32_t>> read_ids(const std::string& path, int vocabulary);

}  // namespace flashlane::cli
