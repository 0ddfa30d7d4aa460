// What both halves of the evaluator use: lines in messages, and a bound on nesting.
#pragma once

#include "base/result.h"

namespace flashlane::text {

// Adds the line to an error that has none.
template <typename T>
Result<T> at_line(Result<T> result, int line) {
  if (result.ok()) return result;
  const Error& failure = result.error();
  return error(failure.code, "chat template line {}: {}", line, failure.message);
}

class DepthGuard {
 public:
  static constexpr int kMaxDepth = 300;
  explicit DepthGuard(int& depth) : depth_(depth) { ++depth_; }
  ~DepthGuard() { --depth_; }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;
  Status check(int line) const {
    if (depth_ <= kMaxDepth) return {};
    return invalid("chat template line {}: calls nest deeper than {} levels", line, kMaxDepth);
  }

 private:
  int& depth_;
};

}  // namespace flashlane::text
