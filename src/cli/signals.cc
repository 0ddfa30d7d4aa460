// The handler touches lock-free atomics and write(2) alone, both allowed in one; waiting is a poll
// of a pipe, so that no signal can slip between a test and a sleep.
#include "cli/signals.h"

#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>

#include "base/check.h"

namespace flashlane::cli {

namespace {

std::atomic<int> exit_code_on_signal{0};
std::atomic<bool> held{false};
std::atomic<bool> requested{false};
int wake_pipe[2] = {-1, -1};

static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void on_signal(int) {
  const int saved_errno = errno;
  if (!held.load() || requested.exchange(true)) _exit(exit_code_on_signal.load());
  const char byte = 1;
  [[maybe_unused]] const ssize_t written = write(wake_pipe[1], &byte, 1);
  errno = saved_errno;
}

}  // namespace

void install_signals(int exit_code) {
  exit_code_on_signal = exit_code;
  CHECK_EQ(pipe(wake_pipe), 0);
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  CHECK_EQ(sigaction(SIGINT, &action, nullptr), 0);
  CHECK_EQ(sigaction(SIGTERM, &action, nullptr), 0);
}

void hold_signals() {
  held = true;
}

bool stop_requested() {
  return requested;
}

void wait_for_stop() {
  // Not read: under GCC 12's ThreadSanitizer a signal waits until that returns.
  pollfd pipe_end = {.fd = wake_pipe[0], .events = POLLIN, .revents = 0};
  while (!requested) {
    if (poll(&pipe_end, 1, -1) < 0 && errno != EINTR) return;
  }
}

}  // namespace flashlane::cli
