// SIGINT and SIGTERM: a request to stop, remembered once and waited for. The first one is only
// noted; the second ends the process at once, for a person who does not want to wait.
#pragma once

namespace flashlane::cli {

// Installs the handlers. Until `hold_signals`, a signal ends the process with `exit_code` directly:
// while a model loads there is nothing to wind up.
void install_signals(int exit_code);
void hold_signals();
bool stop_requested();
// Blocks until a signal has come.
void wait_for_stop();

}  // namespace flashlane::cli
