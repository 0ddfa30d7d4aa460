// A plain walk of the trie from every place where some token may start.
#include "text/added_tokens.h"

#include "base/check.h"

namespace flashlane::text {

const AddedTokens::Node* AddedTokens::child(const Node& node, uint8_t byte) const {
  for (const auto& [label, target] : node.children) {
    if (label == byte) return &nodes_[static_cast<size_t>(target)];
  }
  return nullptr;
}

void AddedTokens::insert(std::string_view content, int32_t id) {
  CHECK(!content.empty());
  starts_[static_cast<uint8_t>(content[0])] = true;
  size_t at = 0;
  for (const char c : content) {
    const auto byte = static_cast<uint8_t>(c);
    const Node* next = child(nodes_[at], byte);
    if (next == nullptr) {
      nodes_[at].children.emplace_back(byte, static_cast<int32_t>(nodes_.size()));
      at = nodes_.size();
      nodes_.emplace_back();
    } else {
      at = static_cast<size_t>(next - nodes_.data());
    }
  }
  nodes_[at].id = id;
}

AddedTokens::Match AddedTokens::find(std::string_view text, size_t from, size_t to) const {
  for (size_t begin = from; begin < to; ++begin) {
    if (!starts_[static_cast<uint8_t>(text[begin])]) continue;
    Match match;
    const Node* node = &nodes_[0];
    for (size_t end = begin; end < to;) {
      node = child(*node, static_cast<uint8_t>(text[end]));
      if (node == nullptr) break;
      ++end;
      if (node->id >= 0) match = {begin, end, node->id};
    }
    if (match.id >= 0) return match;
  }
  return {};
}

}  // namespace flashlane::text
