// Buffers and views: zeroed, aligned, moved and not copied; shapes count and print.
#include "tensor/buffer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tensor/view.h"

namespace flashlane {
namespace {

TEST(Buffer, IsZeroedAlignedAndMoves) {
  Buffer buffer(100);
  ASSERT_EQ(buffer.bytes(), 100U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0U);
  for (size_t i = 0; i < 100; ++i) ASSERT_EQ(buffer.data()[i], std::byte{0});
  buffer.as<int32_t>()[3] = 7;
  const std::byte* where = buffer.data();
  Buffer moved(std::move(buffer));
  EXPECT_EQ(moved.data(), where);
  Buffer assigned;
  EXPECT_EQ(assigned.data(), nullptr);
  EXPECT_EQ(assigned.bytes(), 0U);
  assigned = std::move(moved);
  EXPECT_EQ(assigned.data(), where);
  EXPECT_EQ(assigned.bytes(), 100U);
  EXPECT_EQ(std::as_const(assigned).as<int32_t>()[3], 7);
  EXPECT_EQ(Buffer(0).data(), nullptr);
}

// The sanitizers check how the memory is asked for: a size has to be a multiple of its alignment.
TEST(Buffer, LargeOnesAreZeroedAndOfAnySizeToo) {
  for (const size_t bytes : {(size_t{8} << 20) - 1, (size_t{8} << 20) + 3}) {
    const Buffer buffer(bytes);
    ASSERT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 64, 0U) << bytes;
    EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + bytes, [](std::byte value) {
      return value == std::byte{0};
    })) << bytes;
  }
}

TEST(TensorView, CountsAndPrints) {
  TensorView view;
  view.dtype = DType::kBf16;
  view.rank = 3;
  view.shape = {2, 3, 5};
  EXPECT_EQ(view.elements(), 30);
  EXPECT_EQ(view.bytes(), 60U);
  EXPECT_EQ(view.dim(0), 2);
  EXPECT_EQ(view.dim(-1), 5);
  EXPECT_EQ(shape_string(view), "[2, 3, 5]");
  view.rank = 0;
  EXPECT_EQ(view.elements(), 1);
  EXPECT_EQ(shape_string(view), "[]");
}

TEST(TensorViewDeath, RefusesDimensionsOutside) {
  TensorView view;
  view.rank = 1;
  EXPECT_DEATH((void)view.dim(1), "index >= -rank && index < rank");
  EXPECT_DEATH((void)view.dim(-2), "index >= -rank && index < rank");
}

}  // namespace
}  // namespace flashlane
