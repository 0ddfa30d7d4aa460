// The queue between threads: bounded, closed once, drained after, and no value lost or doubled.
#include "base/bounded_queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace flashlane {
namespace {

TEST(BoundedQueue, KeepsOrderAndRefusesWhenFull) {
  BoundedQueue<std::unique_ptr<int>> queue(2);
  EXPECT_TRUE(queue.push(std::make_unique<int>(1)));
  EXPECT_TRUE(queue.push(std::make_unique<int>(2)));
  auto third = std::make_unique<int>(3);
  EXPECT_FALSE(queue.push(std::move(third)));
  ASSERT_NE(third, nullptr) << "a refused value stays with the caller";
  EXPECT_EQ(queue.size(), 2U);
  EXPECT_EQ(**queue.try_pop(), 1);
  EXPECT_TRUE(queue.push(std::move(third)));
  EXPECT_EQ(**queue.pop(), 2);
  EXPECT_EQ(**queue.pop(), 3);
  EXPECT_EQ(queue.try_pop(), std::nullopt);
  EXPECT_EQ(queue.pop_for(std::chrono::milliseconds(1)), std::nullopt);
}

TEST(BoundedQueue, DrainsAfterClose) {
  BoundedQueue<int> queue(4);
  EXPECT_TRUE(queue.push(1));
  EXPECT_FALSE(queue.closed());
  queue.close();
  queue.close();
  EXPECT_TRUE(queue.closed());
  EXPECT_FALSE(queue.push(2));
  EXPECT_EQ(queue.pop(), 1);
  EXPECT_EQ(queue.pop(), std::nullopt);
}

TEST(BoundedQueue, CloseWakesWhoWaits) {
  BoundedQueue<int> queue(1);
  std::vector<std::jthread> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.emplace_back([&queue] { EXPECT_EQ(queue.pop(), std::nullopt); });
  }
  queue.close();
}

TEST(BoundedQueue, LosesNothingBetweenThreads) {
  constexpr int kProducers = 3;
  constexpr int kEach = 2000;
  BoundedQueue<int> queue(7);
  std::vector<int> seen(kProducers * kEach, 0);
  {
    std::jthread consumer([&] {
      std::vector<int> last(kProducers, -1);
      while (const auto value = queue.pop()) {
        ++seen[static_cast<size_t>(*value)];
        int& before = last[static_cast<size_t>(*value / kEach)];
        EXPECT_LT(before, *value) << "each producer's order is kept";
        before = *value;
      }
    });
    {
      std::vector<std::jthread> producers;
      for (int producer = 0; producer < kProducers; ++producer) {
        producers.emplace_back([&queue, producer] {
          for (int i = 0; i < kEach; ++i) {
            while (!queue.push(producer * kEach + i)) std::this_thread::yield();
          }
        });
      }
    }
    queue.close();
  }
  for (const int count : seen) ASSERT_EQ(count, 1);
}

}  // namespace
}  // namespace flashlane
