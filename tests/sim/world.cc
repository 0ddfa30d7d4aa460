// The order of things: arrivals, cancels, a plan, its run with faults, cancels in flight, its
// result, its delivery to clients who may be too slow for it. Everything that may go wrong in the
// world is rolled here.
#include "tests/sim/world.h"

#include <fmt/format.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <utility>

#include "scheduler/scheduler.h"
#include "tests/sim/clients.h"
#include "tests/sim/dice.h"
#include "tests/sim/ledger.h"
#include "tests/sim/swarm.h"
#include "tests/support/fake_runner.h"

namespace flashlane::sim {
namespace {

using scheduler::Event;
using scheduler::Segment;
using scheduler::SegmentKind;
using scheduler::SequenceId;
using scheduler::SequenceSpec;
using scheduler::StepPlan;
using scheduler::StepResult;

constexpr int kCanaryTurn = 4;  // steps before a canary sings, so that there is something to break

class World {
 public:
  World(uint64_t seed, Canary canary)
      : dice_(seed),
        canary_(canary),
        swarm_(choose_swarm(dice_)),
        scheduler_(swarm_.options),
        ledger_(swarm_.options, swarm_.vocabulary, swarm_.memory, swarm_texts()),
        reporter_(::testing::ScopedFakeTestPartResultReporter::INTERCEPT_ONLY_CURRENT_THREAD,
                  &runner_breaches_) {
    runner_.vocabulary = swarm_.vocabulary;
    runner_.memory = swarm_.memory;
    runner_.drafting = swarm_.drafting;
    runner_.slots = swarm_.options.slots;
  }

  Outcome run() {
    for (int turn = 0; turn < swarm_.turns && ledger_.ok() && !closed_; ++turn) {
      clients_.read(dice_);
      arrivals();
      if (turn == swarm_.shutdown_turn && !swarm_.shutdown_in_flight) shut_down();
      if (dice_.once_in(swarm_.cancel)) cancel_some();
      step(true, turn == swarm_.shutdown_turn);
    }
    live_out();
    if (ledger_.ok()) ledger_.at_end(scheduler_.pages(), scheduler_.sessions());
    if (ledger_.ok()) clients_.at_end();
    hear_clients();
    const scheduler::Trace& decisions = scheduler_.trace();
    Outcome outcome{.problem = ledger_.problem(),
                    .tally = ledger_.tally(),
                    .trace = splitmix64(ledger_.trace() ^ decisions.hash())};
    outcome.tally.add(clients_.tally());
    if (ledger_.ok()) return outcome;
    for (const scheduler::TraceEntry& entry : decisions.last()) {
      outcome.problem += "\n  " + describe(entry);
    }
    return outcome;
  }

 private:
  // No arrivals, no faults and no slow clients any more: each step brings a row of a prompt or a
  // token of a reply.
  void live_out() {
    // Moves are steps of their own: each sequence makes as many as there are sessions, at most.
    const auto sessions = static_cast<int64_t>(swarm_.options.sessions.size());
    // Of steps that were begun ahead of their time, some run in vain.
    const int64_t each = sessions + swarm_.options.steps_in_flight;
    const int64_t bound =
        ledger_.rows_to_come() + each * static_cast<int64_t>(ledger_.live().size() + 1);
    const auto busy = [&] {
      return scheduler_.running() + scheduler_.waiting() > 0 || !under_way_.empty();
    };
    for (int64_t steps = 0; ledger_.ok() && busy(); ++steps) {
      if (steps == bound) return ledger_.breach(fmt::format("no end after {} steps", bound));
      clients_.read_all();
      step(false, false);
    }
  }

  void arrivals() {
    if (!dice_.once_in(swarm_.arrival)) return;
    const int count = dice_.roll(1, swarm_.burst);
    for (int i = 0; i < count; ++i) {
      if (dice_.once_in(swarm_.refused)) refused();
      SequenceSpec spec = choose_request(swarm_, dice_);
      if (swarm_.options.kept_pages > 0) follow(spec);
      const auto id = scheduler_.submit(spec);
      if (!id.ok()) return ledger_.breach("refused: " + id.error().message);
      ledger_.submitted(id.value(), spec);
      clients_.came(id.value(), choose_habits(swarm_, dice_),
                    ledger_.live().at(id.value().value).solo);
    }
  }

