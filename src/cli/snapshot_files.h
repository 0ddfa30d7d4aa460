// Where `serve` keeps states of prompts that its memory has no room for, also beyond its own life:
// the options, and what a state must have in common with this process to be one of its own.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/loading.h"
#include "cli/option_table.h"
#include "runner/snapshots.h"

namespace flashlane::cli {

struct SnapshotOptions {
  std::optional<std::string> directory;
  std::optional<double> spill_gib;
};
// --snapshot-dir, --spill-gib.
void add_snapshot_options(OptionTable& table, SnapshotOptions& options);

// Null where nothing is to be on files. A directory of the process's own where none was named.
// Refuses both where nothing is kept in memory, and a directory that another process has.
Result<std::shared_ptr<runner::Snapshots>> open_snapshots(const SnapshotOptions& options,
                                                          const ModelOutline& outline,
                                                          const runner::RunnerOptions& runner);

}  // namespace flashlane::cli
