// The rules of the pool one by one (P1, P2): what a promise may promise, to the page; which pages
// come, and in which order; what a refusal leaves as it was; and that everything comes back.
#include "memory/page_pool.h"

#include <gtest/gtest.h>

#include <numeric>
#include <utility>
#include <vector>

namespace flashlane::memory {
namespace {

using Pages = std::vector<PageId>;

Pages table(const PagePool& pool, LeaseId lease) {
  const auto pages = pool.table(lease);
  return {pages.begin(), pages.end()};
}
Pages states(const PagePool& pool, LeaseId lease) {
  const auto pages = pool.state_pages(lease);
  return {pages.begin(), pages.end()};
}

LeaseId promised(PagePool& pool, int count) {
  const std::optional<LeaseId> lease = pool.promise(count);
  EXPECT_TRUE(lease.has_value()) << count << " of " << pool.available();
  return lease.value_or(LeaseId{});
}

PoolUsage all_free(int pages) {
  return {.pages = pages, .free = pages};
}

// Two leases take a page in turn until the pool is full; then the first, with every even page,
// ends.
LeaseId hold_every_other_page(PagePool& pool) {
  const LeaseId even = promised(pool, (pool.pages() + 1) / 2);
  const LeaseId odd = promised(pool, pool.pages() / 2);
  for (int page = 0; page < pool.pages(); ++page) pool.take(page % 2 == 0 ? even : odd, 1);
  pool.finish(even);
  return odd;
}

TEST(PagePool, StartsWithEveryPageFree) {
  const PagePool pool(10, 2);
  EXPECT_EQ(pool.pages(), 10);
  EXPECT_EQ(pool.null_page(), 10);
  EXPECT_EQ(pool.available(), 10);
  EXPECT_EQ(pool.usage(), all_free(10));
  pool.check();
}

TEST(PagePool, APromiseChoosesNoPages) {
  PagePool pool(10, 2);
  const LeaseId lease = promised(pool, 4);
  EXPECT_EQ(pool.promised(lease), 4);
  EXPECT_EQ(pool.taken(lease), 0);
  EXPECT_EQ(pool.available(), 6);
  EXPECT_EQ(pool.usage(), (PoolUsage{.pages = 10, .free = 10, .promised = 4}));
  EXPECT_TRUE(pool.table(lease).empty());
  EXPECT_TRUE(pool.state_pages(lease).empty());
  pool.check();
}

TEST(PagePool, WhatIsTakenComesOutOfThePromise) {
  PagePool pool(10, 2);
  const LeaseId lease = promised(pool, 6);
  pool.take(lease, 1);
  pool.take_state(lease, 2);
  EXPECT_TRUE(pool.claim_run(lease, 2));
  EXPECT_EQ(pool.promised(lease), 6);
  EXPECT_EQ(pool.taken(lease), 5);
  EXPECT_EQ(pool.available(), 4);
  EXPECT_EQ(pool.usage(),
            (PoolUsage{.pages = 10, .free = 5, .promised = 1, .table = 1, .state = 4}));
  pool.check();
  pool.finish(lease);
  EXPECT_EQ(pool.usage(), all_free(10));
  EXPECT_EQ(pool.available(), 10);
  pool.check();
}

TEST(PagePool, PromisesOnlyWhatNobodyWasPromised) {
  // All ten pages are free throughout the first part; a promise counts nonetheless.
  PagePool pool(10, 4);
  const LeaseId first = promised(pool, 6);
  EXPECT_EQ(pool.promise(5), std::nullopt);
  EXPECT_EQ(pool.usage(), (PoolUsage{.pages = 10, .free = 10, .promised = 6}));
  pool.check();
  const LeaseId second = promised(pool, 4);
  EXPECT_EQ(pool.available(), 0);
  EXPECT_EQ(pool.promise(1), std::nullopt);
  // Taking does not make room, and each can have all that it was promised, whoever comes first.
  pool.take(second, 4);
  EXPECT_EQ(pool.promise(1), std::nullopt);
  pool.take(first, 6);
  EXPECT_EQ(pool.promise(1), std::nullopt);
  pool.finish(second);
  EXPECT_EQ(pool.promise(5), std::nullopt);
  EXPECT_NE(pool.promise(4), std::nullopt);
  pool.check();
}

TEST(PagePool, AdmitsAnExactFitAndNotAPageMore) {
  for (const int pages : {1, 2, 63, 64, 65, 4097}) {
    PagePool pool(pages, 3);
    EXPECT_TRUE(pool.can_ever(pages));
    EXPECT_FALSE(pool.can_ever(pages + 1));
    const LeaseId all = promised(pool, pages);
    pool.take(all, pages);
    EXPECT_EQ(pool.usage(), (PoolUsage{.pages = pages, .table = pages}));
    EXPECT_EQ(pool.promise(1), std::nullopt);
    pool.finish(all);
    // A page held by another is a page short.
    const LeaseId one = promised(pool, 1);
    EXPECT_EQ(pool.promise(pages), std::nullopt);
    pool.finish(one);
    pool.finish(promised(pool, pages));
    EXPECT_EQ(pool.usage(), all_free(pages));
    pool.check();
  }
}

TEST(PagePool, StatesAndOneTablePageFillAPool) {
  constexpr int kStatePages = 45;
  PagePool pool(kStatePages + 1, 2);
  const LeaseId lease = promised(pool, kStatePages + 1);
  pool.take_state(lease, kStatePages);
  pool.take(lease, 1);
  EXPECT_EQ(table(pool, lease), Pages{0});
  EXPECT_EQ(pool.usage(), (PoolUsage{.pages = 46, .table = 1, .state = 45}));
  pool.finish(lease);

  PagePool short_of_one(kStatePages, 2);
  EXPECT_FALSE(short_of_one.can_ever(kStatePages + 1));
}

TEST(PagePool, RefusesWhenNoLeaseIsLeftAndReusesThem) {
  PagePool pool(10, 2);
  const LeaseId first = promised(pool, 1);
  const LeaseId second = promised(pool, 1);
  EXPECT_EQ(first, LeaseId{0});
  EXPECT_EQ(second, LeaseId{1});
  EXPECT_EQ(pool.promise(1), std::nullopt);
  EXPECT_EQ(pool.available(), 8);
  pool.check();
  pool.take(first, 1);
  pool.finish(first);
  const LeaseId again = promised(pool, 3);
  EXPECT_EQ(again, first);
  // It has nothing of the one before.
  EXPECT_EQ(pool.promised(again), 3);
  EXPECT_EQ(pool.taken(again), 0);
  EXPECT_TRUE(pool.table(again).empty());
  pool.check();
}

TEST(PagePool, TablesTakeTheLowestAndStatesTheHighest) {
  PagePool pool(12, 3);
  const LeaseId first = promised(pool, 6);
  const LeaseId second = promised(pool, 4);
  pool.take_state(first, 2);
  pool.take(first, 2);
  pool.take_state(second, 1);
  pool.take(second, 2);
  pool.take(first, 1);
  pool.take_state(first, 1);
  EXPECT_EQ(table(pool, first), (Pages{0, 1, 4}));
  EXPECT_EQ(states(pool, first), (Pages{11, 10, 8}));
  EXPECT_EQ(table(pool, second), (Pages{2, 3}));
  EXPECT_EQ(states(pool, second), Pages{9});
  pool.check();
  // Holes come first, from both ends, and the order of a table is that of taking.
  pool.finish(second);
  const LeaseId third = promised(pool, 5);
  pool.take(third, 3);
  pool.take_state(third, 2);
  EXPECT_EQ(table(pool, third), (Pages{2, 3, 5}));
  EXPECT_EQ(states(pool, third), (Pages{9, 7}));
  pool.check();
}

TEST(PagePool, ARunIsTheHighestThatFits) {
  PagePool pool(12, 4);
  const LeaseId top = promised(pool, 1);
  pool.take_state(top, 1);
  const LeaseId lease = promised(pool, 9);
  EXPECT_TRUE(pool.claim_run(lease, 3));
  EXPECT_EQ(states(pool, lease), (Pages{8, 9, 10}));
  pool.finish(top);
  // 11 is free again: room for a run of one, not of two.
  EXPECT_TRUE(pool.claim_run(lease, 2));
  EXPECT_EQ(states(pool, lease), (Pages{8, 9, 10, 6, 7}));
  EXPECT_TRUE(pool.claim_run(lease, 1));
  EXPECT_EQ(states(pool, lease), (Pages{8, 9, 10, 6, 7, 11}));
  EXPECT_TRUE(pool.table(lease).empty());
  pool.check();
}

TEST(PagePool, ARunFitsThePlaceOfTheOneBefore) {
  // Tables grow and end below while runs come and go above; what is free between stays in one
  // piece.
  PagePool pool(64, 4);
  const LeaseId first = promised(pool, 16);
  const LeaseId second = promised(pool, 16);
  EXPECT_TRUE(pool.claim_run(first, 10));
  EXPECT_TRUE(pool.claim_run(second, 10));
  pool.take(first, 3);
  pool.take(second, 3);
  pool.finish(first);
  const LeaseId third = promised(pool, 16);
  EXPECT_TRUE(pool.claim_run(third, 10));
  EXPECT_EQ(pool.state_pages(third).front(), 54);
  pool.take(third, 4);
  EXPECT_EQ(table(pool, third), (Pages{0, 1, 2, 6}));
  const LeaseId rest = promised(pool, 32);
  EXPECT_TRUE(pool.claim_run(rest, 32));
  EXPECT_EQ(pool.state_pages(rest).front(), 12);
  pool.check();
}

TEST(PagePool, WithEveryOtherPageHeldThereIsNoRunButRoomForStates) {
  PagePool pool(130, 3);
  const LeaseId odd = hold_every_other_page(pool);
  const LeaseId lease = promised(pool, 65);
  const PoolUsage before = pool.usage();
  for (const int count : {2, 3, 65}) {
    EXPECT_FALSE(pool.claim_run(lease, count));
    EXPECT_EQ(pool.usage(), before);
    EXPECT_EQ(pool.taken(lease), 0);
    EXPECT_TRUE(pool.state_pages(lease).empty());
    pool.check();
  }
  pool.take_state(lease, 45);
  EXPECT_EQ(pool.state_pages(lease).front(), 128);
  EXPECT_EQ(pool.state_pages(lease).back(), 40);
  EXPECT_FALSE(pool.claim_run(lease, 2));
  EXPECT_EQ(pool.state_pages(lease).size(), 45U);
  EXPECT_TRUE(pool.claim_run(lease, 1));
  EXPECT_EQ(pool.state_pages(lease).back(), 38);
  pool.take(lease, 19);
  EXPECT_EQ(pool.usage(), (PoolUsage{.pages = 130, .table = 84, .state = 46}));
  pool.check();
  pool.finish(lease);
  pool.finish(odd);
  EXPECT_EQ(pool.usage(), all_free(130));
}

TEST(PagePool, ARunOfAllThatIsLeftTakesNoPageOfAnother) {
  // Free: 0, 2 to 5, 7. Four in a row are there, five are not, though six are free.
  PagePool pool(8, 4);
  const LeaseId low = promised(pool, 2);
  const LeaseId high = promised(pool, 2);
  pool.take(low, 1);
  pool.take(high, 1);
  pool.take_state(low, 1);
  pool.take_state(high, 1);
  pool.finish(low);  // 0 and 7
  const LeaseId lease = promised(pool, 6);
  EXPECT_FALSE(pool.claim_run(lease, 5));
  EXPECT_EQ(pool.taken(lease), 0);
  EXPECT_TRUE(pool.claim_run(lease, 4));
  EXPECT_EQ(states(pool, lease), (Pages{2, 3, 4, 5}));
  EXPECT_FALSE(pool.claim_run(lease, 2));
  EXPECT_EQ(states(pool, lease), (Pages{2, 3, 4, 5}));
  pool.check();
}

TEST(PagePool, NothingIsTakenByACountOfNone) {
  PagePool pool(4, 1);
  const LeaseId lease = promised(pool, 4);
  pool.take(lease, 4);
  pool.take(lease, 0);
  pool.take_state(lease, 0);
  EXPECT_TRUE(pool.claim_run(lease, 0));
  EXPECT_EQ(table(pool, lease), (Pages{0, 1, 2, 3}));
  EXPECT_TRUE(pool.state_pages(lease).empty());
  pool.check();
}

TEST(PagePool, FinishGivesEverythingBackAfterAnyStep) {
  PagePool pool(20, 3);
  const LeaseId neighbour = promised(pool, 5);
  pool.take_state(neighbour, 2);
  pool.take(neighbour, 2);
  const PoolUsage before = pool.usage();
  constexpr int kSteps = 4;
  for (int steps = 0; steps <= kSteps; ++steps) {
    const LeaseId lease = promised(pool, 12);
    if (steps >= 1) pool.take_state(lease, 3);
    if (steps >= 2) {
      EXPECT_TRUE(pool.claim_run(lease, 2));
    }
    if (steps >= 3) pool.take(lease, 1);
    if (steps >= 4) pool.take(lease, pool.promised(lease) - pool.taken(lease));
    pool.check();
    pool.finish(lease);
    pool.check();
    EXPECT_EQ(pool.usage(), before) << "after " << steps << " steps";
    EXPECT_EQ(pool.available(), 15);
  }
  EXPECT_EQ(table(pool, neighbour), (Pages{0, 1}));
  EXPECT_EQ(states(pool, neighbour), (Pages{19, 18}));
  pool.finish(neighbour);
  EXPECT_EQ(pool.usage(), all_free(20));
}

TEST(PagePool, ListsStayWhereTheyAre) {
  // So nothing is allocated while pages are taken and given back.
  static_assert(noexcept(std::declval<PagePool&>().finish(LeaseId{})));
  PagePool pool(1000, 1);
  LeaseId lease = promised(pool, 1000);
  const PageId* const first_table = pool.table(lease).data();
  const PageId* const first_states = pool.state_pages(lease).data();
  EXPECT_NE(first_table, nullptr);
  for (int round = 0; round < 3; ++round) {
    pool.take(lease, round == 0 ? 1000 : 1);
    if (round == 1) pool.take_state(lease, 999);
    EXPECT_EQ(pool.table(lease).data(), first_table);
    EXPECT_EQ(pool.state_pages(lease).data(), first_states);
    pool.finish(lease);
    lease = promised(pool, 1000);
    EXPECT_EQ(pool.table(lease).data(), first_table);
  }
}

TEST(PagePool, KeepsItsOrderInALargePool) {
  constexpr int kPages = 100'000;
  PagePool pool(kPages, 2);
  const LeaseId lease = promised(pool, kPages);
  EXPECT_TRUE(pool.claim_run(lease, 5000));
  EXPECT_EQ(pool.state_pages(lease).front(), kPages - 5000);
  for (int taken = 5000; taken < kPages; taken += 95) pool.take(lease, 95);
  Pages expected(kPages - 5000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(table(pool, lease), expected);
  pool.check();
  pool.finish(lease);
  EXPECT_EQ(pool.usage(), all_free(kPages));
  pool.check();
}

TEST(PagePoolDeathTest, PastThePromiseIsABug) {
  PagePool pool(10, 2);
  const LeaseId lease = promised(pool, 3);
  EXPECT_DEATH(pool.take(lease, 4), "4 against 3");
  EXPECT_DEATH(pool.take_state(lease, 4), "4 against 3");
  EXPECT_DEATH(static_cast<void>(pool.claim_run(lease, 4)), "4 against 3");
  pool.take(lease, 1);
  pool.take_state(lease, 1);
  // Tables and states spend one promise.
  EXPECT_DEATH(pool.take(lease, 2), "2 against 1");
  EXPECT_DEATH(pool.take_state(lease, 2), "2 against 1");
  EXPECT_DEATH(static_cast<void>(pool.claim_run(lease, 2)), "2 against 1");
  EXPECT_DEATH(pool.take(lease, -1), "-1 against 0");
}

TEST(PagePoolDeathTest, AnImpossiblePromiseIsABug) {
  PagePool pool(10, 2);
  EXPECT_DEATH(static_cast<void>(pool.promise(0)), "0 against 1");
  EXPECT_DEATH(static_cast<void>(pool.promise(11)), "can_ever");
}

TEST(PagePoolDeathTest, AnIdleLeaseIsNobodys) {
  PagePool pool(10, 2);
  const LeaseId lease = promised(pool, 3);
  pool.take(lease, 3);
  pool.finish(lease);
  EXPECT_DEATH(pool.finish(lease), "free_leases_");
  EXPECT_DEATH(pool.take(lease, 0), "free_leases_");
  EXPECT_DEATH(static_cast<void>(pool.table(lease)), "free_leases_");
  EXPECT_DEATH(static_cast<void>(pool.promised(LeaseId{})), "id.value >= 0");
  EXPECT_DEATH(static_cast<void>(pool.taken(LeaseId{2})), "free_leases_.size");
  pool.check();
}

}  // namespace
}  // namespace flashlane::memory
