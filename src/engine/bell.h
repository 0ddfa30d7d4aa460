// Bell: wakes the engine's thread. A ring while nobody waits is kept, so that none is lost; it
// outlives the engine, because a client may drop its reply at any time.
#pragma once

#include <condition_variable>
#include <mutex>

namespace flashlane::engine {

class Bell {
 public:
  void ring() {
    {
      std::lock_guard lock(mutex_);
      rung_ = true;
    }
    wake_.notify_one();
  }

  // Until it rings, or at once if it has rung since the last wait.
  void wait() {
    std::unique_lock lock(mutex_);
    wake_.wait(lock, [&] { return rung_; });
    rung_ = false;
  }

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  bool rung_ = false;
};

}  // namespace flashlane::engine
