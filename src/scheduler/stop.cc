// Stop strings by search in a short window: the bytes just pushed behind the tail of those before.
#include "scheduler/stop.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/check.h"

namespace flashlane::scheduler {

TokenBytes::TokenBytes(std::span<const std::string> tokens) {
  size_t total = 0;
  for (const std::string& token : tokens) total += token.size();
  CHECK_LE(total, size_t{std::numeric_limits<uint32_t>::max()});
  text_.reserve(total);
  starts_.reserve(tokens.size() + 1);
  starts_.push_back(0);
  for (const std::string& token : tokens) {
    text_ += token;
    starts_.push_back(static_cast<uint32_t>(text_.size()));
  }
}

std::string_view TokenBytes::bytes(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) + 1 >= starts_.size()) return {};
  const uint32_t start = starts_[static_cast<size_t>(id)];
  const uint32_t end = starts_[static_cast<size_t>(id) + 1];
  return std::string_view(text_).substr(start, end - start);
}

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
  for (const std::string& stop : stops_) longest_ = std::max(longest_, stop.size());
}

bool StopMatcher::push(std::string_view bytes) {
  if (stops_.empty() || bytes.empty()) return false;
  const size_t tail = tail_.size();
  tail_ += bytes;
  // A match that ends inside the old tail was reported when its last byte came.
  const bool completed = std::any_of(stops_.begin(), stops_.end(), [&](const std::string& stop) {
    const size_t first = tail + 1 > stop.size() ? tail + 1 - stop.size() : 0;
    return tail_.find(stop, first) != std::string::npos;
  });
  if (tail_.size() >= longest_) tail_.erase(0, tail_.size() - (longest_ - 1));
  return completed;
}

}  // namespace flashlane::scheduler
