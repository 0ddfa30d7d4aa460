// Bounded JSON parsing and typed fields.
#include "server/json_reader.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/memory_resource.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/stream_parser.hpp>
#include <cmath>
#include <new>
#include <utility>

#include "server/api_error.h"
#include "text/utf8.h"

namespace flashlane::server {

namespace json = boost::json;

namespace {

// A JSON text can take many times its size as values ("[[],[],…"); this much is enough for any
// real request and little enough for many at once.
constexpr size_t kMaxJsonBytes = 256u << 20;

class BoundedMemory final : public json::memory_resource {
 private:
  void* do_allocate(size_t bytes, size_t alignment) override {
    if (bytes > kMaxJsonBytes - used_) throw std::bad_alloc();
    used_ += bytes;
    return ::operator new(bytes, std::align_val_t(alignment));
  }
  void do_deallocate(void* memory, size_t bytes, size_t alignment) override {
    used_ -= bytes;
    ::operator delete(memory, std::align_val_t(alignment));
  }
  bool do_is_equal(const json::memory_resource& other) const noexcept override {
    return this == &other;
  }

  size_t used_ = 0;
};

// Integers may be written 16 or 16.0; beyond 2^53 a double no longer says which one was meant.
std::optional<int64_t> whole(const json::value& value) {
  if (value.is_int64()) return value.get_int64();
  if (value.is_double()) {
    const double number = value.get_double();
    if (std::trunc(number) == number && std::abs(number) <= 9007199254740992.0) {
      return static_cast<int64_t>(number);
    }
  }
  return std::nullopt;
}

// A number for a message: "1.5", where the serializer of replies writes 1.5E0.
std::string number_text(const json::value& value) {
  if (!value.is_double()) return json::serialize(value);
  const double number = value.get_double();
  return std::isfinite(number) ? fmt::format("{}", number) : "not finite";
}

bool same(const json::value& a, const json::value& b) {
  if (a.is_number() && b.is_number()) return a.to_number<double>() == b.to_number<double>();
  return a == b;
}

}  // namespace

std::string_view kind_name(const json::value& value) {
  switch (value.kind()) {
    case json::kind::null:
      return "null";
    case json::kind::bool_:
      return "a boolean";
    case json::kind::int64:
    case json::kind::uint64:
    case json::kind::double_:
      return "a number";
    case json::kind::string:
      return "a string";
    case json::kind::array:
      return "a list";
    case json::kind::object:
      return "an object";
  }
  UNREACHABLE();
}

Result<json::value> parse_json(std::string_view body) {
  if (const auto at = text::find_invalid_utf8(body)) {
    return invalid("the request body is not valid UTF-8 (byte {})", *at);
  }
  if (body.empty()) return invalid("the request body is empty; it must be a JSON object");
  try {
    json::parse_options options;
    options.max_depth = kMaxJsonDepth;
    json::stream_parser parser(json::make_shared_resource<BoundedMemory>(), options);
    boost::system::error_code failure;
    const size_t consumed = parser.write_some(body.data(), body.size(), failure);
    if (!failure && consumed < body.size()) {
      return invalid("the request body is not JSON: something follows the value at byte {}",
                     consumed);
    }
    if (!failure) parser.finish(failure);
    if (failure == json::error::too_deep) {
      return invalid("the request body is nested deeper than {} levels (byte {})", kMaxJsonDepth,
                     consumed);
    }
    if (failure) {
      return invalid("the request body is not JSON: {} at byte {}", failure.message(), consumed);
    }
    json::value value = parser.release();
    if (!value.is_object()) {
      return invalid("the request body is {}; it must be a JSON object", kind_name(value));
    }
    return value;
  } catch (const std::bad_alloc&) {
    return invalid("the request body takes more than {} MiB once parsed", kMaxJsonBytes >> 20);
  } catch (const std::exception& e) {
    return invalid("the request body can't be parsed: {}", e.what());
  }
}

ObjectReader::ObjectReader(const json::object& object, std::string path,
                           std::optional<Error>& failure)
    : object_(object), path_(std::move(path)), failure_(failure) {}

std::string ObjectReader::path_of(std::string_view name) const {
  const std::string clean = printable(name, 64);
  return path_.empty() ? clean : path_ + "." + clean;
}

void ObjectReader::fail(std::string_view name, ErrorCode code, std::string_view problem) {
  if (failure_) return;
  const std::string path = path_of(name);
  failure_ = Error{code, fmt::format("{}: {}", path, problem), path};
}

void ObjectReader::wrong_kind(std::string_view name, std::string_view wanted,
                              const json::value& value) {
  fail(name, ErrorCode::kInvalidArgument,
       fmt::format("must be {}, not {}", wanted, kind_name(value)));
}

const json::value* ObjectReader::find(std::string_view name) {
  known_.emplace_back(name);
  const json::value* value = object_.if_contains(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::optional<bool> ObjectReader::boolean(std::string_view name) {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_bool()) return value->get_bool();
  wrong_kind(name, "true or false", *value);
  return std::nullopt;
}

std::optional<std::string> ObjectReader::text(std::string_view name) {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (value->is_string()) return std::string(value->get_string());
  wrong_kind(name, "a string", *value);
  return std::nullopt;
}

std::optional<int64_t> ObjectReader::integer(std::string_view name, int64_t least, int64_t most) {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    wrong_kind(name, "an integer", *value);
    return std::nullopt;
  }
  const std::optional<int64_t> number = whole(*value);
  if (number && *number >= least && *number <= most) return number;
  const std::string shown = number_text(*value);
  const bool from_zero = least == 0 && most == INT64_MAX;
  fail(name, ErrorCode::kInvalidArgument,
       from_zero ? fmt::format("is {}; it must be an integer of 0 or more", shown)
                 : fmt::format("is {}; it must be an integer from {} to {}", shown, least, most));
  return std::nullopt;
}

std::optional<double> ObjectReader::number(std::string_view name, double least, double most,
                                           bool above) {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    wrong_kind(name, "a number", *value);
    return std::nullopt;
  }
  const double number = value->to_number<double>();
  // Written so that a NaN would fail too; an overflowing literal is infinite.
  if (number <= most && (above ? number > least : number >= least)) return number;
  const std::string shown = number_text(*value);
  fail(name, ErrorCode::kInvalidArgument,
       above ? fmt::format("is {}; it must be above {} and at most {}", shown, least, most)
             : fmt::format("is {}; it must be from {} to {}", shown, least, most));
  return std::nullopt;
}

