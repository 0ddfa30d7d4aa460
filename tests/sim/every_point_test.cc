// One small world of four requests in two slots, run again for each thing that may happen at each
// point of it: a cancel of each sequence, once and twice, a shutdown, a failed step before and
// after partial work, a client that is too slow from some event on. Whoever it does not happen to
// replies in full, and all get one end (H2, H3, C4). The random worlds meet the rest.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <deque>
#include <utility>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/sim/clients.h"
#include "tests/sim/ledger.h"
#include "tests/sim/swarm.h"
#include "tests/support/fake_runner.h"

namespace flashlane::sim {
namespace {

using scheduler::Event;
using scheduler::SequenceId;
using scheduler::SequenceSpec;
using scheduler::StepPlan;

constexpr int kRequests = 4;
constexpr int kNever = -1;

struct Happening {
  int cancel_at = kNever;  // a point
  int cancels = 1;
  uint64_t whom = 0;     // of a cancel; 0 = all, as a shutdown does
  int fail_at = kNever;  // a step
  size_t fail_after = 0;
  ErrorCode failure = ErrorCode::kInternal;
  uint64_t slow = 0;  // whose client reads nothing
  size_t queue = 0;   // of that one
};

std::vector<SequenceSpec> requests() {
  std::vector<SequenceSpec> specs(kRequests);
  specs[0] = {.prompt = {1, 2, 3, 1, 2, 3, 1, 2}, .max_tokens = 9};
  specs[1] = {.prompt = {4, 5}, .max_tokens = 8, .logprobs = 1};
  specs[1].thinking = {.budget = 4, .close_tokens = {1, 3, 2}, .end_token = 3};
  specs[2] = {.prompt = {9, 9, 9, 8, 7, 6, 5, 4, 3, 2, 1}, .max_tokens = 4, .drafts = false};
  specs[3] = {.prompt = {7, 6, 7, 6}, .max_tokens = 7};
  specs[3].sampling = {.temperature = 1, .seed = 5};
  return specs;
}

class Course {
 public:
  explicit Course(const Happening& happening, int slots = 2)
      : happening_(happening),
        slots_(slots),
        scheduler_(options()),
        ledger_(options(), options().vocabulary, 0, swarm_texts()) {
    runner_.slots = slots_;
    runner_.fail_at_step = happening.fail_at;
    runner_.fail_after = happening.fail_after;
    runner_.failure = error(happening.failure, "as planned");
  }

  // The first breach; empty when there is none.
  std::string run() {
    for (const SequenceSpec& spec : requests()) {
      const SequenceId id = scheduler_.submit(spec).value();
      ledger_.submitted(id, spec);
      const bool slow = id.value == happening_.slow;
      clients_.came(id, slow ? Habits{.queue = happening_.queue, .pause = 1 << 30} : Habits{},
                    ledger_.live().at(id.value).solo);
    }
    while (ledger_.ok() && step()) {
    }
    if (ledger_.ok()) ledger_.at_end(scheduler_.pages(), scheduler_.sessions());
    if (ledger_.ok()) clients_.at_end();
    return ledger_.ok() ? clients_.problem() : ledger_.problem();
  }

  int points() const { return points_; }
  int by_verdict() const { return by_verdict_; }
  int in_vain() const { return in_vain_; }
  int steps_since() const { return runner_.steps - steps_then_; }  // since the first cancel
  int steps() const { return runner_.steps; }
  int64_t count(Seen what) const { return ledger_.tally().of(what) + clients_.tally().of(what); }
  int64_t full_replies() const { return count(Seen::kStop) + count(Seen::kLength); }

 private:
  scheduler::SchedulerOptions options() const {
    return {.context = 32,
            .slots = slots_,
            .prefill_chunk = 5,
            .max_draft = 2,
            .lone = true,
            .steps_in_flight = 2,
            .vocabulary = 16};
  }

