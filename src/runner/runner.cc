// The order of a step: open the slots, one forward over all segments, draw, accept, commit, then
// the MTP head takes in the kept rows and chains drafts, all segments together. Wide rows are moved
// inside act.streams only towards its start, so that no copy is needed.
#include "runner/runner.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"
#include "runner/plan_check.h"
#include "runner/runner_sizes.h"
#include "runner/slot.h"
#include "runner/step_batch.h"
#include "runner/verdicts.h"
#include "tensor/buffer.h"

namespace flashlane::runner {
namespace {

using kernels::kMaxWindow;
using kernels::Role;
using scheduler::Segment;
using scheduler::SegmentKind;
using scheduler::StepPlan;
using scheduler::StepResult;

// The draw of the token behind `context`, a sequence's tokens from position 0 on, and `ahead`.
kernels::SampleRow sample_row(const Segment& segment, std::span<const int32_t> context,
                              std::span<const int32_t> ahead = {}) {
  const scheduler::Sampling& sampling = segment.sampling;
  return {.params = {.temperature = sampling.temperature,
                     .top_k = sampling.top_k,
                     .top_p = sampling.top_p,
                     .min_p = sampling.min_p,
                     .seed = sampling.seed,
                     .presence_penalty = sampling.presence_penalty,
                     .frequency_penalty = sampling.frequency_penalty,
                     .repetition_penalty = sampling.repetition_penalty},
          .position = static_cast<int64_t>(context.size() + ahead.size()),
          .context = context,
          .ahead = ahead,
          .prompt = segment.reply_start};
}

// A window's drafts stand as long as each is the token that the row before it drew; forced tokens
// stand anyway.
size_t accepted_drafts(std::span<const int32_t> window, int forced_rows,
                       std::span<const int32_t> drawn) {
  auto accepted = static_cast<size_t>(forced_rows);
  while (accepted + 1 < window.size() && window[accepted + 1] == drawn[accepted]) ++accepted;
  return accepted;
}

bool ends_prompt(const Segment& segment) {
  return segment.kind == SegmentKind::kPrefill && segment.next_token == -1;
}

// Nothing that the MTP head makes of the segment's rows is wanted with this step.
bool may_wait(const Segment& segment) {
  return segment.draft_depth == 0 && segment.keep_pages.empty();
}

// A segment's rows that stay: as many as its result has tokens.
struct Kept {
  size_t segment;  // in the plan
  int row;         // the first one's place in act.streams
  int start;       // its position
};

// A segment whose drafts are being chained.
struct Chain {
  size_t segment;  // in the plan
  int row;         // in act.streams: the MTP head's last row of it
  int position;    // of that row; its logits draw the token two further on
  // Tokens behind the kept rows: the one that was drawn last, then the drafts.
  std::array<int32_t, kMaxWindow> ahead;
  size_t ahead_count;
};

}  // namespace

struct Runner::State {
  State(model::Model& loaded, const RunnerOptions& chosen, Storage sequence_storage);

  StepResult run(const StepPlan& plan);
  void run_moves(const StepPlan& plan, StepResult& result);
  void run_restores(const StepPlan& plan, StepResult& result);
  void run_prefill(const StepPlan& plan, StepResult& result);
  void keep_states(const StepPlan& plan, StepResult& result);
  void run_verify(const StepPlan& plan, StepResult& result);

  void forward(const StepPlan& plan, Role role);
  void catch_up(const StepPlan& plan);
  void extend_prompts(const StepPlan& plan);
  void draw_first_tokens(const StepPlan& plan, StepResult& result);
  void take_in(const StepPlan& plan, StepResult& result);
  void draft(const StepPlan& plan, StepResult& result);
  void draw(int rows);
  void add_logprobs(const Segment& segment, int row, scheduler::SegmentResult& result);
  void extend(const Segment& segment, int start, std::span<const int32_t> tokens,
              int32_t next_token = -1);
  void wait_for_head(const Segment& segment, int start, int row, int count);
  void run_mtp();
  void keep_chains(const StepPlan& plan, int made);
  void run_head_rows(int slot_index, int rows);

