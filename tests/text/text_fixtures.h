// What the text tests share: files of the tree, JSON fixtures, the bundled tokenizer, and a small
// tokenizer.json of our own that a test may spoil.
#pragma once

#include <boost/json.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace flashlane::text {

std::string read_file(const std::string& path_in_tree);
boost::json::value read_json(const std::string& path_in_tree);
const Tokenizer& nano_tokenizer();
const ChatTemplate& nano_template();
std::vector<int32_t> ids_of(const boost::json::value& list);
// A valid tokenizer.json as a value: all bytes, a few merges, the tokens <a>, <a>>, </think>.
boost::json::object small_tokenizer_json();

}  // namespace flashlane::text
