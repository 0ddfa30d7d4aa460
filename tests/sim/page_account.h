// The simulator's own account of the pool: who was promised how many pages, which page is whose,
// and whether those that wait do so for a reason. It shares no rule with the code under test.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "scheduler/scheduler.h"

namespace flashlane::sim {

class PageAccount {
 public:
  explicit PageAccount(const scheduler::SchedulerOptions& options);

  // Each of these says what is wrong, or nothing.
  void submitted(uint64_t id, int rows);
  std::string started(uint64_t id);
  std::string planned(const scheduler::Segment& segment);
  std::string planned(const scheduler::Restore& restore);
  std::string planned(const scheduler::Move& move);
  // A move came back: the sequence has its new pages alone, or its old ones.
  void moved(const scheduler::Move& move, bool worked);
  void ended(uint64_t id);
  // After a plan: nobody waits who could run, if a slot is free.
  std::string waiting(bool slot_is_free) const;
  // Nothing lives any more: all pages are back.
  static std::string at_end(const memory::PoolUsage& usage,
                            const scheduler::SessionUsage& sessions);

  bool overtook() const { return overtook_; }  // the last that started went before somebody

 private:
  struct Hold {
    int need = 0;
    bool runs = false;
    int overtaken = 0;  // times
    std::vector<int32_t> state = {};
    std::vector<int32_t> table = {};
    std::vector<int32_t> arriving = {};  // of a move that has not come back
  };
  int available() const;
  std::string claim(uint64_t id, const std::vector<int32_t>& pages);
  bool has(uint64_t id, int32_t page) const;

  bool sessions_;   // of fixed sizes: pages are not counted, only kept apart
  bool runs_only_;  // states need consecutive pages: free ones may be of no use
  int pages_;
  int page_rows_;
  int state_pages_;
  int window_rows_;
  std::map<uint64_t, Hold> holds_ = {};
  std::vector<uint64_t> owners_;  // by page: the last sequence that had it; 0 = none yet
  bool overtook_ = false;
};

}  // namespace flashlane::sim
