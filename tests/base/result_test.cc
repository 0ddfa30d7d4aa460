// Results and checks: a value or one line, and a failed CHECK says where and with which values.
#include "base/result.h"

#include <gtest/gtest.h>

#include <memory>

namespace flashlane {
namespace {

Result<std::unique_ptr<int>> positive(int value) {
  if (value <= 0) return invalid("value is {}: must be positive", value);
  return std::make_unique<int>(value);
}

Result<int> doubled(int value) {
  ASSIGN_OR_RETURN(const auto number, positive(value));
  return 2 * *number;
}

Status both(int a, int b) {
  RETURN_IF_ERROR(doubled(a));
  RETURN_IF_ERROR(doubled(b));
  return {};
}

TEST(Result, CarriesAValueOrAnError) {
  EXPECT_EQ(doubled(4).value(), 8);
  const auto failed = doubled(-4);
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(failed.error().message, "value is -4: must be positive");
  EXPECT_TRUE(both(1, 2).ok());
  EXPECT_EQ(both(1, 0).error().message, "value is 0: must be positive");
  const Error unsupported = error(ErrorCode::kUnsupported, "{} is not built", "x");
  EXPECT_EQ(unsupported.message, "x is not built");
}

TEST(ResultDeath, TakingWhatIsNotThereAborts) {
  EXPECT_DEATH((void)doubled(-1).value(), "CHECK failed at .*result.h");
  EXPECT_DEATH((void)Status().error(), "CHECK failed");
}

TEST(CheckDeath, SaysTheValues) {
  const int rows = 3;
  EXPECT_DEATH(CHECK_LT(rows, 2), "result_test.cc:[0-9]+: rows < 2: 3 against 2");
  EXPECT_DEATH(UNREACHABLE(), "unreachable");
}

}  // namespace
}  // namespace flashlane
