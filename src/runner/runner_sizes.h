// The sizes that follow from a runner's options, for the runner and for whoever plans its memory.
#pragma once

#include "runner/runner.h"

namespace flashlane::runner {

// What create refuses of the options alone.
Status check_options(const model::Model& model, const RunnerOptions& options);

// Wide rows of a slot that may wait for the MTP head.
int backlog_rows(const RunnerOptions& options);
// Pages of the pool, whatever of the options says so, and their bytes with the null page.
int pool_pages(const Storage& storage, const RunnerOptions& options);
size_t pool_bytes(const Storage& storage, int pages);

}  // namespace flashlane::runner
