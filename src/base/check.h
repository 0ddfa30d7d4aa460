// Checks for our own bugs: a failed CHECK prints the expression, the values and the place, then
// aborts, in every build. What the world can do wrong is a Result (base/result.h), never a CHECK.
#pragma once

#include <fmt/format.h>

#include <string>

namespace flashlane {

[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const std::string& detail) noexcept;

}  // namespace flashlane

#define CHECK(condition)                                             \
  do {                                                               \
    if (!(condition)) [[unlikely]]                                   \
      ::flashlane::check_failed(__FILE__, __LINE__, #condition, {}); \
  } while (0)

#define FLASHLANE_CHECK_OP(a, op, b)                                             \
  do {                                                                           \
    const auto& check_a = (a);                                                   \
    const auto& check_b = (b);                                                   \
    if (!(check_a op check_b)) [[unlikely]]                                      \
      ::flashlane::check_failed(__FILE__, __LINE__, #a " " #op " " #b,           \
                                fmt::format("{} against {}", check_a, check_b)); \
  } while (0)

#define CHECK_EQ(a, b) FLASHLANE_CHECK_OP(a, ==, b)
#define CHECK_NE(a, b) FLASHLANE_CHECK_OP(a, !=, b)
#define CHECK_LT(a, b) FLASHLANE_CHECK_OP(a, <, b)
#define CHECK_LE(a, b) FLASHLANE_CHECK_OP(a, <=, b)
#define CHECK_GT(a, b) FLASHLANE_CHECK_OP(a, >, b)
#define CHECK_GE(a, b) FLASHLANE_CHECK_OP(a, >=, b)

#define UNREACHABLE() ::flashlane::check_failed(__FILE__, __LINE__, "unreachable", {})
