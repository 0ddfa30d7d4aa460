// A step allocates nothing but what it returns: the counting operator new of this binary says so.
// The reference backend is left out: as the plain oracle, it makes room where it needs it.
// Sanitizers bring their own operator new, so their builds are without this test.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "runner/runner.h"
#include "tests/support/stream.h"
#include "tests/support/tiny_model.h"

namespace {
thread_local int64_t allocations = 0;
}  // namespace

// Not inlined: the compiler must not see malloc behind one and delete behind the other.
[[gnu::noinline]] void* operator new(size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes != 0 ? bytes : 1)) return memory;
  std::abort();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace flashlane::runner {
namespace {

TEST(Runner, AStepAllocatesOnlyItsResult) {
  using flashlane::testing::Stream;
  const auto runner =
      Runner::create(flashlane::testing::tiny_model("cpu"), {.slots = 2,
                                                             .context = 128,
                                                             .max_rows = 64,
                                                             .page_rows = 16,
                                                             .state_form = StateForm::kRun})
          .value();
  Stream first{.prompt = {1, 2, 3, 4, 5, 6, 7}, .chunk = 4, .depth = 3, .uses_mtp = true};
  Stream second{.prompt = {8, 9, 10, 11, 12}, .slot = 1, .chunk = 4};
  for (int step = 0; step < 5; ++step) {
    scheduler::StepPlan plan{.segments = {first.segment(), second.segment()}};
    for (scheduler::Segment& segment : plan.segments)
      flashlane::testing::give_pages(*runner, segment);
    const int64_t before = allocations;
    const auto result = runner->run(plan);
    const int64_t made = allocations - before;
    ASSERT_TRUE(result.ok());
    // The segments; of each its tokens; the first's drafts, reserved at once.
    const int64_t returned = step == 0 ? 1 : 4;
    EXPECT_LE(made, returned) << "step " << step;
    first.take(plan.segments[0], result.value().segments[0]);
    second.take(plan.segments[1], result.value().segments[1]);
  }
  EXPECT_GE(first.reply.size(), 4U);
}

}  // namespace
}  // namespace flashlane::runner
#endif
