// How many drafts a sequence asks for: by the running share of accepted drafts (spec 4.3 of the
// architecture: one below 80 %, two below 90 %, else three). Costs never change a token, only speed.
#pragma once

namespace flashlane::scheduler {

class DraftPolicy {
 public:
  explicit DraftPolicy(int max_draft) : max_draft_(max_draft) {}
  // At most max_draft and `room`; never negative.
  int depth(int room) const;
  void observe(int drafted, int accepted);
  double acceptance() const { return acceptance_; }

 private:
  int max_draft_;
  double acceptance_ = 1.0;
};

}  // namespace flashlane::scheduler