  Slot& slot(const Segment& segment) { return slots[static_cast<size_t>(segment.slot)]; }
  SlotProgress& at(const Segment& segment) { return progress[static_cast<size_t>(segment.slot)]; }
  std::byte* pool_page(memory::PageId page) {
    return pool.data() + static_cast<size_t>(page) * storage.pool.page_bytes();
  }
  float* wide_row(int row) {
    return activations.streams + static_cast<size_t>(row) * static_cast<size_t>(wide);
  }
  void move_rows(int to, int from, int count) {  // to the front, one by one: they may overlap
    CHECK_LE(to, from);
    for (int i = 0; to < from && i < count; ++i) {
      memory.copy(wide_row(to + i), wide_row(from + i), row_bytes(1));
    }
  }
  size_t row_bytes(int count) const {
    return static_cast<size_t>(count) * static_cast<size_t>(wide) * sizeof(float);
  }

  model::Model& model;
  Memory& memory;
  RunnerOptions options;
  int wide;
  Storage storage;
  int pages;
  PlanLimits limits;
  Buffer pool;
  KeptArena arena;
  std::vector<Slot> slots;
  std::vector<SlotProgress> progress;
  Verdicts verdicts;

  model::Activations activations;
  Buffer logits;  // [kMaxWindow, vocabulary]
  StepBatch batch;
  std::vector<kernels::SampleRow> sample_rows;
  std::vector<int32_t> drawn;
  std::vector<Kept> kept;
  std::vector<Chain> chains;
};

Runner::State::State(model::Model& loaded, const RunnerOptions& chosen, Storage sequence_storage)
    : model(loaded),
      memory(loaded.ops().memory()),
      options(chosen),
      wide(loaded.shape().wide()),
      storage(std::move(sequence_storage)),
      pages(pool_pages(storage, chosen)),
      limits{.slots = chosen.slots,
             .context = chosen.context,
             .max_rows = chosen.max_rows,
             .max_draft = chosen.max_draft,
             .vocabulary = loaded.shape().vocabulary,
             .pages = pages,
             .page_rows = chosen.page_rows,
             .state_pages = storage.pool.state_pages(),
             .table_pages = Slot::table_pages(storage, chosen.context),
             .kept_pages = chosen.kept_pages},
      pool(pool_bytes(storage, pages), memory),
      arena(loaded.shape(), storage, chosen.kept_pages, memory),
      progress(static_cast<size_t>(chosen.slots)),
      verdicts(chosen.slots, chosen.max_draft),
      activations(loaded.shape(), chosen.max_rows, memory),
      logits(static_cast<size_t>(kMaxWindow) * static_cast<size_t>(loaded.shape().vocabulary) *
                 sizeof(float),
             memory),
      batch(chosen.max_rows) {
  slots.reserve(static_cast<size_t>(options.slots));
  for (int i = 0; i < options.slots; ++i) {
    slots.emplace_back(model.shape(), storage, pool.data(), pages, options.context,
                       backlog_rows(options), memory);
  }
  sample_rows.reserve(kMaxWindow);
  drawn.reserve(kMaxWindow);
  kept.reserve(kMaxWindow);
  chains.reserve(kMaxWindow);
}

StepResult Runner::State::run(const StepPlan& plan) {
  StepResult result;
  result.segments.resize(plan.segments.size());
  if (!plan.moves.empty()) {
    run_moves(plan, result);
  } else if (!plan.restores.empty()) {
    run_restores(plan, result);
  } else if (plan.segments.front().kind == SegmentKind::kPrefill) {
    run_prefill(plan, result);
  } else {
    run_verify(plan, result);
  }
  verdicts.note(plan, result, progress);
  return result;
}

// Whole pages, so the state needs no settling: records, and rows that wait for the head, go along.
void Runner::State::run_moves(const StepPlan& plan, StepResult& result) {
  for (const scheduler::Move& move : plan.moves) {
    Slot& slot_of = slots[static_cast<size_t>(move.slot)];
    SlotProgress& reached = progress[static_cast<size_t>(move.slot)];
    const auto copy = [&](std::span<const memory::PageId> from,
                          std::span<const memory::PageId> to) {
      for (size_t i = 0; i < to.size(); ++i) {
        memory.copy(pool_page(to[i]), pool_page(from[i]), storage.pool.page_bytes());
      }
    };
    copy(slot_of.state_pages(), move.state_pages);
    copy(slot_of.page_table(reached), move.pages);
    slot_of.move_to(move.state_pages, move.pages, reached);
    result.moved.push_back(true);
  }
}

// Kept pages over the sequence's own, whole: what lies in them beside the state is of no meaning.
void Runner::State::run_restores(const StepPlan& plan, StepResult& result) {
  for (const scheduler::Restore& restore : plan.restores) {
    Slot& slot_of = slots[static_cast<size_t>(restore.slot)];
    SlotProgress& reached = progress[static_cast<size_t>(restore.slot)];
    slot_of.open(restore.state_pages, reached);
    slot_of.map(restore.new_pages, reached);
    size_t next = 0;
    for (const auto* own : {&restore.state_pages, &restore.new_pages}) {
      for (const memory::PageId page : *own) {
        memory.copy(pool_page(page), arena.page(restore.kept_pages[next++]),
                    storage.pool.page_bytes());
      }
    }
    slot_of.resume(restore.tokens, limits.max_draft > 0, reached);
    result.restored.push_back(true);
  }
}

// The states behind chunks that end at a mark: settled, and all rows are in the head.
void Runner::State::keep_states(const StepPlan& plan, StepResult& result) {
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& segment = plan.segments[i];
    if (segment.keep_pages.empty()) continue;
    const Slot& slot_of = slot(segment);
    auto to = segment.keep_pages.begin();
    for (const auto own : {slot_of.state_pages(), slot_of.page_table(at(segment))}) {
      for (auto page = own.begin(); page != own.end() && to != segment.keep_pages.end(); ++page) {
        memory.copy(arena.page(*to++), pool_page(*page), storage.pool.page_bytes());
      }
    }
    CHECK(to == segment.keep_pages.end());
    result.segments[i].kept = true;
  }
}

