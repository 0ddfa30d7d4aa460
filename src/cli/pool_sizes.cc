#include "cli/pool_sizes.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "memory/pool_layout.h"
#include "scheduler/scheduler.h"

namespace flashlane::cli {

namespace {

constexpr int64_t kMostPageRows = 1 << 16;
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
  if (model.memory_limit_gib.has_value()) {
    const double limit_bytes = std::min(*model.memory_limit_gib * kGib, 0x1p62);
    room_bytes = std::min(room_bytes, static_cast<size_t>(limit_bytes));
  }
  const size_t others_bytes = plan.total_bytes() - plan.runner.pool_bytes - plan.runner.slots_bytes;
  return room_bytes > others_bytes ? room_bytes - others_bytes : 0;
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
  table.text("state-pages", options.state_pages, {"0", "1"},
             "1: a sequence's states lie in any free pages; 0: in consecutive ones; default 1",
             Reach::kEverywhere, {"TF_FLASHNEXT_STATE_PAGES"});
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
  runner.slots = 1;
  runner.pages = layout.need(runner.context);
  ASSIGN_OR_RETURN(const size_t room_bytes, room_for_pool(outline, model, runner));
  const int most = parallel.asked == Asked::kAuto     ? scheduler::kMostSlots
                   : parallel.asked == Asked::kNumber ? parallel.number
                                                      : kDefaultParallel;
  // The null page is nobody's.
  const size_t pages_room = room_bytes > layout.page_bytes() ? room_bytes - layout.page_bytes() : 0;
  const auto plan =
      memory::plan_pool(layout, pages_room, runner::slot_bytes(storage, runner.context), most,
                        runner.context, kFurtherPositions);
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

std::string pool_report(const ModelOutline& outline, const runner::RunnerOptions& runner) {
  const auto storage = runner::sequence_storage(outline.shape, runner);
  const auto memory = runner::runner_memory(outline.shape, runner);
  if (!storage.ok() || !memory.ok()) return {};
  const memory::PoolLayout& layout = storage->pool;
  const auto mib = [](size_t bytes) { return static_cast<double>(bytes) / kMib; };
  const size_t state_bytes = static_cast<size_t>(layout.state_pages()) * layout.page_bytes();
  std::string out = fmt::format(
      "pool: {} pages of {} positions, {:.4g} MiB each; a sequence's state is {} pieces, {:.2f} "
      "MiB, {} {} pages, padding {:.2f} MiB ({:.1f} % of the pages)\n",
      memory->pages, layout.page_rows(), mib(layout.page_bytes()), storage->piece_bytes.size(),
      mib(layout.packing().piece_bytes), layout.state_pages(),
      layout.form() == runner::StateForm::kPieces ? "of any" : "consecutive",
      mib(layout.padding_bytes()),
      100.0 * static_cast<double>(layout.padding_bytes()) / static_cast<double>(state_bytes));
  out += "pool: holds";
  const char* separator = " ";
  for (const int positions : {4096, 16384, runner.context}) {
    if (positions > runner.context) continue;
    out += fmt::format("{}{} of {} positions", separator,
                       layout.holds(positions, memory->pages, runner.slots), positions);
    separator = ", ";
  }
  const int block = outline.shape.index_block;
  const size_t block_bytes =
      model::make_state_layout(outline.shape, runner.kv_dtype, block).page_bytes;
  const int least = runner::least_page_rows(outline.shape, runner.kv_dtype);
  constexpr int kNear = 64;
  const memory::PageRowsChoice best = memory::best_page_rows_near(
      runner.page_rows, kNear, block_bytes, block, storage->piece_bytes);
  out += fmt::format("; least page rows for pieces {}; within {} rows, {} would waste {:.2f} MiB",
                     least, kNear, best.page_rows, mib(best.overhead_bytes));
  if (layout.form() == runner::StateForm::kPieces) {
    out += fmt::format(" a sequence instead of {:.2f}",
                       mib(layout.padding_bytes() + layout.page_bytes() / 2));
  }
  return out + "\n";
}

}  // namespace flashlane::cli