  // As many steps begin as there may be under way, and the oldest lands; false at the end.
  bool step() {
    while (static_cast<int>(under_way_.size()) < options().steps_in_flight && begin()) {
    }
    if (under_way_.empty() || !ledger_.ok()) return false;
    auto [plan, ran, result, told] = std::move(under_way_.front());
    under_way_.pop_front();
    const bool vain = !told && !ledger_.live().contains(plan.segments.front().sequence.value);
    if (!told && !vain) ledger_.planned(ran);
    if (result.ok()) {
      if (!vain) ledger_.landed(ran, 0);
      scheduler_.commit(plan, result.value());
    } else {
      if (!vain) ledger_.failed(ran, result.error());
      scheduler_.fail(plan, result.error());
    }
    in_vain_ += vain ? 1 : 0;
    scheduler_.check();
    point();
    collect();
    return true;
  }

  bool begin() {
    point();
    const StepPlan plan = scheduler_.plan();
    collect();
    if (plan.empty() || !ledger_.ok()) return false;
    auto result = runner_.run(plan);
    const bool by_verdict = plan.segments.front().verdict_rows > 0;
    by_verdict_ += by_verdict ? 1 : 0;
    const StepPlan ran = by_verdict ? runner_.filled : plan;
    const bool told = under_way_.empty();
    ledger_.mapped(ran);
    if (told) ledger_.planned(ran);
    under_way_.push_back({plan, ran, std::move(result), told});
    point();
    return true;
  }

  void point() {
    if (points_++ != happening_.cancel_at) return;
    steps_then_ = runner_.steps;
    for (int i = 0; i < happening_.cancels; ++i) {
      for (uint64_t id = 1; id <= kRequests; ++id) {
        if (happening_.whom == 0 || happening_.whom == id) cancel({id});
      }
    }
  }

  void cancel(SequenceId id) {
    ledger_.cancelled(id);
    scheduler_.cancel(id);
  }

  void collect() {
    std::vector<Event> events;
    do {
      events = scheduler_.collect();
      ledger_.take(events);
      clients_.deliver(events, [&](SequenceId slow, bool /*others*/) {
        cancel(slow);
        return true;
      });
    } while (!events.empty() && ledger_.ok());
    clients_.delivered();
    if (ledger_.ok()) ledger_.counted(scheduler_.running(), scheduler_.waiting());
  }

