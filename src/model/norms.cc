// Which of the two conventions a file's norm gains follow (spec 2.3): the same names and shapes
// hold gain - 1 in official files and the gain itself in many conversions, and the wrong guess
// gives fluent nonsense, so values that fit neither are refused.
#include <algorithm>
#include <cmath>
#include <vector>

#include "model/weights.h"

namespace flashlane::model {

Result<NormConvention> detect_norm_convention(std::span<const double> means,
                                              std::string_view where) {
  if (means.empty()) return invalid("{}: no hc_norm to tell the norm convention by", where);
  std::vector<double> sorted(means.begin(), means.end());
  for (const double mean : sorted) {
    if (!std::isfinite(mean)) {
      return invalid("{}: the mean of an hc_norm is {}, expected a finite number", where, mean);
    }
  }
  std::sort(sorted.begin(), sorted.end());
  const size_t count = sorted.size();
  const double median =
      count % 2 == 1 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
  const auto above = static_cast<size_t>(
      std::count_if(sorted.begin(), sorted.end(), [](double mean) { return mean > 0.5; }));
  // Shares are compared as whole numbers, so that exactly 90 % counts as 90 %.
  if (above * 10 >= count * 9 && median >= 0.75 && median <= 1.5) return NormConvention::kFolded;
  if (above * 10 <= count && median >= -0.5 && median <= 0.25) return NormConvention::kCentred;
  return invalid(
      "{}: ambiguous norms: {} of {} hc_norm means exceed 0.5 and their median is {:.4g}; folded "
      "gains need 90 % and 0.75 to 1.5, centred ones 10 % and -0.5 to 0.25",
      where, above, count, median);
}

}  // namespace flashlane::model
