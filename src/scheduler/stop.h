// Stop strings as a byte matcher over committed tokens: text is bytes from a read-only table (token
// id → bytes), so that the scheduler cuts a reply at the same token drafted, plain, alone or
// shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flashlane::scheduler {

// Bytes of each token id in one block; ids without text, or outside the table, have none.
class TokenBytes {
 public:
  explicit TokenBytes(std::span<const std::string> tokens);
  std::string_view bytes(int32_t id) const;

 private:
  std::string text_;
  std::vector<uint32_t> starts_;
};

class StopMatcher {
 public:
  StopMatcher() = default;
  explicit StopMatcher(std::vector<std::string> stops);  // empty strings are dropped
  // True when these bytes complete a stop string, wherever it began.
  bool push(std::string_view bytes);

 private:
  std::vector<std::string> stops_;
  size_t longest_ = 0;
  std::string tail_;  // the last longest-1 bytes
};

}  // namespace flashlane::scheduler
