#include "cli/pool_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "memory/pool_layout.h"
#include "memory/session_list.h"
#include "scheduler/scheduler.h"

namespace flashlane::cli {

namespace {

constexpr int64_t kMostPageRows = 1 << 16;
constexpr int64_t kMostGrow = int64_t{1} << 30;
constexpr double kMostGib = 1 << 20;
constexpr double kMib = 1024.0 * 1024.0;

enum class Asked : uint8_t { kDefault, kAuto, kNumber };
struct Parallel {
  Asked asked = Asked::kDefault;
  int number = 0;
};

Result<Parallel> parse_parallel(const std::optional<std::string>& text) {
  if (!text.has_value()) return Parallel{};
  if (*text == "auto") return Parallel{.asked = Asked::kAuto};
  Parallel parallel{.asked = Asked::kNumber};
  const auto [end, failed] =
      std::from_chars(text->data(), text->data() + text->size(), parallel.number);
  if (failed != std::errc() || end != text->data() + text->size() || parallel.number < 1 ||
      parallel.number > scheduler::kMostSlots) {
    return invalid("--parallel is {}; it must be auto or a number from 1 to {}", *text,
                   scheduler::kMostSlots);
  }
  return parallel;
}

// What the plan's other parts leave for slots and pool, at most what a size_t holds.
Result<size_t> room_for_pool(const ModelOutline& outline, const ModelOptions& model,
                             const runner::RunnerOptions& runner) {
  ASSIGN_OR_RETURN(const MemoryPlan plan, plan_memory(outline, runner));
  size_t room_bytes = plan.available_bytes.value_or(std::numeric_limits<size_t>::max());
  room_bytes = std::min(room_bytes, memory_limit(model).bytes.value_or(room_bytes));
  const size_t others_bytes = plan.total_bytes() - plan.runner.pool_bytes - plan.runner.slots_bytes;
  return room_bytes > others_bytes ? room_bytes - others_bytes : 0;
}

// Pages for kept states, from what is left for all pages. By default they take nothing of what the
// sequences need at the least.
Result<int> kept_pages(const std::optional<double>& gib, const memory::PoolLayout& layout,
                       size_t room_bytes, double least_bytes) {
  const double room = static_cast<double>(room_bytes);
  const double spare_bytes = std::max(0.0, room - least_bytes);
  const double bytes =
      gib ? *gib * kGib : std::min({kDefaultCacheGib * kGib, room / 10, spare_bytes});
  if (bytes > room) {
    return invalid(
        "--prompt-cache-gib {} does not fit the memory: {:.3f} GiB are left for it and "
        "for all sequences",
        *gib, room / kGib);
  }
  const double pages = std::min(bytes / static_cast<double>(layout.page_bytes()), 0x1p30);
  // A state and a page of rows behind which it stands.
  const int least = layout.state_pages() + 1;
  if (pages >= least) return static_cast<int>(pages);
  if (!gib || *gib == 0) return 0;
  return invalid("--prompt-cache-gib {} holds no state of a prompt; one takes {:.4f} or more", *gib,
                 static_cast<double>(least) * static_cast<double>(layout.page_bytes()) / kGib);
}

int session_pages(const memory::PoolLayout& layout, const std::vector<int>& sessions) {
  int pages = 0;
  for (const int rows : sessions) pages += layout.session_pages(rows);
  return pages;
}

// All sessions that were listed, or a refusal.
Status fit_sessions(const Parallel& parallel, const memory::PoolLayout& layout,
                    const std::vector<int>& sessions, size_t room_bytes, size_t slot_bytes,
                    runner::RunnerOptions& runner) {
  const int count = static_cast<int>(sessions.size());
  if (parallel.asked == Asked::kNumber && parallel.number != count) {
    return invalid(
        "--parallel {} and --session-contexts, which makes {} sessions with the one of the "
        "whole context, don't agree",
        parallel.number, count);
  }
  runner.slots = count;
  runner.pages = session_pages(layout, sessions);
  const double bytes =
      (static_cast<double>(runner.pages) + 1) * static_cast<double>(layout.page_bytes()) +
      count * static_cast<double>(slot_bytes);
  if (bytes <= static_cast<double>(room_bytes)) return {};
  return invalid("--session-contexts: {} sessions take {} pages, {:.3f} GiB; {:.3f} GiB are left",
                 count, runner.pages, bytes / kGib, static_cast<double>(room_bytes) / kGib);
}

// Pages that `slots` sequences have by default.
int usual_pages(const memory::PoolLayout& layout, int slots, int context) {
  return layout.need(context) + (slots - 1) * layout.need(std::min(context, kFurtherPositions));
}

}  // namespace

void add_pool_options(OptionTable& table, PoolOptions& options) {
  table.text("parallel", options.parallel, {},
             "replies at once, 1 to 16, or auto = as many as fit, with all pages that fit; default "
             "8, or as many as fit");
  table.integer("kv-page-rows", options.kv_page_rows, 1, kMostPageRows,
                "positions of a page of the pool, a multiple of the model's block; default 256, or "
                "more where a state needs it; changes no bit of a reply",
                Reach::kEverywhere, {"TF_FLASHNEXT_KV_PAGES"});
  table.text(
      "session-contexts", options.session_contexts, {},
      "sized sessions beside the one of the whole context: tokens of each, with xN for "
      "several, as in 16384x2,4096x4; a reply that outgrows its session moves to a larger one "
      "or waits for one; default: none, one pool for all",
      Reach::kEverywhere, {"FLASHNEXT_SLOT_CONTEXTS"});
  table.integer("session-grow", options.session_grow, 1, kMostGrow,
                "reply tokens that a session must hold when a reply begins in it; default 8192",
                Reach::kEverywhere, {"FLASHNEXT_SLOT_GROW"});
  table.number("prompt-cache-gib", options.prompt_cache_gib, 0, kMostGib,
               "memory for states of prompts, from which later ones that begin alike go on; 0 = "
               "none; default 1, or a tenth of what is left");
  table.text("state-pages", options.state_pages, {"0", "1"},
             "1: a sequence's states lie in any free pages; 0: in consecutive ones; default 1",
             Reach::kEverywhere, {"TF_FLASHNEXT_STATE_PAGES"});
}

Result<std::vector<int>> session_rows(const PoolOptions& options, int context) {
  std::vector<int> rows;
  if (!options.session_contexts.has_value()) {
    if (!options.session_grow.has_value()) return rows;
    return invalid("--session-grow {} has no meaning without --session-contexts",
                   *options.session_grow);
  }
  rows.push_back(context + memory::kSessionMargin);
  const auto listed = memory::parse_session_list(*options.session_contexts,
                                                 scheduler::kMostSlots - 1, rows.front());
  if (!listed.ok()) {
    return Error{listed.error().code,
                 fmt::format("--session-contexts: {}", listed.error().message)};
  }
  rows.insert(rows.end(), listed->begin(), listed->end());
  return rows;
}

Status choose_pages(const PoolOptions& options, const ModelOutline& outline,
                    runner::RunnerOptions& runner) {
  runner.page_rows = static_cast<int>(
      options.kv_page_rows.value_or(runner::default_page_rows(outline.shape, outline.kv_dtype)));
  runner.state_form = options.state_pages.value_or("1") == "1" ? runner::StateForm::kPieces
                                                               : runner::StateForm::kRun;
  const auto storage = runner::sequence_storage(outline.shape, runner);
  if (storage.ok()) return {};
  return Error{storage.error().code, fmt::format("--kv-page-rows: {}", storage.error().message)};
}

Status fit_pool(const PoolOptions& options, const ModelOutline& outline, const ModelOptions& model,
                runner::RunnerOptions& runner) {
  ASSIGN_OR_RETURN(const Parallel parallel, parse_parallel(options.parallel));
  ASSIGN_OR_RETURN(const runner::Storage storage, runner::sequence_storage(outline.shape, runner));
  const memory::PoolLayout& layout = storage.pool;
  ASSIGN_OR_RETURN(const std::vector<int> sessions, session_rows(options, runner.context));
  runner.slots = 1;
  runner.pages = layout.need(runner.context);
  runner.kept_pages = 0;
  ASSIGN_OR_RETURN(size_t room_bytes, room_for_pool(outline, model, runner));
  // What was asked for by number, else one sequence, and the null page.
  const int asked_slots = !sessions.empty()                  ? static_cast<int>(sessions.size())
                          : parallel.asked == Asked::kNumber ? parallel.number
                                                             : 1;
  const int asked_pages = sessions.empty() ? usual_pages(layout, asked_slots, runner.context)
                                           : session_pages(layout, sessions);
  const double least_bytes =
      (static_cast<double>(asked_pages) + 1) * static_cast<double>(layout.page_bytes()) +
      asked_slots * static_cast<double>(runner::slot_bytes(storage, runner.context));
  ASSIGN_OR_RETURN(runner.kept_pages,
                   kept_pages(options.prompt_cache_gib, layout, room_bytes, least_bytes));
  room_bytes -= static_cast<size_t>(runner.kept_pages) * layout.page_bytes();
  const size_t slot_bytes = runner::slot_bytes(storage, runner.context);
  if (!sessions.empty()) {
    return fit_sessions(parallel, layout, sessions, room_bytes, slot_bytes, runner);
  }
  const int most = parallel.asked == Asked::kAuto     ? scheduler::kMostSlots
                   : parallel.asked == Asked::kNumber ? parallel.number
                                                      : kDefaultParallel;
  // The null page is nobody's.
  const size_t pages_room = room_bytes > layout.page_bytes() ? room_bytes - layout.page_bytes() : 0;
  const auto plan =
      memory::plan_pool(layout, pages_room, slot_bytes, most, runner.context, kFurtherPositions);
  // Not even one fits: the plan's check says so, with all its numbers.
  const int lanes = plan ? plan->lanes : 1;
  if (parallel.asked == Asked::kNumber && lanes < parallel.number) {
    return invalid(
        "--parallel {} does not fit the memory: beside one sequence of --context {}, each takes {} "
        "pages ({} of state) of {} bytes; {} would fit",
        parallel.number, runner.context, layout.need(std::min(runner.context, kFurtherPositions)),
        layout.state_pages(), layout.page_bytes(), lanes);
  }
  runner.slots = lanes;
  const int usual = usual_pages(layout, lanes, runner.context);
  runner.pages = plan && parallel.asked == Asked::kAuto ? plan->pages : usual;
  return {};
}

std::string pool_report(const ModelOutline& outline, const runner::RunnerOptions& runner,
                        const std::vector<int>& sessions) {
  const auto storage = runner::sequence_storage(outline.shape, runner);
  const auto memory = runner::runner_memory(outline.shape, runner);
  if (!storage.ok() || !memory.ok()) return {};
  const memory::PoolLayout& layout = storage->pool;
  const auto mib = [](size_t bytes) { return static_cast<double>(bytes) / kMib; };
  const size_t state_bytes = static_cast<size_t>(layout.state_pages()) * layout.page_bytes();
  std::string out = fmt::format(
      "pool: {} pages of {} positions, {:.4g} MiB each; a sequence's state is {} pieces, {:.2f} "
      "MiB, {} {} pages, padding {:.2f} MiB ({:.1f} % of the pages), map {:016x}\n",
      memory->pages, layout.page_rows(), mib(layout.page_bytes()), storage->piece_bytes.size(),
      mib(layout.packing().piece_bytes), layout.state_pages(),
      layout.form() == runner::StateForm::kPieces ? "of any" : "consecutive",
      mib(layout.padding_bytes()),
      100.0 * static_cast<double>(layout.padding_bytes()) / static_cast<double>(state_bytes),
      memory::packing_hash(layout.packing()));
  // With sessions a sequence has the pages of one, whatever the others leave free.
  const auto holds = [&](int positions) {
    if (sessions.empty()) return layout.holds(positions, memory->pages, runner.slots);
    return static_cast<int>(std::count_if(sessions.begin(), sessions.end(), [&](int rows) {
      return rows >= positions + layout.window_rows();
    }));
  };
  out += "pool: holds";
  const char* separator = " ";
  for (const int positions : {4096, 16384}) {
    if (positions >= runner.context) continue;
    out += fmt::format("{}{} of {} positions", separator, holds(positions), positions);
    separator = ", ";
  }
  out += fmt::format("{}{} of {} positions", separator, holds(runner.context), runner.context);
  // Only pieces waste more or less by the size of a page.
  if (layout.form() == runner::StateForm::kRun) return out + "\n";
  const int block = outline.shape.index_block;
  const size_t block_bytes =
      model::make_state_layout(outline.shape, runner.kv_dtype, block).page_bytes;
  const int least = runner::least_page_rows(outline.shape, runner.kv_dtype);
  constexpr int kNear = 64;
  const memory::PageRowsChoice best = memory::best_page_rows_near(
      runner.page_rows, kNear, block_bytes, block, storage->piece_bytes);
  return out + fmt::format(
                   "; least page rows {}; within {} rows, {} would waste {:.2f} MiB a sequence "
                   "instead of {:.2f}\n",
                   least, kNear, best.page_rows, mib(best.overhead_bytes),
                   mib(layout.padding_bytes() + layout.page_bytes() / 2));
}

}  // namespace flashlane::cli