// The trunk over all segments; on return activations.streams holds their wide rows in order.
void Runner::State::forward(const StepPlan& plan, Role role) {
  for (const Segment& segment : plan.segments) {
    Slot& slot_of = slot(segment);
    if (segment.start_position == 0) slot_of.open(segment.state_pages, at(segment));
    slot_of.map(segment.new_pages, at(segment));
    slot_of.begin(segment.start_position, segment.tokens, at(segment));
  }
  catch_up(plan);
  batch.clear(role);
  for (const Segment& segment : plan.segments) {
    Slot& slot_of = slot(segment);
    // Records belong to decode windows; prompt rows go on from a state that stands alone.
    if (role == Role::kPrompt) model.settle(slot_of.state());
    batch.add({&slot_of.state(), slot_of.history()}, segment.start_position,
              slot_of.state().pending_rows, segment.tokens);
  }
  model.forward(activations, batch.batch(), batch.inputs(), storage.rows, pool.data(),
                options.probe);
}

// Before rows of a sequence are to be drafted from, or its state is kept, or its backlog would run
// over, the head takes in what waits there: each row with the token after it, the last
// one with the pending token.
void Runner::State::catch_up(const StepPlan& plan) {
  batch.clear(Role::kPrompt);
  for (const Segment& segment : plan.segments) {
    HeadBacklog& backlog = slot(segment).backlog();
    const int count = backlog.count();
    const bool full = !backlog.has_room(static_cast<int>(segment.tokens.size()));
    if (!segment.uses_mtp || count == 0 || (!full && may_wait(segment))) continue;
    if (batch.rows() + count > options.max_rows) {
      run_mtp();
      batch.clear(Role::kPrompt);
    }
    const int first = backlog.first();
    CHECK_EQ(backlog.end(), segment.start_position);
    backlog.take(wide_row(batch.rows()));
    extend(segment, first,
           slot(segment).history().subspan(static_cast<size_t>(first) + 1,
                                           static_cast<size_t>(count)));
  }
  if (!batch.empty()) run_mtp();
}

void Runner::State::run_prefill(const StepPlan& plan, StepResult& result) {
  forward(plan, Role::kPrompt);
  int row = 0;
  for (const Segment& segment : plan.segments) {
    row += static_cast<int>(segment.tokens.size());
    memory.copy(slot(segment).state().last_wide, wide_row(row - 1), row_bytes(1));
    slot(segment).commit_prompt(at(segment));
  }
  extend_prompts(plan);
  keep_states(plan, result);
  draw_first_tokens(plan, result);
}

