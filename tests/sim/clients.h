// The clients of a world: each has a bounded queue that it empties at its own pace, as the
// engine's do. A full queue cuts the reply off, in the middle of the delivery of what one collect()
// brought. What a client has read is always a beginning of its solo run, it reads exactly one end
// and nothing after it, and whoever was not cut off, cancelled or failed reads all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/sim/dice.h"
#include "tests/sim/seen.h"
#include "tests/support/fake_runner.h"

namespace flashlane::sim {

// How one client reads.
struct Habits {
  size_t queue = 4096;  // most events that wait, its end not counted
  int pause = 0;        // reads once in so many looks, on average; 0 = always all there is
  int gulp = 1;         // most events that it takes then
};

class Clients {
 public:
  void came(scheduler::SequenceId id, const Habits& habits, testing::SoloReply solo);
  // Asked, in the middle of a delivery, to cancel the reply of a client whose queue is full;
  // `others` have still to get something. False drops the rest of the delivery, for a canary.
  using CutOff = std::function<bool(scheduler::SequenceId, bool others)>;
  // What one collect() brought, ends last; as the engine does it.
  void deliver(std::vector<scheduler::Event> events, const CutOff& cut_off);
  // One look of each at its queue.
  void read(Dice& dice);
  // Everything that is still there.
  void read_all();
  // When there is nothing more to deliver: who was cut off has its end.
  void delivered();
  void at_end();

  const std::string& problem() const { return problem_; }  // the first; empty when there is none
  const Tally& tally() const { return tally_; }

 private:
  struct Client {
    Habits habits = {};
    testing::SoloReply solo = {};
    std::deque<scheduler::Event> queue = {};
    std::vector<int32_t> tokens = {};  // read
    bool cut = false;                  // its queue was full once
    bool ended = false;                // its end is in the queue, or read
    bool end_read = false;
  };

  // False when the queue is full; the client is then cut off.
  bool send(const scheduler::Event& event);
  void end(const scheduler::Event& event);
  void take(uint64_t id, Client& client);
  void take_end(uint64_t id, Client& client, scheduler::FinishReason reason);
  void breach(std::string problem);

  std::map<uint64_t, Client> clients_ = {};  // of those that have not read their end
  uint64_t newest_ = 0;
  Tally tally_ = {};
  std::string problem_ = {};
};

}  // namespace flashlane::sim
