// Strict, typed reading of JSON objects from files (config.json, safetensors headers, indexes). The
// first thing that is wrong is kept as one error that names the field, its value and what it must
// be; later reads then return their lowest legal value, so a reader is a plain list of fields with
// one check at its end. Duplicate keys are refused: parsers disagree on which one counts.
#pragma once

#include <simdjson.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace flashlane::format {

// Text from a file as it may appear in a one-line message: quoted, control characters escaped, cut.
inline std::string printable(std::string_view text) {
  constexpr size_t kMostShown = 120;
  size_t length = std::min(text.size(), kMostShown);
  // Not in the middle of a UTF-8 character.
  while (length > 0 && length < text.size() &&
         (static_cast<unsigned char>(text[length]) >> 6) == 2) {
    --length;
  }
  std::string out = "\"";
  for (const char c : text.substr(0, length)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\x{:02x}", byte);
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + (text.size() > length ? "…\"" : "\"");
}

// A JSON value as it may appear in a one-line message.
inline std::string shown(simdjson::dom::element value) {
  using simdjson::dom::element_type;
  switch (value.type()) {
    case element_type::ARRAY:
      return "a list";
    case element_type::OBJECT:
      return "an object";
    case element_type::STRING:
      return printable(std::string_view(value));
    default:
      return simdjson::minify(value);
  }
}

// A parsed document; elements point into it, so it neither moves nor copies.
class JsonDocument {
 public:
  JsonDocument() = default;
  JsonDocument(const JsonDocument&) = delete;
  JsonDocument& operator=(const JsonDocument&) = delete;

  // `what` names the text in the error: a file's name.
  Status parse(std::string_view text, std::string_view what) {
    const simdjson::padded_string padded(text);
    if (padded.size() != text.size()) {
      return invalid("{}: no memory for {} bytes of JSON", what, text.size());
    }
    const auto code = parser_.parse(padded).get(root_);
    if (code != simdjson::SUCCESS) {
      return invalid("{}: not valid JSON: {}", what, simdjson::error_message(code));
    }
    return {};
  }
  simdjson::dom::element root() const { return root_; }

 private:
  simdjson::dom::parser parser_;
  simdjson::dom::element root_;
};

// One JSON object. `place` is how an error calls it ("config.json", or "FILE: tensor \"x\""),
// `path` the dotted path of the object inside it. `status` must outlive the reader.
class JsonFields {
 public:
  JsonFields(simdjson::dom::element value, std::string place, std::string path, Status* status)
      : place_(std::move(place)), path_(std::move(path)), status_(status) {
    if (value.get_object().get(object_) != simdjson::SUCCESS) {
      record(path_, fmt::format("is {}: must be an object", shown(value)));
      return;
    }
    valid_ = true;
    std::vector<std::string_view> keys;
    for (const auto& field : fields()) keys.push_back(field.key);
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) record(name(*twice), "is given twice");
  }

  bool ok() const { return status_->ok(); }

  // Present and not null.
  bool has(std::string_view key) const { return find(key).has_value(); }

  std::optional<simdjson::dom::element> find(std::string_view key) const {
    simdjson::dom::element value;
    if (!valid_ || object_.at_key(key).get(value) != simdjson::SUCCESS) return std::nullopt;
    if (value.is_null()) return std::nullopt;
    return value;
  }

  int64_t integer(std::string_view key, int64_t low, int64_t high,
                  std::optional<int64_t> fallback = std::nullopt) {
    const auto value = find(key);
    if (!value && fallback) return *fallback;
    int64_t out = 0;
    if (!value || !integer_in(*value, low, high, &out)) {
      fail(key, low == high ? fmt::format("must be {}", low)
                            : fmt::format("must be an integer from {} to {}", low, high));
      return low;
    }
    return out;
  }

  // A 32-bit integer: the sizes of a model.
  int size(std::string_view key, int low, int high, std::optional<int> fallback = std::nullopt) {
    return static_cast<int>(integer(key, low, high, fallback));
  }

  // A number, written with or without a point, in [low, high].
  double real(std::string_view key, double low, double high,
              std::optional<double> fallback = std::nullopt) {
    const auto value = find(key);
    if (!value && fallback) return *fallback;
    double out = 0;
    if (!value || value->get_double().get(out) != simdjson::SUCCESS ||
        !(out >= low && out <= high)) {
      fail(key, fmt::format("must be a number from {} to {}", low, high));
      return low;
    }
    return out;
  }

  bool boolean(std::string_view key, std::optional<bool> fallback = std::nullopt) {
    const auto value = find(key);
    if (!value && fallback) return *fallback;
    bool out = false;
    if (!value || value->get_bool().get(out) != simdjson::SUCCESS) {
      fail(key, "must be true or false");
    }
    return out;
  }

  std::string text(std::string_view key, std::optional<std::string_view> fallback = std::nullopt) {
    const auto value = find(key);
    if (!value && fallback) return std::string(*fallback);
    std::string_view out;
    if (!value || value->get_string().get(out) != simdjson::SUCCESS) {
      fail(key, "must be a string");
      return {};
    }
    return std::string(out);
  }

  // The object under `key`; nullopt when absent.
  std::optional<JsonFields> object(std::string_view key) {
    const auto value = find(key);
    if (!value) return std::nullopt;
    return JsonFields(*value, place_, name(key), status_);
  }

  // A list of at most `most` integers.
  std::vector<int64_t> integers(std::string_view key, int64_t low, int64_t high, size_t most) {
    std::vector<int64_t> out;
    for (const auto value : elements(key, most)) {
      int64_t number = 0;
      if (!integer_in(value, low, high, &number)) {
        record(name(key),
               fmt::format("holds {}: must be integers from {} to {}", shown(value), low, high));
        return {};
      }
      out.push_back(number);
    }
    return out;
  }

  // A list of at most `most` strings.
  std::vector<std::string> texts(std::string_view key, size_t most) {
    std::vector<std::string> out;
    for (const auto value : elements(key, most)) {
      std::string_view item;
      if (value.get_string().get(item) != simdjson::SUCCESS) {
        record(name(key), fmt::format("holds {}: must be strings", shown(value)));
        return {};
      }
      out.emplace_back(item);
    }
    return out;
  }

  std::vector<simdjson::dom::element> elements(std::string_view key, size_t most) {
    const auto value = find(key);
    simdjson::dom::array items;
    if (!value || value->get_array().get(items) != simdjson::SUCCESS) {
      fail(key, "must be a list");
      return {};
    }
    std::vector<simdjson::dom::element> out;
    for (const auto item : items) {
      if (out.size() == most) {
        record(name(key), fmt::format("has more than {} entries, the limit", most));
        return {};
      }
      out.push_back(item);
    }
    return out;
  }

  // Records that `key` breaks a constraint ("must be …"); its value is shown.
  void fail(std::string_view key, std::string_view constraint,
            ErrorCode code = ErrorCode::kInvalidArgument) {
    const auto value = find(key);
    record(name(key),
           value ? fmt::format("is {}: {}", shown(*value), constraint)
                 : fmt::format("is missing: {}", constraint),
           code);
  }

  // All entries, null ones too; none when this is no object.
  std::vector<simdjson::dom::key_value_pair> fields() const {
    std::vector<simdjson::dom::key_value_pair> out;
    if (!valid_) return out;
    for (const auto& field : object_) out.push_back(field);
    return out;
  }

 private:
  static bool integer_in(simdjson::dom::element value, int64_t low, int64_t high, int64_t* out) {
    return value.get_int64().get(*out) == simdjson::SUCCESS && *out >= low && *out <= high;
  }

  std::string name(std::string_view key) const {
    return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  }

  void record(const std::string& field, const std::string& detail,
              ErrorCode code = ErrorCode::kInvalidArgument) {
    if (!status_->ok()) return;
    const std::string said = printable(field);
    // Plain keys need no quotes; what the escapes changed keeps them.
    const bool plain = said.size() == field.size() + 2;
    *status_ = Error{code,
                     fmt::format("{}{}{} {}", place_, field.empty() ? "" : ": ",
                                 field.empty() ? "" : (plain ? field : said), detail),
                     field};
  }

  std::string place_;
  std::string path_;
  Status* status_;
  simdjson::dom::object object_;
  bool valid_ = false;
};

}  // namespace flashlane::format
