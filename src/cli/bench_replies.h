// Whole replies for `flashlane bench`, through the engine that serves: prompt, plain decode and
// drafted decode, one after the other in every round. A counting run comes first; it warms up, says
// what bytes the same request has to move, and every timed reply must repeat its tokens.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/bench_cell.h"
#include "cli/serving.h"
#include "model/traffic.h"

namespace flashlane::cli {

// Told what is being measured; prints it where that takes long.
using BenchProgress = std::function<void(const std::string&)>;

struct TimedReply {
  std::vector<int32_t> ids;
  engine::Timings timings;
  scheduler::DraftStats drafts;
};
// Reads a reply to its end; one that does not end by its length is an error.
Result<TimedReply> finish_reply(engine::Reply& reply);

// An engine whose runner reports what each step has to move, prompt and decode steps apart. The
// sums may be read once it has stopped.
class CountingEngine {
 public:
  CountingEngine(model::Model& model, const ServingSizes& sizes);
  Status start();
  engine::Engine& engine() { return *engine_; }
  void stop() { engine_->stop(); }
  const model::Traffic& prompt() const { return prompt_; }
  const model::Traffic& decode() const { return decode_; }

 private:
  model::Model& model_;
  ServingSizes sizes_;
  model::TrafficCounter counter_;
  model::Traffic prompt_, decode_;
  std::unique_ptr<runner::Runner> runner_;
  std::unique_ptr<engine::Engine> engine_;
};

struct ReplyCase {
  std::span<const int32_t> prompt;
  int tokens = 0;  // decoded after the first, which the prompt gives
  bool drafts = false;
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
