// What a client's Reply and the engine share: the event queue, which only the engine fills, and the
// wish to stop, which only the client makes.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "base/bounded_queue.h"
#include "engine/bell.h"
#include "engine/engine.h"

namespace flashlane::engine {

struct Reply::Shared {
  // One place more than ordinary events may take, so that the last event always fits.
  Shared(size_t capacity, std::shared_ptr<Bell> engine_bell)
      : events(capacity + 1), bell(std::move(engine_bell)) {}

  BoundedQueue<ReplyEvent> events;
  std::atomic<bool> cancelled = false;
  const std::shared_ptr<Bell> bell;
};

}  // namespace flashlane::engine
