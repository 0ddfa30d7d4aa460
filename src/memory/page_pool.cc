#include "memory/page_pool.h"

#include "base/check.h"

namespace flashlane::memory {

PagePool::PagePool(int pages, int most_leases)
    : free_(pages), free_leases_(most_leases), leases_(static_cast<size_t>(most_leases)) {
  for (Lease& lease : leases_) {
    lease.table.reserve(static_cast<size_t>(pages));
    lease.state.reserve(static_cast<size_t>(pages));
  }
}

std::optional<LeaseId> PagePool::promise(int count) {
  CHECK_GE(count, 1);
  CHECK(can_ever(count));
  if (count > available() || free_leases_.count() == 0) return std::nullopt;
  const LeaseId id = {free_leases_.lowest()};
  free_leases_.remove(id.value);
  leases_[static_cast<size_t>(id.value)].promised = count;
  promised_ += count;
  return id;
}

void PagePool::take(LeaseId lease, int count) {
  Lease& held = spending(lease, count);
  for (int i = 0; i < count; ++i) hand_out(free_.lowest(), held.table, table_);
}

void PagePool::take_state(LeaseId lease, int count) {
  Lease& held = spending(lease, count);
  for (int i = 0; i < count; ++i) hand_out(free_.highest(), held.state, state_);
}

bool PagePool::claim_run(LeaseId lease, int count) {
  Lease& held = spending(lease, count);
  if (count == 0) return true;
  const std::optional<int> first = free_.highest_run(count);
  if (!first) return false;
  for (int i = 0; i < count; ++i) hand_out(*first + i, held.state, state_);
  return true;
}

void PagePool::finish(LeaseId lease) noexcept {
  promised_ -= live(lease).promised - taken(lease);
  Lease& held = leases_[static_cast<size_t>(lease.value)];
  for (const PageId page : held.table) free_.insert(page);
  for (const PageId page : held.state) free_.insert(page);
  table_ -= static_cast<int>(held.table.size());
  state_ -= static_cast<int>(held.state.size());
  held.promised = 0;
  held.table.clear();
  held.state.clear();
  free_leases_.insert(lease.value);
}

PoolUsage PagePool::usage() const {
  return {.pages = pages(),
          .free = free_.count(),
          .promised = promised_,
          .table = table_,
          .state = state_};
}

void PagePool::check() const {
  free_.check();
  free_leases_.check();
  std::vector<bool> held(static_cast<size_t>(pages()), false);
  PoolUsage counted = {.pages = pages(), .free = free_.count()};
  for (size_t i = 0; i < leases_.size(); ++i) {
    const Lease& lease = leases_[i];
    CHECK_LE(taken_of(lease), lease.promised);
    // An idle lease has no promise, and so has nothing at all.
    CHECK_EQ(lease.promised == 0, free_leases_.contains(static_cast<int>(i)));
    counted.promised += lease.promised - taken_of(lease);
    counted.table += static_cast<int>(lease.table.size());
    counted.state += static_cast<int>(lease.state.size());
    for (const std::vector<PageId>* list : {&lease.table, &lease.state}) {
      for (const PageId page : *list) {
        CHECK(!free_.contains(page));
        CHECK(!held[static_cast<size_t>(page)]);
        held[static_cast<size_t>(page)] = true;
      }
    }
  }
  // No page stood twice and none was free, so with this sum each stands in exactly one place.
  CHECK_EQ(counted.free + counted.table + counted.state, counted.pages);
  CHECK_GE(counted.free, counted.promised);
  CHECK(counted == usage());
}

int PagePool::taken_of(const Lease& lease) {
  return static_cast<int>(lease.table.size() + lease.state.size());
}

const PagePool::Lease& PagePool::live(LeaseId id) const {
  CHECK(id.value >= 0 && id.value < free_leases_.size());
  CHECK(!free_leases_.contains(id.value));
  return leases_[static_cast<size_t>(id.value)];
}

PagePool::Lease& PagePool::spending(LeaseId id, int count) {
  const Lease& held = live(id);
  CHECK_GE(count, 0);
  CHECK_LE(count, held.promised - taken_of(held));
  return leases_[static_cast<size_t>(id.value)];
}

void PagePool::hand_out(PageId page, std::vector<PageId>& list, int& count) {
  free_.remove(page);
  list.push_back(page);
  ++count;
  --promised_;
}

}  // namespace flashlane::memory