// Prompt rows whose next token is known, all but the prompt's last: the MTP head takes them in
// where drafts are asked for, the state is kept or the backlog is too short, else they wait as
// reply rows do.
void Runner::State::extend_prompts(const StepPlan& plan) {
  batch.clear(Role::kPrompt);
  int row = 0;
  for (const Segment& segment : plan.segments) {
    const int rows = static_cast<int>(segment.tokens.size());
    const int known = ends_prompt(segment) ? rows - 1 : rows;
    // The prompt's last row goes in, or waits, behind them.
    if (segment.uses_mtp && may_wait(segment) && slot(segment).backlog().has_room(rows)) {
      if (known > 0) wait_for_head(segment, segment.start_position, row, known);
    } else if (segment.uses_mtp && known > 0) {
      move_rows(batch.rows(), row, known);
      extend(segment, segment.start_position, std::span(segment.tokens).subspan(1),
             segment.next_token);
    }
    row += rows;
  }
  if (!batch.empty()) run_mtp();
}

// Prompts that end here: the reply's first token comes from the prompt's last row, and goes with
// that row into the MTP head, by decode arithmetic as all reply tokens do.
void Runner::State::draw_first_tokens(const StepPlan& plan, StepResult& result) {
  sample_rows.clear();
  for (const Segment& segment : plan.segments) {
    if (!ends_prompt(segment)) continue;
    memory.copy(wide_row(static_cast<int>(sample_rows.size())), slot(segment).state().last_wide,
                row_bytes(1));
    sample_rows.push_back(sample_row(segment, slot(segment).history()));
  }
  const int rows = static_cast<int>(sample_rows.size());
  if (rows == 0) return;
  model.head(activations, logits.as<float>(), activations.streams, rows, options.probe);
  draw(rows);

  kept.clear();
  int row = 0;
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& segment = plan.segments[i];
    if (!ends_prompt(segment)) continue;
    result.segments[i].tokens = {drawn[static_cast<size_t>(row)]};
    add_logprobs(segment, row, result.segments[i]);
    kept.push_back({.segment = i, .row = row++, .start = at(segment).length - 1});
  }
  take_in(plan, result);
}

void Runner::State::run_verify(const StepPlan& plan, StepResult& result) {
  forward(plan, Role::kDecode);
  sample_rows.clear();
  for (const Segment& segment : plan.segments) {
    const std::span<const int32_t> history = slot(segment).history();
    for (size_t i = 0; i < segment.tokens.size(); ++i) {
      const size_t length = static_cast<size_t>(segment.start_position) + i + 1;
      sample_rows.push_back(sample_row(segment, history.first(length)));
    }
  }
  const int rows = batch.rows();
  model.head(activations, logits.as<float>(), activations.streams, rows, options.probe);
  draw(rows);

  kept.clear();
  int row = 0;
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& segment = plan.segments[i];
    const auto tokens =
        std::span<const int32_t>(drawn).subspan(static_cast<size_t>(row), segment.tokens.size());
    const size_t stood = accepted_drafts(segment.tokens, segment.forced_rows, tokens);
    const int kept_rows = static_cast<int>(stood) + 1;
    result.segments[i].tokens.assign(segment.tokens.begin() + 1,
                                     segment.tokens.begin() + kept_rows);
    result.segments[i].tokens.push_back(tokens[stood]);
    add_logprobs(segment, row, result.segments[i]);
    Slot& slot_of = slot(segment);
    memory.copy(slot_of.state().last_wide, wide_row(row + kept_rows - 1), row_bytes(1));
    slot_of.commit_window(segment.start_position, kept_rows, at(segment));
    kept.push_back({.segment = i, .row = row, .start = segment.start_position});
    row += static_cast<int>(segment.tokens.size());
  }
  take_in(plan, result);
}

