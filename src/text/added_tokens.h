// Finds added tokens in text: leftmost, and the longest of those that start at one place. A trie,
// so the cost is at most the longest token per byte of text.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace flashlane::text {

class AddedTokens {
 public:
  AddedTokens() : nodes_(1) {}
  void insert(std::string_view content, int32_t id);  // content is not empty

  struct Match {
    size_t begin = 0;
    size_t end = 0;
    int32_t id = -1;  // -1: nothing found
  };
  // The first token that lies wholly inside text[from, to).
  Match find(std::string_view text, size_t from, size_t to) const;

 private:
  struct Node {
    int32_t id = -1;
    std::vector<std::pair<uint8_t, int32_t>> children;
  };
  const Node* child(const Node& node, uint8_t byte) const;

  std::vector<Node> nodes_;
  std::array<bool, 256> starts_{};
};

}  // namespace flashlane::text
