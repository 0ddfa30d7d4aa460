// All choices of a world and its requests; none is made anywhere else but the order of things.
#include "tests/sim/swarm.h"

#include <algorithm>
#include <array>
#include <memory>

#include "memory/session_list.h"
#include "scheduler/step_share.h"

namespace flashlane::sim {
namespace {

const std::array<std::string, 16> kTexts = {"a", "b", "ab", "",  "ba", "c", "ca", "aa",
                                            "d", "e", "f",  "g", "h",  "i", "j",  "k"};

int choose_length(Length kind, int most, Dice& dice) {
  switch (kind) {
    case Length::kTiny:
      return dice.roll(1, std::min(3, most));
    case Length::kAny:
      return dice.roll(1, most);
    case Length::kExtreme:
      return dice.once_in(2) ? most : dice.roll(1, std::min(2, most));
    case Length::kMixed:
      return dice.once_in(8) ? most : dice.roll(1, std::min(4, most));
  }
  return 1;
}

// Small pages, few of them, with or without states, so that sequences wait for pages as often as
// for slots; or no shortage at all.
void choose_pool(scheduler::SchedulerOptions& options, Dice& dice) {
  if (!dice.once_in(3)) return;
  constexpr int kPageRows[] = {1, 2, 4, 8, 32};
  constexpr size_t kPageBytes = 256;
  memory::PoolLayout::Spec spec;
  spec.page_rows = dice.pick<int>(kPageRows);
  spec.page_bytes = kPageBytes;
  spec.piece_bytes.assign(static_cast<size_t>(dice.roll(0, 3)), kPageBytes);
  spec.form = dice.once_in(2) ? memory::PoolLayout::StateForm::kRun
                              : memory::PoolLayout::StateForm::kPieces;
  spec.window_rows = scheduler::kMostDecodeRows;
  options.pool = memory::PoolLayout::make(spec).value();
  const int whole = options.pool.need(options.context);
  options.pages = dice.roll(whole, dice.once_in(2) ? 2 * whole : options.slots * whole);
}

// A session of the whole context and smaller ones, in which replies begin that outgrow them.
void choose_sessions(scheduler::SchedulerOptions& options, Dice& dice) {
  constexpr size_t kPageBytes = 256;
  memory::PoolLayout::Spec spec;
  spec.page_rows = dice.roll(1, 8);
  spec.page_bytes = kPageBytes;
  spec.piece_bytes.assign(static_cast<size_t>(dice.roll(0, 2)), kPageBytes);
  spec.window_rows = scheduler::kMostDecodeRows;
  options.pool = memory::PoolLayout::make(spec).value();
  options.context = dice.roll(60, 160);
  options.slots = dice.roll(2, 6);
  const int whole = options.context + memory::kSessionMargin;
  options.sessions = {whole};
  while (static_cast<int>(options.sessions.size()) < options.slots) {
    options.sessions.push_back(dice.roll(memory::kSessionMargin + 2, whole));
  }
  options.session_grow = dice.roll(1, 40);
}

}  // namespace

std::span<const std::string> swarm_texts() {
  return kTexts;
}

Swarm choose_swarm(Dice& dice) {
  constexpr double kShares[] = {0, 0.1, 0.3, 0.5, 0.8, scheduler::StepShare::kMostShare};
  constexpr int kSlots[] = {1, 2, 3, 5, 8, 15, 16, 16};
  constexpr int kChunks[] = {1, 2, 3, 5, 12, 64};
  constexpr int kRates[] = {0, 0, 60, 15, 4};
  constexpr int kVocabularies[] = {3, 16, 16};
  constexpr int kSlow[] = {0, 0, 5, 2};
  static const auto kBytes = std::make_shared<const scheduler::TokenBytes>(kTexts);
  Swarm swarm;
  swarm.vocabulary = dice.pick<int>(kVocabularies);
  swarm.options = {.context = dice.roll(2, dice.once_in(2) ? 16 : 72),
                   .slots = dice.pick<int>(kSlots),
                   .prefill_chunk = dice.pick<int>(kChunks),
                   .decode_share = dice.pick<double>(kShares),
                   .max_draft = dice.roll(0, 4),
                   .prompt_lookup = dice.once_in(2),
                   .vocabulary = swarm.vocabulary,
                   .trace_entries = 16,
                   .token_bytes = kBytes};
  if (dice.once_in(2)) {
    swarm.options.lone = true;
    swarm.options.steps_in_flight = dice.roll(1, 3);
    for (int at = dice.roll(0, 12); at > 0 && at < 60; at += dice.roll(1, 20)) {
      swarm.options.lone_handoffs.push_back(at);
    }
  }
  if (dice.once_in(4)) {
    choose_sessions(swarm.options, dice);
    swarm.failed_move = dice.pick<int>(kRates);
  } else {
    choose_pool(swarm.options, dice);
  }
  if (dice.once_in(2)) {
    swarm.options.kept_pages = dice.roll(1, dice.once_in(2) ? 12 : 200);
    swarm.options.kept_gap = dice.roll(0, 8);
    swarm.failed_copy = dice.pick<int>(kRates);
  }
  swarm.drafting = static_cast<testing::Drafting>(dice.roll(0, 2));
  swarm.prompts = static_cast<Length>(dice.roll(0, 3));
  swarm.replies = static_cast<Length>(dice.roll(0, 3));
  swarm.pace = static_cast<Pace>(dice.roll(0, 2));
  swarm.turns = dice.roll(5, 60);
  swarm.arrival = dice.roll(1, 5);
  swarm.burst = dice.once_in(3) ? dice.roll(2, 24) : 1;
  swarm.cancel = dice.pick<int>(kRates);
  swarm.failure = dice.pick<int>(kRates);
  swarm.lost_device = dice.once_in(2) ? 3 : 0;
  swarm.shutdown_turn = dice.once_in(6) ? dice.roll(1, swarm.turns) : -1;
  swarm.shutdown_in_flight = dice.once_in(2);
  swarm.refused = dice.once_in(3) ? 6 : 0;
  swarm.end_ids = dice.roll(0, 3);
  swarm.stop_strings = dice.roll(0, 3);
  swarm.sampled = dice.roll(0, 2);
  swarm.no_drafts = dice.roll(0, 4);
  swarm.thinking = dice.roll(0, 3);
  swarm.logprobs = dice.roll(0, 3);
  swarm.slow = dice.pick<int>(kSlow);
  swarm.memory = dice.once_in(3) ? dice.roll(1, 2) : 0;
  return swarm;
}

scheduler::SequenceSpec choose_request(const Swarm& swarm, Dice& dice) {
  constexpr const char* kStops[] = {"abab", "ca", "aaaa", "bb", "e", ""};
  scheduler::SequenceSpec spec;
  const int context = swarm.options.context;
  const int prompt = choose_length(swarm.prompts, context - 1, dice);
  const int last_id = swarm.vocabulary - 1;
  spec.prompt.reserve(static_cast<size_t>(prompt));
  for (int i = 0; i < prompt; ++i) spec.prompt.push_back(dice.roll(0, last_id));
  spec.max_tokens = choose_length(swarm.replies, context - prompt, dice);
  if (dice.once_in(swarm.sampled)) {
    spec.sampling = {.temperature = 1, .seed = static_cast<uint64_t>(dice.roll(0, 9))};
  }
  if (dice.once_in(swarm.end_ids)) spec.end_ids = {dice.roll(0, last_id), dice.roll(0, 40)};
  if (dice.once_in(swarm.stop_strings)) {
    spec.stop_strings = {dice.pick<const char*>(kStops), dice.pick<const char*>(kStops)};
  }
  spec.drafts = !dice.once_in(swarm.no_drafts);
  if (dice.once_in(swarm.logprobs)) spec.logprobs = dice.roll(0, 2);
  if (dice.once_in(swarm.thinking)) {
    spec.thinking.budget = dice.roll(1, 12);
    spec.thinking.end_token = dice.roll(0, last_id);
    for (int i = dice.roll(0, 6); i > 0; --i) {
      spec.thinking.close_tokens.push_back(dice.roll(0, last_id));
    }
  }
  return spec;
}

Habits choose_habits(const Swarm& swarm, Dice& dice) {
  if (!dice.once_in(swarm.slow)) return {};
  constexpr int kPauses[] = {1, 2, 5, 1000};
  Habits habits;
  habits.queue = static_cast<size_t>(dice.roll(1, dice.once_in(2) ? 3 : 12));
  habits.pause = dice.pick<int>(kPauses);
  habits.gulp = dice.roll(1, 3);
  return habits;
}

}  // namespace flashlane::sim
