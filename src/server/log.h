// One line per finished or refused request, on stderr: stdout belongs to the command (its
// "listening on" line). Texts from requests are made printable before they come here.
#pragma once

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace flashlane::server {

void log_line(std::string_view line);

template <typename... Args>
void log(fmt::format_string<Args...> format, Args&&... args) {
  log_line(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace flashlane::server