// Kept rows and the tokens after them go into the MTP head, which then drafts: all sequences that
// ask for drafts in one submission, or one after the other; the others' rows wait.
void Runner::State::take_in(const StepPlan& plan, StepResult& result) {
  batch.clear(Role::kDecode);
  chains.clear();
  const auto start_chain = [&](const Kept& rows) {
    const Segment& segment = plan.segments[rows.segment];
    extend(segment, rows.start, result.segments[rows.segment].tokens);
    chains.push_back({.segment = rows.segment,
                      .row = batch.rows() - 1,
                      .position = at(segment).length - 1,
                      .ahead = {result.segments[rows.segment].tokens.back()},
                      .ahead_count = 1});
  };
  for (const Kept& rows : kept) {
    const Segment& segment = plan.segments[rows.segment];
    const int count = static_cast<int>(result.segments[rows.segment].tokens.size());
    if (!segment.uses_mtp) continue;
    if (segment.draft_depth == 0 || options.serial_drafts) {
      wait_for_head(segment, rows.start, rows.row, count);
    } else {
      move_rows(batch.rows(), rows.row, count);
      start_chain(rows);
    }
  }
  draft(plan, result);
  if (!options.serial_drafts) return;
  for (const Kept& rows : kept) {
    const Segment& segment = plan.segments[rows.segment];
    if (segment.draft_depth == 0) continue;
    batch.clear(Role::kDecode);
    chains.clear();
    slot(segment).backlog().take(wide_row(0));
    start_chain(rows);
    draft(plan, result);
  }
}

void Runner::State::draw(int rows) {
  CHECK_EQ(static_cast<size_t>(rows), sample_rows.size());
  drawn.resize(static_cast<size_t>(rows));
  model.ops().sample(drawn.data(), logits.as<float>(), sample_rows, limits.vocabulary);
}

// Of a segment's tokens, whose first one was drawn from logits row `row`. A token that a rule puts
// in place of a drawn one gets its own value from the same row.
void Runner::State::add_logprobs(const Segment& segment, int row,
                                 scheduler::SegmentResult& result) {
  if (segment.logprobs < 0) return;
  const bool replaceable = segment.replacement != -1;
  std::vector<kernels::TokenLogprob> best(
      static_cast<size_t>(std::min(segment.logprobs, limits.vocabulary)));
  for (const int32_t token : result.tokens) {
    std::array<kernels::TokenLogprob, 2> own = {{{token, 0}, {segment.replacement, 0}}};
    const auto vocabulary = static_cast<size_t>(limits.vocabulary);
    model.ops().log_probabilities(best, std::span(own).first(replaceable ? 2 : 1),
                                  logits.as<float>() + static_cast<size_t>(row) * vocabulary,
                                  limits.vocabulary);
    scheduler::TokenLogprobs out{.logprob = own[0].logprob, .of_replacement = own[1].logprob};
    for (const auto& [id, logprob] : best) out.best.push_back({id, logprob});
    result.logprobs.push_back(std::move(out));
    ++row;
  }
}

// Adds the MTP rows from `start` on to the batch: `tokens`, and `next_token` unless it is -1, are
// the tokens after each row's position. Their wide rows are in place already.
void Runner::State::extend(const Segment& segment, int start, std::span<const int32_t> tokens,
                           int32_t next_token) {
  Slot& slot_of = slot(segment);
  batch.add({&slot_of.state(), slot_of.history()}, start, 0, tokens, next_token);
  at(segment).mtp_length = start + static_cast<int>(tokens.size()) + (next_token == -1 ? 0 : 1);
}

// Rows of a sequence that asks for no drafts; `row` is the first one's place in act.streams.
void Runner::State::wait_for_head(const Segment& segment, int start, int row, int count) {
  slot(segment).backlog().add(start, wide_row(row), count);
  at(segment).mtp_length = start + count;
}

void Runner::State::run_mtp() {
  model.mtp_forward(activations, activations.streams, batch.batch(), batch.inputs(), storage.rows,
                    pool.data(), options.probe);
}

