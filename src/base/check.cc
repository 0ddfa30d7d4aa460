#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace flashlane {

void check_failed(const char* file, int line, const char* expression,
                  const std::string& detail) noexcept {
  std::fprintf(stderr, "CHECK failed at %s:%d: %s%s%s\n", file, line, expression,
               detail.empty() ? "" : ": ", detail.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace flashlane
