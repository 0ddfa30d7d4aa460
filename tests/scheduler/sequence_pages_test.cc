// Pages and sessions of sequences, where a refusal or a wrong size would show late.
#include "scheduler/sequence_pages.h"

#include <gtest/gtest.h>

namespace flashlane::scheduler {
namespace {

using memory::PoolLayout;

// Maps rows up to `end`, four more than before.
void map_four(SequencePages& pages, PageHold& hold, int end) {
  Segment segment;
  segment.start_position = end - 4;
  pages.map(hold, end, segment);
}

// Four pages are free and one of them is promised, no two side by side: there is room for another
// sequence, but not for the run of its state.
TEST(SequencePages, ARefusedRunGivesBackItsPromise) {
  const auto layout = PoolLayout::make({.page_rows = 4,
                                        .page_bytes = 256,
                                        .piece_bytes = {256, 256},
                                        .form = PoolLayout::StateForm::kRun});
  ASSERT_TRUE(layout.ok());
  ASSERT_EQ(layout.value().state_pages(), 2);
  SequencePages pages(layout.value(), 12, 4, {}, 8);
  PageHold leaves;
  PageHold stays;
  ASSERT_TRUE(pages.admit(8, 8, leaves));
  ASSERT_TRUE(pages.admit(8, 8, stays));
  for (int end = 4; end <= 16; end += 4) {
    map_four(pages, leaves, end);
    map_four(pages, stays, end);
  }
  pages.release(leaves);
  PageHold next;  // has the run that was given back
  ASSERT_TRUE(pages.admit(2, 2, next));

  PageHold refused;
  EXPECT_FALSE(pages.admit(2, 2, refused));
  EXPECT_EQ(refused.lease, memory::LeaseId{});
  pages.check();
  pages.release(stays);
  pages.release(next);
  PageHold whole;
  ASSERT_TRUE(pages.admit(20, 20, whole)) << "all twelve pages are free";
  pages.release(whole);
}

TEST(SequencePages, ASessionHoldsTheWindowToo) {
  const auto layout =
      PoolLayout::make({.page_rows = 4, .page_bytes = 100, .piece_bytes = {}, .window_rows = 3});
  ASSERT_TRUE(layout.ok());
  SequencePages pages(layout.value(), 15, 2, {40, 20}, 8);
  PageHold fits;
  ASSERT_TRUE(pages.admit(9, 100, fits));
  EXPECT_EQ(pages.capacity(fits.session), 20) << "9 of the prompt, 8 to grow, 3 of the window";
  pages.release(fits);
  PageHold larger;
  ASSERT_TRUE(pages.admit(10, 100, larger));
  EXPECT_EQ(pages.capacity(larger.session), 40);
  pages.release(larger);
}

}  // namespace
}  // namespace flashlane::scheduler
