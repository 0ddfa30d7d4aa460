// Which prompts go into a prompt step, and with how many rows (S10): the shortest first, so that a
// short request is not held up by a long one, but a prompt that was passed over a number of times
// goes first, so that none waits for ever. Several prompts share one step as far as its rows go.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace flashlane::scheduler {

struct PromptTurn {
  int left = 0;         // rows still to go in, ≥ 1
  int most = 0;         // of them, those that may go in at once; 0: all
  int passed_over = 0;  // prompt steps in a row that went to others
  bool alone = false;   // must not share a step
};

struct PromptShare {
  size_t index = 0;  // of the turn
  int rows = 0;      // ≥ 1
};

// A prompt goes first once this many steps in a row had no rows of it.
inline constexpr int kMostPassedOver = 8;

// Turns stand in order of admission; at least one. Of the shares' rows there are at most `rows`.
std::vector<PromptShare> share_prompt_rows(std::span<const PromptTurn> turns, int rows,
                                           int most_segments);

}  // namespace flashlane::scheduler
