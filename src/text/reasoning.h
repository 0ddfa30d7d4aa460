// Cuts a streamed reply into reasoning and content at the token </think>; the same letters spelled
// by ordinary tokens are text. How the reply is cut into pushes changes nothing in the joined text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace flashlane::text {

class ReasoningSplitter {
 public:
  // `starts_in_reasoning`: the prompt ends inside a think block. If not, the reply may open one
  // with its first token that is not white space.
  ReasoningSplitter(const Tokenizer& tokenizer, bool starts_in_reasoning);

  struct Delta {
    std::string reasoning;
    std::string content;
  };
  Delta push(int32_t id);
  Delta finish();

  bool in_reasoning() const { return place_ == Place::kReasoning || place_ == Place::kOpened; }

 private:
  enum class Place {
    kOpened,  // after a <think> that was taken: white space goes with it
    kReasoning,
    kClosed,  // after the close: white space is dropped
    kContent,
  };
  void add(std::string text, Delta& delta);

  Detokenizer detokenizer_;
  std::optional<int32_t> open_;
  std::optional<int32_t> close_;
  Place place_;
  bool at_start_ = true;    // nothing but white space so far: one <think> may still be taken
  std::string held_space_;  // white space at the start, until it is known whose it is
};

}  // namespace flashlane::text
