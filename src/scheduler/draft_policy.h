// How many drafts a sequence asks for: by the running share of drafts that stood, among those that
// were put to the test (spec 4.3 of the architecture: one below 80 %, two below 90 %, else three).
// A draft behind a wrong one was not tested, so the share does not depend on the depth itself.
// Costs never change a token, only speed.
#pragma once

namespace flashlane::scheduler {

class DraftPolicy {
 public:
  explicit DraftPolicy(int max_draft) : max_draft_(max_draft) {}
  // At most max_draft and `room`; never negative.
  int depth(int room) const;
  // A window of `drafted` drafts, of which the first `accepted` stood.
  void observe(int drafted, int accepted);
  double acceptance() const { return acceptance_; }

 private:
  int max_draft_;
  double acceptance_ = 1.0;
};

}  // namespace flashlane::scheduler
