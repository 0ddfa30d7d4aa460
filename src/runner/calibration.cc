// Every timed forward goes on from where the last one ended: one row of each is kept, so that the
// rows that calibration takes are known beforehand.
#include "runner/calibration.h"

#include <algorithm>
#include <array>

#include "base/keyed_random.h"

namespace flashlane::runner {
namespace {

using scheduler::MeasuredCost;
using scheduler::Segment;
using scheduler::SegmentKind;
using scheduler::StepPlan;

constexpr std::array kWidths = {1, 2, 3, 4, 6, 8, 12, 16};
constexpr std::array kHeadWidths = {1, 2, 4, 8, 16};
constexpr int kRepeats = 3;
// Each timed forward keeps a row of the context.
constexpr int kPrompt =
    kCalibrationRows - scheduler::kMostDecodeRows - 1 - kRepeats * static_cast<int>(kWidths.size());

class Measurement {
 public:
  Measurement(Runner& runner, const Clock& clock)
      : runner_(runner),
        clock_(clock),
        slot_(runner.options().slots - 1),
        has_head_(runner.options().max_draft > 0) {}

  Result<scheduler::StepCosts> run() {
    RETURN_IF_ERROR(prefill());
    std::vector<MeasuredCost> forward;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      for (const int rows : kWidths) {
        // Chance may have kept more than a row of each.
        if (length_ + rows > kCalibrationRows) continue;
        ASSIGN_OR_RETURN(const double ms, time_forward(rows));
        forward.push_back({rows, ms});
      }
    }
    scheduler::StepCosts costs;
    const int limit = scheduler::kMostDecodeRows;
    costs.forward = {forward, limit, scheduler::CostShape::kNonDecreasing};
    if (!has_head_) return costs;
    std::vector<MeasuredCost> head;
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      for (const int rows : kHeadWidths) {
        const Clock::Time began = clock_.now();
        RETURN_IF_ERROR(runner_.run_head_rows(slot_, rows));
        head.push_back({rows, to_ms(clock_.now() - began)});
      }
    }
    costs.head_step = {head, limit, scheduler::CostShape::kNonDecreasing};
    return costs;
  }

 private:
  int32_t token(int index) const {
    const auto vocabulary = static_cast<uint64_t>(runner_.limits().vocabulary);
    return static_cast<int32_t>(splitmix64(static_cast<uint64_t>(index)) % vocabulary);
  }

  Segment segment(SegmentKind kind, int rows) const {
    Segment part{.slot = slot_, .kind = kind, .start_position = length_};
    for (int i = 0; i < rows; ++i) part.tokens.push_back(token(length_ + i));
    return part;
  }

  Status prefill() {
    while (length_ < kPrompt) {
      const int rows = std::min(kPrompt - length_, runner_.options().max_rows);
      Segment chunk = segment(SegmentKind::kPrefill, rows);
      chunk.next_token = length_ + rows < kPrompt ? token(length_ + rows) : -1;
      chunk.uses_mtp = has_head_;
      RETURN_IF_ERROR(runner_.run({.segments = {chunk}}));
      length_ += rows;
    }
    return {};
  }

  // The head is left out: it has a price of its own.
  Result<double> time_forward(int rows) {
    const StepPlan plan{.segments = {segment(SegmentKind::kVerify, rows)}};
    const Clock::Time began = clock_.now();
    ASSIGN_OR_RETURN(const scheduler::StepResult result, runner_.run(plan));
    const double ms = to_ms(clock_.now() - began);
    length_ += static_cast<int>(result.segments.front().tokens.size());
    return ms;
  }

  Runner& runner_;
  const Clock& clock_;
  const int slot_;
  const bool has_head_;
  int length_ = 0;
};

}  // namespace

Calibration calibrate(Runner& runner, const Clock& clock) {
  Calibration calibration;
  if (runner.options().context < kCalibrationRows) {
    calibration.skipped = fmt::format("it takes {} positions and the context has {}",
                                      kCalibrationRows, runner.options().context);
    return calibration;
  }
  const Clock::Time began = clock.now();
  Result<scheduler::StepCosts> costs = Measurement(runner, clock).run();
  calibration.took_ms = to_ms(clock.now() - began);
  if (costs.ok()) {
    calibration.costs = std::move(costs).value();
  } else {
    calibration.skipped = costs.error().message;
  }
  return calibration;
}

}  // namespace flashlane::runner