  // A request often goes on from one that was before it, whole or changed somewhere.
  void follow(SequenceSpec& spec) {
    if (!said_.empty() && !dice_.once_in(3)) {
      const std::vector<int32_t>& before =
          said_[static_cast<size_t>(dice_.roll(0, static_cast<int>(said_.size()) - 1))];
      const size_t most = static_cast<size_t>(swarm_.options.context - spec.max_tokens);
      std::vector<int32_t> prompt = before;
      if (dice_.once_in(3))
        prompt.resize(static_cast<size_t>(dice_.roll(1, static_cast<int>(before.size()))));
      prompt.insert(prompt.end(), spec.prompt.begin(), spec.prompt.end());
      if (prompt.size() > most) prompt.resize(most);
      spec.prompt = std::move(prompt);
    }
    const int size = static_cast<int>(spec.prompt.size());
    for (int i = dice_.roll(0, 3); i > 0; --i) spec.marks.push_back(dice_.roll(0, size + 2));
    said_.push_back(spec.prompt);
  }

  // A request that can't run leaves no trace.
  void refused() {
    SequenceSpec spec = choose_request(swarm_, dice_);
    const char* field = "max_tokens";
    switch (dice_.roll(0, 3)) {
      case 0:
        spec.max_tokens = swarm_.options.context - static_cast<int>(spec.prompt.size()) + 1;
        break;
      case 1:
        spec.max_tokens = 0;
        break;
      case 2:
        spec.prompt.clear();
        field = "prompt";
        break;
      default:
        spec.prompt.back() = swarm_.vocabulary;
        field = "prompt";
    }
    const int waiting = scheduler_.waiting();
    const auto id = scheduler_.submit(spec);
    if (id.ok() || id.error().field != field || scheduler_.waiting() != waiting) {
      ledger_.breach(fmt::format("a request of a bad {} is not refused", field));
    }
    ledger_.count(Seen::kRefused);
  }

  void cancel(SequenceId id) {
    ledger_.cancelled(id);
    const bool lost = canary_ == Canary::kLostCancel && ledger_.live().contains(id.value);
    if (!lost) scheduler_.cancel(id);
  }

  // Any id that was ever given, or one that wasn't; more often one that is alive.
  void cancel_some() {
    SequenceId id{static_cast<uint64_t>(dice_.roll(0, static_cast<int>(ledger_.newest()) + 1))};
    const auto& live = ledger_.live();
    if (!live.empty() && !dice_.once_in(4)) {
      id.value = std::next(live.begin(), dice_.roll(0, static_cast<int>(live.size()) - 1))->first;
    }
    cancel(id);
    if (dice_.once_in(3)) cancel(id);
    if (dice_.once_in(2)) collect();
  }

  void shut_down() {
    closed_ = true;
    ledger_.count(Seen::kShutdown);
    std::vector<SequenceId> ids;
    for (const auto& [id, record] : ledger_.live()) ids.push_back({id});
    for (const SequenceId id : ids) cancel(id);
  }

  // As many steps begin as there may be under way, and the oldest of them lands.
  void step(bool faults, bool shutdown_now) {
    while (static_cast<int>(under_way_.size()) < swarm_.options.steps_in_flight && begin(faults)) {
    }
    if (!ledger_.ok()) return;
    if (under_way_.empty()) {
      if (scheduler_.running() + scheduler_.waiting() > 0) ledger_.breach("nothing is planned");
      return;
    }
    if (shutdown_now && swarm_.shutdown_in_flight) shut_down();
    if (faults && dice_.once_in(swarm_.cancel)) cancel_some();
    if (ledger_.ok()) land();
  }

