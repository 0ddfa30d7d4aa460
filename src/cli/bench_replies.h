// Whole replies for `flashlane bench`, through the engine that serves: prompt, plain decode and
// drafted decode, one after the other in every round. A counting run comes first; it warms up, says
// what bytes the same request has to move, and every timed reply must repeat its tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/bench_cell.h"
#include "cli/serving.h"

namespace flashlane::cli {

// Told what is being measured; prints it where that takes long.
using BenchProgress = std::function<void(const std::string&)>;

struct ReplyCase {
  std::span<const int32_t> prompt;
  int tokens = 0;  // decoded after the first, which the prompt gives
  bool drafts = false;
  bool stream = false;       // also a cell for the whole reply
  bool prompt_cell = false;  // also a cell for the prompt
  int rounds = 1;
};

struct ReplyCells {
  std::vector<Cell> cells;
  std::vector<int32_t> ids;  // the reply, its first token included
};

Result<ReplyCells> bench_replies(model::Model& model, const ServingSizes& sizes,
                                 const ReplyCase& wanted, const BenchProgress& progress);

}  // namespace flashlane::cli