  Happening happening_;
  int slots_;
  testing::FakeRunner runner_;
  scheduler::Scheduler scheduler_;
  Ledger ledger_;
  Clients clients_;
  struct UnderWay {
    StepPlan plan;
    StepPlan ran;  // with what a verdict filled in
    Result<scheduler::StepResult> result;
    bool told;  // to the ledger
  };
  std::deque<UnderWay> under_way_ = {};
  int by_verdict_ = 0;
  int in_vain_ = 0;
  int points_ = 0;
  int steps_then_ = 0;
};

// In one slot each reply is alone; in two they share steps, all but the end of the last.
constexpr int kSlots[] = {1, 2};

// How many points, and steps, there are when nothing happens.
Course undisturbed(int slots) {
  Course course({}, slots);
  course.run();
  return course;
}

TEST(EveryPoint, NothingHappens) {
  for (const int slots : kSlots) {
    Course course({}, slots);
    EXPECT_EQ(course.run(), "");
    EXPECT_EQ(course.full_replies(), kRequests);
    EXPECT_GT(course.points(), 30);  // else there was little to go through
    EXPECT_EQ(course.count(Seen::kSharedPromptStep) > 0, slots > 1);
    EXPECT_EQ(course.count(Seen::kSharedDecodeStep) > 0, slots > 1);
    EXPECT_GT(course.count(Seen::kAcceptedDraft), 0);
    EXPECT_GT(course.count(Seen::kForcedRow), 0);
    EXPECT_GT(course.by_verdict(), 0);
  }
}

void cancel_at(int at, int slots, Tally& seen, int& in_vain) {
  for (uint64_t whom = 1; whom <= kRequests; ++whom) {
    for (const int times : {1, 2}) {
      Course course({.cancel_at = at, .cancels = times, .whom = whom}, slots);
      ASSERT_EQ(course.run(), "") << "point " << at << ", sequence " << whom << ", " << times;
      EXPECT_GE(course.full_replies(), kRequests - 1);
      in_vain += course.in_vain();
      for (const Seen what : {Seen::kCancelWaiting, Seen::kCancelFilling, Seen::kCancelDecoding,
                              Seen::kCancelInFlight, Seen::kCancelTwice, Seen::kCancelEnded}) {
        seen.add(what, course.count(what));
      }
    }
  }
}

TEST(EveryPoint, CancelledOnceAndTwice) {
  Tally seen;
  int in_vain = 0;
  for (const int slots : kSlots) {
    const int points = undisturbed(slots).points();
    for (int at = 0; at < points; ++at) cancel_at(at, slots, seen, in_vain);
  }
  EXPECT_GT(in_vain, 0);
  for (const Seen what : {Seen::kCancelWaiting, Seen::kCancelFilling, Seen::kCancelDecoding,
                          Seen::kCancelInFlight, Seen::kCancelTwice, Seen::kCancelEnded}) {
    EXPECT_GT(seen.of(what), 0) << kSeenNames[static_cast<size_t>(what)];
  }
}

// All are cancelled at once; nothing may be planned any more.
TEST(EveryPoint, ShutDown) {
  for (const int slots : kSlots) {
    const int points = undisturbed(slots).points();
    for (int at = 0; at < points; ++at) {
      Course course({.cancel_at = at}, slots);
      ASSERT_EQ(course.run(), "") << "point " << at;
      EXPECT_EQ(course.steps_since(), 0) << "point " << at;
    }
  }
}

TEST(EveryPoint, AStepFails) {
  int64_t spared = 0;
  int64_t failed = 0;
  int64_t steps = 0;
  for (const int slots : kSlots) {
    const int undisturbed_steps = undisturbed(slots).steps();
    steps += undisturbed_steps;
    for (int at = 0; at < undisturbed_steps; ++at) {
      for (const size_t after : {0, 1, 2}) {
        for (const ErrorCode code : {ErrorCode::kInternal, ErrorCode::kDeviceLost}) {
          Course course({.fail_at = at, .fail_after = after, .failure = code}, slots);
          ASSERT_EQ(course.run(), "") << "step " << at << " after " << after;
          EXPECT_GE(course.full_replies(), kRequests - 2);
          spared += course.count(Seen::kFailedSharedPrompt);
          failed += course.count(Seen::kFailedPrompt) + course.count(Seen::kFailedDecode);
        }
      }
    }
  }
  EXPECT_GT(spared, 0);
  // In this world none of a step that was in vain.
  EXPECT_EQ(spared + failed, steps * 6);
}

// The queue of one client is full from each of its events on.
TEST(EveryPoint, AClientIsTooSlow) {
  Tally seen;
  for (uint64_t slow = 1; slow <= 2 * kRequests; ++slow) {
    bool cut = true;
    for (size_t queue = 0; cut; ++queue) {
      Course course({.slow = 1 + slow % kRequests, .queue = queue}, 1 + (slow > kRequests));
      ASSERT_EQ(course.run(), "") << "sequence " << slow << ", " << queue << " events";
      cut = course.count(Seen::kCutReply) > 0;
      EXPECT_GE(course.full_replies(), kRequests - (cut ? 1 : 0));
      for (const Seen what : {Seen::kSlowFilling, Seen::kSlowDecoding, Seen::kSlowAmongOthers,
                              Seen::kSlowAtTheEnd, Seen::kWithheld}) {
        seen.add(what, course.count(what));
      }
    }
  }
  for (const Seen what : {Seen::kSlowFilling, Seen::kSlowDecoding, Seen::kSlowAmongOthers,
                          Seen::kSlowAtTheEnd, Seen::kWithheld}) {
    EXPECT_GT(seen.of(what), 0) << kSeenNames[static_cast<size_t>(what)];
  }
}

}  // namespace
}  // namespace flashlane::sim
