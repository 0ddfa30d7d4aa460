// One small world of four requests in two slots, run again for each thing that may happen at each
// point of it: a cancel of each sequence, once and twice, a shutdown, a failed step before and
// after partial work, a client that is too slow from some event on. Whoever it does not happen to
// replies in full, and all get one end (H2, H3, C4). The random worlds meet the rest.
#include <fmt/format.h>
#include <gtest/gtest.h>

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
  explicit Course(const Happening& happening)
      : happening_(happening),
        scheduler_(options()),
        ledger_(options(), options().vocabulary, 0, swarm_texts()) {
    runner_.slots = options().slots;
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
  int steps() const { return runner_.steps; }
  int64_t count(Seen what) const { return ledger_.tally().of(what) + clients_.tally().of(what); }
  int64_t full_replies() const { return count(Seen::kStop) + count(Seen::kLength); }

 private:
  static scheduler::SchedulerOptions options() {
    return {.context = 32, .slots = 2, .prefill_chunk = 5, .max_draft = 2, .vocabulary = 16};
  }

  bool step() {
    point();
    const StepPlan plan = scheduler_.plan();
    collect();
    if (plan.empty() || !ledger_.ok()) return false;
    ledger_.mapped(plan);
    ledger_.planned(plan);
    point();
    const auto result = runner_.run(plan);
    if (result.ok()) {
      ledger_.landed(plan, 0);
      scheduler_.commit(plan, result.value());
    } else {
      ledger_.failed(plan, result.error());
      scheduler_.fail(plan, result.error());
    }
    scheduler_.check();
    point();
    collect();
    return true;
  }

  void point() {
    if (points_++ != happening_.cancel_at) return;
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
  testing::FakeRunner runner_;
  scheduler::Scheduler scheduler_;
  Ledger ledger_;
  Clients clients_;
  int points_ = 0;
};

// How many points, and steps, there are when nothing happens.
Course undisturbed() {
  Course course({});
  course.run();
  return course;
}

TEST(EveryPoint, NothingHappens) {
  Course course({});
  EXPECT_EQ(course.run(), "");
  EXPECT_EQ(course.full_replies(), kRequests);
  EXPECT_GT(course.points(), 30);  // else there was little to go through
  EXPECT_GT(course.count(Seen::kSharedPromptStep), 0);
  EXPECT_GT(course.count(Seen::kSharedDecodeStep), 0);
  EXPECT_GT(course.count(Seen::kAcceptedDraft), 0);
  EXPECT_GT(course.count(Seen::kForcedRow), 0);
}

TEST(EveryPoint, CancelledOnceAndTwice) {
  const int points = undisturbed().points();
  Tally seen;
  for (int at = 0; at < points; ++at) {
    for (uint64_t whom = 1; whom <= kRequests; ++whom) {
      for (const int times : {1, 2}) {
        Course course({.cancel_at = at, .cancels = times, .whom = whom});
        ASSERT_EQ(course.run(), "") << "point " << at << ", sequence " << whom << ", " << times;
        EXPECT_GE(course.full_replies(), kRequests - 1);
        for (const Seen what : {Seen::kCancelWaiting, Seen::kCancelFilling, Seen::kCancelDecoding,
                                Seen::kCancelInFlight, Seen::kCancelTwice, Seen::kCancelEnded}) {
          seen.add(what, course.count(what));
        }
      }
    }
  }
  for (const Seen what : {Seen::kCancelWaiting, Seen::kCancelFilling, Seen::kCancelDecoding,
                          Seen::kCancelInFlight, Seen::kCancelTwice, Seen::kCancelEnded}) {
    EXPECT_GT(seen.of(what), 0) << kSeenNames[static_cast<size_t>(what)];
  }
}

// All are cancelled at once; nothing may be planned any more.
TEST(EveryPoint, ShutDown) {
  const int points = undisturbed().points();
  for (int at = 0; at < points; ++at) {
    Course course({.cancel_at = at});
    ASSERT_EQ(course.run(), "") << "point " << at;
    // The step in flight comes back, and then the plan is empty.
    EXPECT_LE(course.points(), at + 3) << "point " << at;
  }
}

TEST(EveryPoint, AStepFails) {
  const int steps = undisturbed().steps();
  int64_t spared = 0;
  int64_t failed = 0;
  for (int at = 0; at < steps; ++at) {
    for (const size_t after : {0, 1, 2}) {
      for (const ErrorCode code : {ErrorCode::kInternal, ErrorCode::kDeviceLost}) {
        Course course({.fail_at = at, .fail_after = after, .failure = code});
        ASSERT_EQ(course.run(), "") << "step " << at << " after " << after;
        EXPECT_GE(course.full_replies(), kRequests - 2);
        spared += course.count(Seen::kFailedSharedPrompt);
        failed += course.count(Seen::kFailedPrompt) + course.count(Seen::kFailedDecode);
      }
    }
  }
  EXPECT_GT(spared, 0);
  EXPECT_EQ(spared + failed, int64_t{steps} * 6);
}

// The queue of one client is full from each of its events on.
TEST(EveryPoint, AClientIsTooSlow) {
  Tally seen;
  for (uint64_t slow = 1; slow <= kRequests; ++slow) {
    bool cut = true;
    for (size_t queue = 0; cut; ++queue) {
      Course course({.slow = slow, .queue = queue});
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
