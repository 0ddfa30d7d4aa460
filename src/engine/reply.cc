// The client's end of a request. It never waits for the engine, only for events.
#include <utility>

#include "engine/reply_shared.h"

namespace flashlane::engine {

Reply::Reply() = default;
Reply::Reply(Reply&&) noexcept = default;

Reply& Reply::operator=(Reply&& other) noexcept {
  if (this == &other) return *this;
  cancel();
  shared_ = std::move(other.shared_);
  return *this;
}

Reply::~Reply() {
  cancel();
}

std::optional<ReplyEvent> Reply::next(std::chrono::milliseconds timeout) {
  if (shared_ == nullptr) return std::nullopt;
  return shared_->events.pop_for(timeout);
}

void Reply::cancel() {
  // A closed queue has its last event already.
  if (shared_ == nullptr || shared_->events.closed()) return;
  shared_->cancelled = true;
  shared_->bell->ring();
}

}  // namespace flashlane::engine
