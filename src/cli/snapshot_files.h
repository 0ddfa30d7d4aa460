// Where `serve` keeps states of prompts beyond its own life: the options, and what a state must
// have in common with this process to be one of its own.
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
  std::optional<double> gib;
};
// --snapshot-dir, --snapshot-gib.
void add_snapshot_options(OptionTable& table, SnapshotOptions& options);

// Null where no directory was named. Refuses one where nothing is kept in memory, and one that
// another process has.
Result<std::shared_ptr<const runner::Snapshots>> open_snapshots(
    const SnapshotOptions& options, const ModelOutline& outline,
    const runner::RunnerOptions& runner);

}  // namespace flashlane::cli
