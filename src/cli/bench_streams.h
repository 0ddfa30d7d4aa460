// Several replies at once for `flashlane bench`, through the engine that serves but without
// sockets: each stream has a prompt of its own, and its reply must be the one that it gives alone,
// plain, or the command fails. Plain and drafted, one after the other in every round.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cli/bench_replies.h"

namespace flashlane::cli {

struct StreamsCase {
  std::span<const int32_t>
      prompt;                // stream i leaves out the first i tokens, as long as one is left
  int tokens = 0;            // decoded after the first, which the prompt gives
  std::vector<int> streams;  // how many at once, one case each
  bool drafts = false;
  int rounds = 1;
};

// One cell a case, and one more with drafts. `sizes` must have a slot for every stream.
Result<std::vector<Cell>> bench_streams(model::Model& model, const ServingSizes& sizes,
                                        const StreamsCase& wanted, const BenchProgress& progress);

}  // namespace flashlane::cli
