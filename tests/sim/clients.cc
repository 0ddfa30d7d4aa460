// What clients are sent and what they make of it. Their account begins where the ledger's ends: the
// ledger judges what the scheduler says, this what of it arrives.
#include "tests/sim/clients.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace flashlane::sim {

using scheduler::Event;
using scheduler::FinishReason;
using scheduler::SequenceId;

namespace {

// Of an event that is not the last.
bool reaches_client(const Event& event) {
  return event.kind == Event::Kind::kPrefilled || event.kind == Event::Kind::kTokens;
}

}  // namespace

void Clients::breach(std::string problem) {
  if (problem_.empty()) problem_ = "a client: " + std::move(problem);
}

void Clients::came(SequenceId id, const Habits& habits, testing::SoloReply solo) {
  clients_[id.value] = {.habits = habits, .solo = std::move(solo)};
  newest_ = std::max(newest_, id.value);
}

void Clients::deliver(std::vector<Event> events, const CutOff& cut_off) {
  const auto ends = std::stable_partition(events.begin(), events.end(), [](const Event& event) {
    return event.kind != Event::Kind::kFinished;
  });
  for (auto event = events.begin(); event != ends; ++event) {
    if (send(*event)) continue;
    const bool others = std::any_of(std::next(event), ends, [&](const Event& later) {
      return later.sequence != event->sequence && reaches_client(later);
    });
    if (others) tally_.add(Seen::kSlowAmongOthers);
    if (!cut_off(event->sequence, others)) break;
  }
  std::for_each(ends, events.end(), [&](const Event& event) { end(event); });
}

bool Clients::send(const Event& event) {
  if (!reaches_client(event)) return true;
  const uint64_t id = event.sequence.value;
  const auto found = clients_.find(id);
  if (found == clients_.end() || found->second.ended) {
    breach(fmt::format("{} is sent something after its end", id));
    return true;
  }
  Client& client = found->second;
  if (client.cut) {
    tally_.add(Seen::kWithheld);
    return true;
  }
  if (client.queue.size() < client.habits.queue) {
    client.queue.push_back(event);
    return true;
  }
  client.cut = true;
  tally_.add(event.kind == Event::Kind::kPrefilled ? Seen::kSlowFilling : Seen::kSlowDecoding);
  return false;
}

void Clients::end(const Event& event) {
  const uint64_t id = event.sequence.value;
  const auto found = clients_.find(id);
  if (found == clients_.end() || found->second.ended) {
    return breach(fmt::format("{} is sent a second end", id));
  }
  Client& client = found->second;
  client.ended = true;
  if (client.cut && event.reason != FinishReason::kCancelled) tally_.add(Seen::kSlowAtTheEnd);
  // There is always room for it.
  client.queue.push_back(event);
}

void Clients::read(Dice& dice) {
  for (auto next = clients_.begin(); next != clients_.end();) {
    auto& [id, client] = *next;
    size_t count = client.queue.size();
    if (client.habits.pause > 0) {
      const auto gulp = static_cast<size_t>(dice.roll(1, client.habits.gulp));
      count = dice.once_in(client.habits.pause) ? std::min(count, gulp) : 0;
    }
    for (; count > 0; --count) take(id, client);
    next = client.end_read ? clients_.erase(next) : std::next(next);
  }
}

void Clients::read_all() {
  for (auto& [id, client] : clients_) {
    while (!client.queue.empty()) take(id, client);
  }
  std::erase_if(clients_, [](const auto& entry) { return entry.second.end_read; });
}

void Clients::take(uint64_t id, Client& client) {
  const Event event = std::move(client.queue.front());
  client.queue.pop_front();
  if (client.end_read) return breach(fmt::format("{} reads something after its end", id));
  switch (event.kind) {
    case Event::Kind::kStarted:
    case Event::Kind::kPaused:
    case Event::Kind::kMoved:
      return breach(fmt::format("{} reads that it was started", id));
    case Event::Kind::kPrefilled:
      if (!client.tokens.empty()) breach(fmt::format("{} reads of its prompt after tokens", id));
      return;
    case Event::Kind::kTokens: {
      std::vector<int32_t>& tokens = client.tokens;
      const std::vector<int32_t>& solo = client.solo.tokens;
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
      if (tokens.size() > solo.size() || !std::equal(tokens.begin(), tokens.end(), solo.begin())) {
        breach(fmt::format("{} reads what is no beginning of its solo run", id));
      }
      return;
    }
    case Event::Kind::kFinished:
      return take_end(id, client, event.reason);
  }
}

void Clients::take_end(uint64_t id, Client& client, FinishReason reason) {
  client.end_read = true;
  const bool whole = reason == FinishReason::kStop || reason == FinishReason::kLength;
  if (client.cut) {
    tally_.add(Seen::kCutReply);
    if (client.tokens == client.solo.tokens) {
      breach(fmt::format("{} was cut off and has all of its reply", id));
    }
  } else if (whole && (client.tokens != client.solo.tokens || reason != client.solo.reason)) {
    breach(fmt::format("{} reads {} tokens of {} and a good end", id, client.tokens.size(),
                       client.solo.tokens.size()));
  }
}

void Clients::delivered() {
  for (const auto& [id, client] : clients_) {
    if (client.cut && !client.ended)
      breach(fmt::format("{} was cut off and its reply runs on", id));
  }
}

void Clients::at_end() {
  read_all();
  if (!clients_.empty()) {
    breach(fmt::format("{} of {} have no end, {} first", clients_.size(), newest_,
                       clients_.begin()->first));
  }
}

}  // namespace flashlane::sim