std::optional<uint64_t> ObjectReader::bits64(std::string_view name) {
  const json::value* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) {
    wrong_kind(name, "an integer", *value);
    return std::nullopt;
  }
  if (value->is_uint64()) return value->get_uint64();
  if (const std::optional<int64_t> number = whole(*value)) return static_cast<uint64_t>(*number);
  fail(name, ErrorCode::kInvalidArgument,
       fmt::format("is {}; it must be an integer of 64 bits", number_text(*value)));
  return std::nullopt;
}

const json::object* ObjectReader::object(std::string_view name) {
  const json::value* value = find(name);
  if (value == nullptr) return nullptr;
  if (value->is_object()) return &value->get_object();
  wrong_kind(name, "an object", *value);
  return nullptr;
}

std::vector<std::string> ObjectReader::texts(std::string_view name, size_t most) {
  const json::value* value = find(name);
  std::vector<std::string> out;
  if (value == nullptr) return out;
  if (value->is_string()) {
    out.emplace_back(value->get_string());
  } else if (value->is_array()) {
    const json::array& list = value->get_array();
    if (list.size() > most) {
      fail(name, ErrorCode::kInvalidArgument,
           fmt::format("has {} entries; at most {} are allowed", list.size(), most));
      return {};
    }
    for (size_t i = 0; i < list.size(); ++i) {
      if (!list[i].is_string()) {
        wrong_kind(fmt::format("{}[{}]", name, i), "a string", list[i]);
        return {};
      }
      out.emplace_back(list[i].get_string());
    }
  } else {
    wrong_kind(name, "a string or a list of strings", *value);
    return {};
  }
  const auto empty = std::find(out.begin(), out.end(), std::string());
  if (empty != out.end()) {
    fail(name, ErrorCode::kInvalidArgument, "an empty string can't be waited for");
    return {};
  }
  return out;
}

void ObjectReader::neutral(const NeutralField& field) {
  const json::value* value = find(field.name);
  if (value == nullptr) return;
  std::string allowed;
  for (const std::string_view text : field.values) {
    if (same(*value, json::parse(json::string_view(text.data(), text.size())))) return;
    allowed += fmt::format("{}{}", allowed.empty() ? "" : " or ", text);
  }
  fail(field.name, ErrorCode::kUnsupported,
       allowed.empty() ? "is not supported yet; leave it out"
                       : fmt::format("is not supported yet; leave it out or send {}", allowed));
}

void ObjectReader::refuse_rest() {
  for (const auto& member : object_) {
    const std::string_view name(member.key().data(), member.key().size());
    if (member.value().is_null()) continue;
    if (std::find(known_.begin(), known_.end(), name) == known_.end()) {
      fail(name, ErrorCode::kUnsupported, "is not a field that this server knows");
      return;
    }
  }
}

}  // namespace flashlane::server