  // Plans a step and runs it, though nobody hears of its result yet; false when there is none.
  bool begin(bool faults) {
    const StepPlan plan = scheduler_.plan();
    collect();
    if (!ledger_.ok()) return false;
    const bool alone = under_way_.empty();
    if (alone) ledger_.waits(scheduler_.running() < swarm_.options.slots);
    if (plan.empty()) return false;
    ++steps_;
    UnderWay step{.plan = plan, .result = run(plan, faults && dice_.once_in(swarm_.failure))};
    const bool by_verdict = !plan.segments.empty() && plan.segments.front().verdict_rows > 0;
    if (by_verdict) ledger_.count(alone ? Seen::kLoneStep : Seen::kStepAhead);
    step.ran = by_verdict ? runner_.filled : plan;
    if (by_verdict && step.ran.segments.front().tokens.empty()) step.ran.segments.clear();
    if (!alone && !by_verdict) ledger_.breach("a step is planned while another is under way");
    if (!step.ran.empty()) ledger_.mapped(step.ran);
    if (alone && ledger_.ok()) ledger_.planned(seen(step.ran));
    step.planned = alone;
    under_way_.push_back(std::move(step));
    return ledger_.ok();
  }

  void land() {
    UnderWay step = std::move(under_way_.front());
    under_way_.pop_front();
    const StepPlan& plan = step.plan;
    Result<StepResult>& result = step.result;
    // One that ran behind the end of its reply is of no account.
    const bool vain =
        !step.planned && !ledger_.live().contains(plan.segments.front().sequence.value);
    if (vain) ledger_.count(Seen::kStepInVain);
    if (!step.planned && !vain) ledger_.planned(seen(step.ran));
    if (!ledger_.ok()) return;
    if (result.ok()) result.value().elapsed_ms = elapse(step.ran);
    if (vain) {
      // Nothing of it counts.
    } else if (!plan.moves.empty()) {
      ledger_.landed_moves(plan, result.ok() ? result.value().moved : std::vector<bool>{},
                           result.ok()
                               ? error(ErrorCode::kInternal, "could not move to a larger session")
                               : result.error());
    } else if (result.ok()) {
      ledger_.landed(step.ran, result.value().elapsed_ms);
    } else {
      ledger_.failed(step.ran, result.error());
    }
    if (result.ok()) {
      scheduler_.commit(plan, result.value());
    } else {
      scheduler_.fail(plan, result.error());
    }
    scheduler_.check();
    collect();
  }

  Result<StepResult> run(const StepPlan& plan, bool fails) {
    runner_.fail_at_step = -1;
    runner_.fail_keeps = dice_.once_in(swarm_.failed_copy);
    runner_.fail_moves = dice_.once_in(swarm_.failed_move);
    runner_.fail_restores = dice_.once_in(swarm_.failed_copy);
    if (fails) {
      const bool lost = dice_.once_in(swarm_.lost_device);
      runner_.fail_at_step = runner_.steps;
      runner_.fail_after = static_cast<size_t>(
          dice_.once_in(2) ? dice_.roll(0, static_cast<int>(plan.segments.size())) : 0);
      runner_.failure = error(lost ? ErrorCode::kDeviceLost : ErrorCode::kInternal,
                              "the device is {}, step {}", lost ? "lost" : "wrong", steps_);
      if (lost) ledger_.count(Seen::kDeviceLost);
      if (runner_.fail_after > 0) ledger_.count(Seen::kFailedAfterWork);
    }
    if (sings(Canary::kSwappedSlots) && runner_.kept.size() > 1) {
      std::swap(runner_.kept.begin()->second, std::next(runner_.kept.begin())->second);
      sung_ = true;
    }
    Result<StepResult> result = runner_.run(plan);
    if (!plan.restores.empty() && runner_.fail_restores) ledger_.count(Seen::kFailedRestore);
    if (runner_breaches_.size() > 0) {
      ledger_.breach(
          fmt::format("the runner: {}", runner_breaches_.GetTestPartResult(0).summary()));
    }
    if (result.ok() && sings(Canary::kWrongToken)) spoil(result.value());
    return result;
  }

