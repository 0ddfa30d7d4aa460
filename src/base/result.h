// Result<T>: the value, or an Error that says in one line what the world did wrong (the thing, the
// value, the limit). No exception crosses our functions; a Result can't be ignored.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace flashlane {

enum class ErrorCode {
  kInvalidArgument,  // the caller's input is wrong: exit code 2, HTTP 400
  kNotFound,         // a named thing does not exist: exit code 2, HTTP 404
  kUnsupported,      // valid, but not built: named and refused
  kNoCapacity,       // no room now: the only error that may be retried
  kCancelled,
  kIo,
  kDeviceLost,
  kInternal,
};

struct [[nodiscard]] Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  // The request field at fault, for API errors; empty where there is none.
  std::string field = {};
};

template <typename... Args>
Error invalid(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...)};
}
template <typename... Args>
Error error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return {code, fmt::format(format, std::forward<Args>(args)...)};
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error failure) : state_(std::in_place_index<1>, std::move(failure)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & {
    CHECK(ok());
    return std::get<0>(state_);
  }
  const T& value() const& {
    CHECK(ok());
    return std::get<0>(state_);
  }
  T&& value() && {
    CHECK(ok());
    return std::move(std::get<0>(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const {
    CHECK(!ok());
    return std::get<1>(state_);
  }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error failure) : failed_(true), error_(std::move(failure)) {}

  bool ok() const { return !failed_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const {
    CHECK(failed_);
    return error_;
  }

 private:
  bool failed_ = false;
  Error error_;
};

using Status = Result<void>;

}  // namespace flashlane

#define FLASHLANE_CONCAT_INNER(a, b) a##b
#define FLASHLANE_CONCAT(a, b) FLASHLANE_CONCAT_INNER(a, b)

#define RETURN_IF_ERROR(expression)                            \
  do {                                                         \
    auto return_if_error = (expression);                       \
    if (!return_if_error.ok()) return return_if_error.error(); \
  } while (0)

// ASSIGN_OR_RETURN(auto tokens, tokenizer.encode(text));
#define ASSIGN_OR_RETURN(declaration, expression) \
  FLASHLANE_ASSIGN_OR_RETURN(FLASHLANE_CONCAT(assign_result_, __LINE__), declaration, expression)
#define FLASHLANE_ASSIGN_OR_RETURN(name, declaration, expression) \
  auto name = (expression);                                       \
  if (!name.ok()) return name.error();                            \
  declaration = std::move(name).value()
