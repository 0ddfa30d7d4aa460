// Every timed forward goes on from where the last one ended: one row of each is kept, so that the
// rows that calibration takes are known beforehand.
#include "runner/calibration.h"

#include <algorithm>
#include <array>

#include "base/keyed_random.h"
#include "runner/own_pages.h"

namespace flashlane::runner {
namespace {

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

  Status run(Calibration& out) {
    RETURN_IF_ERROR(prefill());
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      for (const int rows : kWidths) {
        // Chance may have kept more than a row of each.
        if (length_ + rows > kCalibrationRows) continue;
        ASSIGN_OR_RETURN(const double ms, time_forward(rows));
        out.forward.push_back({rows, ms});
      }
    }
    if (!has_head_) return {};
    for (int repeat = 0; repeat < kRepeats; ++repeat) {
      for (const int rows : kHeadWidths) {
        const Clock::Time began = clock_.now();
        RETURN_IF_ERROR(runner_.run_head_rows(slot_, rows));
        out.head_step.push_back({rows, to_ms(clock_.now() - began)});
      }
    }
    return {};
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
      if (length_ == 0) give_own_pages(chunk, runner_.limits(), 0, kCalibrationRows);
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
  const PlanLimits& limits = runner.limits();
  if (own_pages(limits, kCalibrationRows) > limits.pages) {
    calibration.skipped = fmt::format("it takes {} pages and the pool has {}",
                                      own_pages(limits, kCalibrationRows), limits.pages);
    return calibration;
  }
  const Clock::Time began = clock.now();
  const Status measured = Measurement(runner, clock).run(calibration);
  if (!measured.ok()) calibration = {.skipped = measured.error().message};
  calibration.took_ms = to_ms(clock.now() - began);
  return calibration;
}

}  // namespace flashlane::runner
