// The simulator's own main: --seed N runs one world, --seeds N that many, --first-seed N from
// there, --jobs N on that many threads. When a CHECK of the scheduler ends the process, the command
// that replays the seed is printed all the same.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "tests/sim/run_options.h"

namespace flashlane::sim {

RunOptions& run_options() {
  static RunOptions options;
  return options;
}

thread_local volatile uint64_t seed_at_work = 0;

namespace {

// Only what a signal handler may do: no allocation, no stream.
void on_abort(int signal) {
  char line[160] = "replay: ";
  char* end = line + std::strlen(line);
  for (const char* c = kReplay; *c != 0; ++c) *end++ = *c;
  char digits[20];
  int count = 0;
  for (uint64_t left = seed_at_work; count == 0 || left > 0; left /= 10) {
    digits[count++] = static_cast<char>('0' + left % 10);
  }
  while (count > 0) *end++ = digits[--count];
  *end++ = '\n';
  const ssize_t written = ::write(STDERR_FILENO, line, static_cast<size_t>(end - line));
  static_cast<void>(written);
  std::signal(signal, SIG_DFL);
}

bool parse(std::string_view text, uint64_t& value) {
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failure == std::errc() && end == text.data() + text.size();
}

// False when a flag is not known.
bool read_flags(int argc, char** argv) {
  RunOptions& options = run_options();
  for (int i = 1; i < argc; i += 2) {
    uint64_t value = 0;
    if (i + 1 == argc || !parse(argv[i + 1], value)) return false;
    const std::string_view flag = argv[i];
    if (flag == "--seed") {
      options.first_seed = value;
      options.seeds = 1;
    } else if (flag == "--seeds" && value > 0) {
      options.seeds = value;
    } else if (flag == "--first-seed") {
      options.first_seed = value;
    } else if (flag == "--jobs" && value >= 1 && value <= 256) {
      options.jobs = static_cast<int>(value);
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace
}  // namespace flashlane::sim

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (!flashlane::sim::read_flags(argc, argv)) {
    std::fputs("usage: sim_test [--seed N | --seeds N] [--first-seed N] [--jobs N]\n", stderr);
    return 2;
  }
  std::signal(SIGABRT, flashlane::sim::on_abort);
  return RUN_ALL_TESTS();
}
