// What the exact allocation of draft rows gains over the reference's walks and over one depth for
// all, by simulation: random sequences, the mean of each rule's tokens per ms under one table, and
// the time of one call. The gains are arithmetic and repeat everywhere; the nanoseconds do not.
//
//     build/release/alloc_bench
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "base/keyed_random.h"
#include "scheduler/draft_allocation.h"

namespace flashlane::scheduler {
namespace {

constexpr int kRounds = 400;
constexpr int kDeepest = 15;
constexpr double kOverheadMs = 1.0;

struct Table {
  const char* name;
  StepCosts costs;
};

std::vector<Table> tables() {
  const std::vector<MeasuredCost> head = {{1, 0.43}, {2, 0.46}, {4, 0.52}, {8, 0.65}, {16, 0.9}};
  const std::vector<MeasuredCost> smooth = {{1, 10.3}, {2, 12.1}, {4, 15.1}, {8, 21.0}, {16, 32.2}};
  // The same work in buckets of 1, 2, 4, 8 and 16 rows: a step costs what its bucket holds.
  std::vector<MeasuredCost> stepped;
  const CostTable by_rows(smooth, kMostDecodeRows);
  for (int rows = 1, bucket = 1; rows <= kMostDecodeRows; ++rows) {
    if (rows > bucket) bucket *= 2;
    stepped.push_back({rows, by_rows.ms(bucket)});
  }
  const CostTable head_step(head, kMostDecodeRows);
  return {{"smooth", {.forward = by_rows, .head_step = head_step}},
          {"stepped", {.forward = CostTable(stepped, kMostDecodeRows), .head_step = head_step}}};
}

using Chances = std::vector<std::vector<double>>;

// Each sequence's rates lie around one of five levels, as code, prose and stories do.
Chances random_chances(int sequences, int round) {
  constexpr double kLevels[] = {0.55, 0.7, 0.8, 0.9, 0.95};
  Chances chances;
  for (int i = 0; i < sequences; ++i) {
    const auto key = static_cast<uint64_t>(round * 64 + i);
    const double level = kLevels[keyed_bits(1, key, 0) % 5];
    std::vector<double>& chain = chances.emplace_back();
    double chance = 1;
    for (int k = 1; k <= kDeepest; ++k) {
      const double wobble = keyed_uniform(1, key, static_cast<uint64_t>(k)) - 0.5;
      chance *= std::clamp(level + 0.1 * wobble, 0.05, 0.99);
      chain.push_back(chance);
    }
  }
  return chances;
}

double rate_of(const Chances& chances, const std::vector<int>& counts, const StepCosts& costs) {
  double tokens = static_cast<double>(chances.size());
  int rows = static_cast<int>(chances.size());
  for (size_t i = 0; i < chances.size(); ++i) {
    rows += counts[i];
    for (int k = 0; k < counts[i]; ++k) tokens += chances[i][static_cast<size_t>(k)];
  }
  return tokens / (costs.forward.ms(rows) + kOverheadMs + head_chain_ms(counts, costs.head_step));
}

double best_uniform(const Chances& chances, const StepCosts& costs) {
  const int sequences = static_cast<int>(chances.size());
  double best = 0;
  for (int depth = 0; depth <= kDeepest && sequences * (depth + 1) <= kMostDecodeRows; ++depth) {
    best = std::max(best, rate_of(chances, std::vector<int>(chances.size(), depth), costs));
  }
  return best;
}

struct Gains {
  double greedy = 0;
  double priced = 0;
  double uniform = 0;
  double plain = 0;
};

Gains simulate(int sequences, const StepCosts& costs) {
  const DraftAllocator exact({.rule = AllocationRule::kExact, .costs = costs});
  const DraftAllocator priced({.rule = AllocationRule::kPricedGreedy, .costs = costs});
  const DraftAllocator greedy({.rule = AllocationRule::kGreedy, .costs = costs});
  Gains gains;
  for (int round = 0; round < kRounds; ++round) {
    const Chances chances = random_chances(sequences, round);
    std::vector<DraftClaim> claims;
    for (const std::vector<double>& chain : chances) claims.push_back({.chances = chain});
    const auto rate = [&](const DraftAllocator& allocator) {
      return rate_of(chances, allocator.allocate(claims, kOverheadMs), costs);
    };
    const double best = rate(exact);
    gains.greedy += (best / rate(greedy) - 1) / kRounds;
    gains.priced += (best / rate(priced) - 1) / kRounds;
    gains.uniform += (best / best_uniform(chances, costs) - 1) / kRounds;
    gains.plain +=
        (best / rate_of(chances, std::vector<int>(claims.size(), 0), costs) - 1) / kRounds;
  }
  return gains;
}

// Nanoseconds of one call, the best of several runs over the same rounds.
double call_ns(int sequences, AllocationRule rule, const StepCosts& costs) {
  const DraftAllocator allocator({.rule = rule, .costs = costs});
  std::vector<Chances> rounds;
  rounds.reserve(kRounds);
  std::vector<std::vector<DraftClaim>> claims(kRounds);
  for (int round = 0; round < kRounds; ++round) rounds.push_back(random_chances(sequences, round));
  for (size_t round = 0; round < rounds.size(); ++round) {
    for (const std::vector<double>& chain : rounds[round]) {
      claims[round].push_back({.chances = chain});
    }
  }
  double best_ns = 1e300;
  size_t drafts = 0;
  for (int run = 0; run < 9; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    for (const std::vector<DraftClaim>& claim : claims) {
      drafts += static_cast<size_t>(allocator.allocate(claim, kOverheadMs)[0]);
    }
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - begin;
    best_ns = std::min(best_ns, took.count() / kRounds);
  }
  // Uses what was worked out, so that no call can be left out.
  if (drafts == SIZE_MAX) fmt::print("\n");
  return best_ns;
}

void print_table(const Table& table) {
  fmt::print("{} costs: gain of the exact allocation, mean of {} rounds; ns per call\n", table.name,
             kRounds);
  fmt::print("{:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "sequences", "greedy", "priced",
             "uniform", "plain", "ns exact", "ns priced", "ns greedy");
  for (const int sequences : {1, 2, 4, 8, 16}) {
    const Gains gains = simulate(sequences, table.costs);
    fmt::print("{:>10} {:>8.2f}% {:>8.2f}% {:>8.2f}% {:>8.2f}% {:>9.0f} {:>9.0f} {:>9.0f}\n",
               sequences, 100 * gains.greedy, 100 * gains.priced, 100 * gains.uniform,
               100 * gains.plain, call_ns(sequences, AllocationRule::kExact, table.costs),
               call_ns(sequences, AllocationRule::kPricedGreedy, table.costs),
               call_ns(sequences, AllocationRule::kGreedy, table.costs));
  }
}

}  // namespace
}  // namespace flashlane::scheduler

int main() {
  for (const auto& table : flashlane::scheduler::tables()) {
    flashlane::scheduler::print_table(table);
  }
  return 0;
}
