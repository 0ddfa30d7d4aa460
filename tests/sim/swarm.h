// What kind of world a seed is: each seed picks its own mixture, so that rare meetings of options
// are common in some worlds instead of rare in all.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "scheduler/scheduler.h"
#include "tests/sim/clients.h"
#include "tests/sim/dice.h"
#include "tests/support/fake_runner.h"

namespace flashlane::sim {

enum class Length : uint8_t { kTiny, kAny, kExtreme, kMixed };
enum class Pace : uint8_t { kTimeless, kByRows, kUneven };

struct Swarm {
  scheduler::SchedulerOptions options = {};
  int vocabulary = 16;
  int memory = 0;  // of the fake's texts, as fake_token says
  testing::Drafting drafting = testing::Drafting::kRight;
  Length prompts = Length::kAny;
  Length replies = Length::kAny;
  Pace pace = Pace::kByRows;
  int turns = 0;  // with arrivals and faults
  // Once in so many turns, on average; 0 = never.
  int arrival = 0;
  int burst = 1;  // most requests at once
  int cancel = 0;
  int failure = 0;
  int lost_device = 0;  // of failures
  int failed_move = 0;  // of the steps that move replies
  int failed_copy = 0;  // of the steps that keep states or restore them
  int shutdown_turn = -1;
  bool shutdown_in_flight = false;
  // Of requests.
  int refused = 0;
  int end_ids = 0;
  int stop_strings = 0;
  int sampled = 0;
  int no_drafts = 0;
  int thinking = 0;  // with a budget
  int logprobs = 0;
  int slow = 0;  // whose clients read slowly
};

// The text of each token id.
std::span<const std::string> swarm_texts();
Swarm choose_swarm(Dice& dice);
// A request of this world; `prompt` + `max_tokens` fits its context.
scheduler::SequenceSpec choose_request(const Swarm& swarm, Dice& dice);
// Of the client that sends it.
Habits choose_habits(const Swarm& swarm, Dice& dice);

}  // namespace flashlane::sim
