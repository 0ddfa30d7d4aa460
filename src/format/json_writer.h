// JSON text from strings and from parsed elements: what config.json and safetensors headers need
// when a checkpoint is written. What is printed parses back to the same values.
#pragma once

#include <simdjson.h>

#include <string>
#include <string_view>

namespace flashlane::format {

// A JSON string literal with its quotes; `text` is UTF-8.
std::string json_quoted(std::string_view text);

// Starts a new line that is `depth` levels of two spaces in.
void append_line(int depth, std::string& out);

// Appends `value`, one entry a line, as a value that stands `depth` levels in.
void append_json(simdjson::dom::element value, int depth, std::string& out);

}  // namespace flashlane::format