  void spoil(StepResult& result) {
    for (scheduler::SegmentResult& segment : result.segments) {
      if (segment.tokens.empty()) continue;
      segment.tokens.back() = (segment.tokens.back() + 1) % swarm_.vocabulary;
      sung_ = true;
      return;
    }
  }

  // The clock has no other hand: a step takes what the world says.
  double elapse(const StepPlan& plan) {
    size_t rows = 0;
    for (const Segment& segment : plan.segments) rows += segment.tokens.size();
    double step_ms = 0;
    if (swarm_.pace == Pace::kByRows) step_ms = 4 + 0.5 * static_cast<double>(rows);
    if (swarm_.pace == Pace::kUneven) {
      step_ms = dice_.once_in(10) ? 1e4 : 0.25 * dice_.roll(0, 400);
    }
    const double before_ms = now_ms_;
    now_ms_ += step_ms;
    return now_ms_ - before_ms;
  }

  // The plan as the ledger gets to see it.
  StepPlan seen(const StepPlan& plan) const {
    if (plan.segments.empty()) return plan;
    const bool prompts = plan.segments.front().kind == SegmentKind::kPrefill;
    StepPlan account = plan;
    if (canary_ == (prompts ? Canary::kUnservedPrompt : Canary::kUnservedReply) &&
        plan.segments.size() > 1) {
      account.segments.pop_back();
    }
    return account;
  }

  // As the engine does: what a delivery brings about, a slow client's end above all, is delivered
  // in the next round of the loop.
  void collect() {
    std::vector<Event> events;
    do {
      events = scheduler_.collect();
      tamper(events);
      ledger_.take(events);
      if (ledger_.ok()) deliver(events);
    } while (!events.empty() && ledger_.ok());
    if (!ledger_.ok()) return;
    ledger_.counted(scheduler_.running(), scheduler_.waiting());
    clients_.delivered();
    hear_clients();
  }

  void deliver(std::vector<Event> events) {
    clients_.deliver(std::move(events), [&](SequenceId slow, bool others) {
      if (canary_ != Canary::kSlowRunsOn) cancel(slow);
      if (!others || !sings(Canary::kDroppedRest)) return true;
      sung_ = true;
      return false;
    });
    hear_clients();
  }

  void hear_clients() {
    if (!clients_.problem().empty()) ledger_.breach(clients_.problem());
  }

  // For the canaries whose place is between the scheduler and those who hear it.
  void tamper(std::vector<Event>& events) {
    const auto end = std::find_if(events.begin(), events.end(), [](const Event& event) {
      return event.kind == Event::Kind::kFinished;
    });
    const auto tokens = std::find_if(events.begin(), events.end(), [](const Event& event) {
      return event.kind == Event::Kind::kTokens;
    });
    if (end != events.end() && sings(Canary::kSecondEnd)) {
      events.push_back(*end);
    } else if (end != events.end() && sings(Canary::kLostEnd)) {
      events.erase(end);
      sung_ = true;
    } else if (tokens != events.end() && sings(Canary::kLostTokens)) {
      events.erase(tokens);
      sung_ = true;
    }
  }

  struct UnderWay {
    StepPlan plan;
    StepPlan ran = {};  // with what a verdict filled in
    Result<StepResult> result;
    bool planned = false;  // the ledger was told
  };

  bool sings(Canary canary) const { return canary_ == canary && !sung_ && steps_ >= kCanaryTurn; }

  Dice dice_;
  Canary canary_;
  bool sung_ = false;
  Swarm swarm_;
  testing::FakeRunner runner_;
  scheduler::Scheduler scheduler_;
  Ledger ledger_;
  Clients clients_;
  // The runner states its own expectations; in a world they are breaches like others.
  ::testing::TestPartResultArray runner_breaches_;
  ::testing::ScopedFakeTestPartResultReporter reporter_;
  std::vector<std::vector<int32_t>> said_;  // prompts so far
  std::deque<UnderWay> under_way_;          // oldest first
  double now_ms_ = 0;
  int steps_ = 0;
  bool closed_ = false;
};

}  // namespace

Outcome run_world(uint64_t seed, Canary canary) {
  return World(seed, canary).run();
}

}  // namespace flashlane::sim
