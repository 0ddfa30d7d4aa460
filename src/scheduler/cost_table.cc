// Sort, keep the best of equal row counts, lift dips where asked, then fill in the row counts.
#include "scheduler/cost_table.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/check.h"

namespace flashlane::scheduler {
namespace {

// Usable pairs, one per row count, by rows.
std::vector<MeasuredCost> cleaned(std::span<const MeasuredCost> measured, CostShape shape) {
  std::vector<MeasuredCost> points;
  for (const MeasuredCost& point : measured) {
    if (point.rows >= 1 && point.ms > 0 && std::isfinite(point.ms)) points.push_back(point);
  }
  std::sort(points.begin(), points.end(), [](const MeasuredCost& a, const MeasuredCost& b) {
    return a.rows != b.rows ? a.rows < b.rows : a.ms < b.ms;
  });
  const auto same = [](const MeasuredCost& a, const MeasuredCost& b) { return a.rows == b.rows; };
  points.erase(std::unique(points.begin(), points.end(), same), points.end());
  if (shape == CostShape::kNonDecreasing) {
    double dearest_ms = 0;
    for (MeasuredCost& point : points) {
      dearest_ms = std::max(dearest_ms, point.ms);
      point.ms = dearest_ms;
    }
  }
  return points;
}

}  // namespace

CostTable::CostTable(std::span<const MeasuredCost> measured, int limit, CostShape shape) {
  const std::vector<MeasuredCost> points = cleaned(measured, shape);
  if (points.empty()) return;
  ms_.reserve(static_cast<size_t>(std::max(0, limit)));
  size_t above = 0;  // the first point with at least `rows` rows
  for (int rows = 1; rows <= limit; ++rows) {
    while (above < points.size() && points[above].rows < rows) ++above;
    if (above == points.size()) {
      const MeasuredCost& widest = points.back();
      ms_.push_back(widest.ms * rows / widest.rows);
    } else if (above == 0 || points[above].rows == rows) {
      ms_.push_back(points[above].ms);
    } else {
      const MeasuredCost& low = points[above - 1];
      const MeasuredCost& high = points[above];
      const double share = static_cast<double>(rows - low.rows) / (high.rows - low.rows);
      ms_.push_back(low.ms + (high.ms - low.ms) * share);
    }
  }
}

double CostTable::ms(int rows) const {
  CHECK_GE(rows, 1);
  CHECK_LE(rows, limit());
  return ms_[static_cast<size_t>(rows - 1)];
}

}  // namespace flashlane::scheduler