// Runs the batch of kept rows through the MTP head, then chains drafts: each is drawn with the
// target's own noise at its own position, and goes in as the next row's token. Chained rows lie
// beyond the kept ones in the head's cache, where the true rows will overwrite them.
void Runner::State::draft(const StepPlan& plan, StepResult& result) {
  if (batch.empty()) return;
  run_mtp();
  for (const Chain& chain : chains) {
    const int depth = plan.segments[chain.segment].draft_depth;
    result.segments[chain.segment].drafts.reserve(static_cast<size_t>(depth));
  }
  int made = 0;
  for (keep_chains(plan, made); !chains.empty(); run_mtp()) {
    sample_rows.clear();
    for (const Chain& chain : chains) {
      const Segment& segment = plan.segments[chain.segment];
      sample_rows.push_back(sample_row(segment, slot(segment).history(),
                                       std::span(chain.ahead).first(chain.ahead_count)));
      CHECK_EQ(sample_rows.back().position, chain.position + 2);
    }
    const int rows = static_cast<int>(chains.size());
    model.mtp_head(activations, logits.as<float>(), activations.streams, rows, options.probe);
    draw(rows);
    for (size_t i = 0; i < chains.size(); ++i) {
      Chain& chain = chains[i];
      result.segments[chain.segment].drafts.push_back(drawn[i]);
      ++chain.position;
      CHECK_LT(chain.ahead_count, chain.ahead.size());  // max_draft is below kMaxWindow
      chain.ahead[chain.ahead_count++] = drawn[i];
    }
    keep_chains(plan, ++made);
    if (chains.empty()) return;
    batch.clear(Role::kDecode);
    for (Chain& chain : chains) {
      Slot& slot_of = slot(plan.segments[chain.segment]);
      const std::vector<int32_t>& drafts = result.segments[chain.segment].drafts;
      batch.add({&slot_of.state(), slot_of.history()}, chain.position, 0,
                std::span(drafts).last(1));
    }
  }
}

// Drops the chains that have all drafts they want, or whose next draft would lie beyond the
// context, and moves the others' rows together.
void Runner::State::keep_chains(const StepPlan& plan, int made) {
  std::erase_if(chains, [&](const Chain& chain) {
    return plan.segments[chain.segment].draft_depth <= made ||
           chain.position + 2 >= options.context;
  });
  for (size_t i = 0; i < chains.size(); ++i) {
    move_rows(static_cast<int>(i), chains[i].row, 1);
    chains[i].row = static_cast<int>(i);
  }
}

// The wide rows are whatever the last forward left: only the time counts.
void Runner::State::run_head_rows(int slot_index, int rows) {
  Slot& slot_of = slots[static_cast<size_t>(slot_index)];
  const std::span<const int32_t> history = slot_of.history();
  const int start = static_cast<int>(history.size()) - rows;
  batch.clear(Role::kDecode);
  batch.add({&slot_of.state(), history}, start, 0, history.last(static_cast<size_t>(rows)));
  run_mtp();
  model.mtp_head(activations, logits.as<float>(), activations.streams, rows, options.probe);
  sample_rows.assign(static_cast<size_t>(rows), kernels::SampleRow{});
  draw(rows);
}

Result<std::unique_ptr<Runner>> Runner::create(model::Model& model, const RunnerOptions& options) {
  RETURN_IF_ERROR(check_options(model, options));
  ASSIGN_OR_RETURN(Storage storage, sequence_storage(model.shape(), options));
  return std::unique_ptr<Runner>(
      new Runner(std::make_unique<State>(model, options, std::move(storage))));
}

Runner::Runner(std::unique_ptr<State> state) : state_(std::move(state)) {}
Runner::~Runner() = default;

Result<StepResult> Runner::run(const StepPlan& plan) {
  State& state = *state_;
  if (plan.segments.empty() || plan.segments.front().verdict_rows == 0) {
    RETURN_IF_ERROR(check_plan(plan, state.limits, state.progress));
    return state.run(plan);
  }
  StepPlan filled = plan;
  RETURN_IF_ERROR(state.verdicts.fill(filled, state.progress));
  RETURN_IF_ERROR(check_plan(filled, state.limits, state.progress));
  StepResult result = state.run(filled);
  result.segments.front().rows = static_cast<int>(filled.segments.front().tokens.size());
  return result;
}

Status Runner::run_head_rows(int slot, int rows) {
  State& state = *state_;
  if (state.limits.max_draft == 0) return invalid("the model has no MTP head to run");
  if (slot < 0 || slot >= state.limits.slots || rows < 1 || rows > kMaxWindow ||
      rows > state.limits.max_rows || state.progress[static_cast<size_t>(slot)].length < rows) {
    return invalid("slot {} has no {} rows to run through the MTP head", slot, rows);
  }
  state.run_head_rows(slot, rows);
  return {};
}

KeptArena& Runner::kept_arena() {
  return state_->arena;
}

const PlanLimits& Runner::limits() const {
  return state_->limits;
}

const Storage& Runner::storage() const {
  return state_->storage;
}

const RunnerOptions& Runner::options() const {
  return state_->options;
}

}  // namespace flashlane::runner
