// How many sequences run at once and what they share: the pool's pages, planned from what the
// memory leaves, by the same functions that admission asks later (P7).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/loading.h"
#include "cli/option_table.h"
#include "cli/options.h"

namespace flashlane::cli {

struct PoolOptions {
  std::optional<std::string> parallel;
  std::optional<int64_t> kv_page_rows;
  std::optional<std::string> state_pages;
  std::optional<double> prompt_cache_gib;
  std::optional<std::string> session_contexts;
  std::optional<int64_t> session_grow;
};
// --parallel, --kv-page-rows, --state-pages, --prompt-cache-gib, --session-contexts,
// --session-grow.
void add_pool_options(OptionTable& table, PoolOptions& options);

// Page rows and the form of states: what was asked for, refused by name where it can't be, else
// default_page_rows and pieces.
Status choose_pages(const PoolOptions& options, const ModelOutline& outline,
                    runner::RunnerOptions& runner);

// Sequences that run at once when nobody says how many, and the positions that the pool has for
// each beyond the first, which has a whole context.
inline constexpr int kDefaultParallel = 8;
inline constexpr int kFurtherPositions = 4096;
inline constexpr double kDefaultCacheGib = 1;

// Sets pages for kept states of prompts, slots and pages. --prompt-cache-gib is taken off first,
// refused when it does not fit or holds no state; absent, it is kDefaultCacheGib, a tenth of what
// is left or what the sequences that were asked for leave, whichever is less. --parallel: a number,
// refused when it does not fit; "auto", the most that fit, with all pages that fit; absent,
// kDefaultParallel or as many as fit. What fits is
// memory_limit and the memory that is available now, whichever is less; one sequence always does.
Status fit_pool(const PoolOptions& options, const ModelOutline& outline, const ModelOptions& model,
                runner::RunnerOptions& runner);

// Rows of each session, the first one's for the whole context; none without --session-contexts
// (Z1, Z5).
Result<std::vector<int>> session_rows(const PoolOptions& options, int context);
inline constexpr int kDefaultSessionGrow = 8192;

// What a sequence takes of the pool, how many of which size it holds, and page rows that would
// waste less, as lines for people (P8).
std::string pool_report(const ModelOutline& outline, const runner::RunnerOptions& runner,
                        const std::vector<int>& sessions);

}  // namespace flashlane::cli
