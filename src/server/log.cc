// The server's log on stderr.
#include "server/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace flashlane::server {

void log_line(std::string_view line) {
  // A logger of its own: the process's default one may write to stdout.
  static const std::shared_ptr<spdlog::logger> logger = [] {
    auto made = std::make_shared<spdlog::logger>("server",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%d %H:%M:%S.%e %v");
    return made;
  }();
  logger->info("{}", line);
}

}  // namespace flashlane::server
