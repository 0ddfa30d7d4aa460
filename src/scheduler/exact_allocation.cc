// Why this is exact. Call a claim chained when its drafts cost head steps, sunk when they don't,
// and write S(i, k) for the chance that draft k of claim i lands. Depths d give
//     tokens = fixed rows + sum over i and k <= d(i) of S(i, k) - sum over i with d(i) > 0 of
//     toll(i) time   = forward(fixed rows + sum of d) + overhead
//              + sum over k >= first priced of head_step(number of chained claims with d(i) >= k).
// 1. The time does not depend on which chained claim has which depth, only on the multiset of their
//    depths, and not on which sunk claim has how many drafts, only on how many there are in all.
// 2. For one multiset, the most tokens come from the best way of giving its depths to the chained
//    claims. The search works through the claims one by one and keeps, for each multiset of the
//    depths given so far, the most tokens and how they came about. The best way for claims 1..i
//    ends with a depth for claim i, and what remains is the best way for claims 1..i-1 and the
//    multiset without that depth; so by induction every multiset's value is the true maximum.
//    (Taking the highest S at each depth would not do: the claims that are best at depth 2 need not
//    be among those that are best at depth 1.)
// 3. For one number of sunk drafts, the most tokens come from the highest chances of all sunk
// chains
//    together; they form prefixes, since no chain's chances rise.
// 4. Tokens of both kinds add up. So for each pair (multiset, number of sunk drafts) the highest
//    rate is known, and the highest over all pairs that fit the limit is the optimum. The quotient
//    is compared directly: no linearised objective, no convergence to argue about.
// With at most 16 rows and one fixed row per claim, n claims have at most 16 - n drafts, i.e. at
// most 155 reachable multisets where n >= 2.
#include "scheduler/exact_allocation.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "base/check.h"

namespace flashlane::scheduler {
namespace {

constexpr int kMostDrafts = kMostDecodeRows - 1;
constexpr size_t kSets = 684;  // multisets of positive depths with at most 15 drafts in all

// All multisets of depths. One is written as how many of its depths are ≥ 1, ≥ 2, …, four bits
// each: adding a depth d adds one to the lowest d of them, and the counts that head steps are
// priced by can be read off.
struct DepthSets {
  std::vector<uint64_t> counts;  // ordered by drafts, then by value
  std::vector<int> drafts;
  std::array<int, kMostDrafts + 1> end = {};  // end[t]: how many have at most t drafts
  std::vector<std::array<uint16_t, kMostDrafts + 1>> with;  // with[set][d]: after d is added
};

constexpr uint64_t ones(int depth) {
  return 0x1111111111111111ULL & ((uint64_t{1} << (4 * depth)) - 1);
}

DepthSets make_depth_sets() {
  std::array<std::vector<uint64_t>, kMostDrafts + 1> levels;
  levels[0] = {0};
  for (int drafts = 0; drafts <= kMostDrafts; ++drafts) {
    std::vector<uint64_t>& level = levels[static_cast<size_t>(drafts)];
    std::sort(level.begin(), level.end());
    level.erase(std::unique(level.begin(), level.end()), level.end());
    for (const uint64_t counts : level) {
      for (int depth = 1; drafts + depth <= kMostDrafts; ++depth) {
        levels[static_cast<size_t>(drafts + depth)].push_back(counts + ones(depth));
      }
    }
  }
  DepthSets sets;
  for (int drafts = 0; drafts <= kMostDrafts; ++drafts) {
    for (const uint64_t counts : levels[static_cast<size_t>(drafts)]) {
      sets.counts.push_back(counts);
      sets.drafts.push_back(drafts);
    }
    sets.end[static_cast<size_t>(drafts)] = static_cast<int>(sets.counts.size());
  }
  CHECK_EQ(sets.counts.size(), kSets);
  sets.with.resize(kSets);
  for (size_t set = 0; set < kSets; ++set) {
    sets.with[set][0] = static_cast<uint16_t>(set);
    for (int depth = 1; sets.drafts[set] + depth <= kMostDrafts; ++depth) {
      const auto drafts = static_cast<size_t>(sets.drafts[set] + depth);
      const auto first = sets.counts.begin() + sets.end[drafts - 1];
      const auto last = sets.counts.begin() + sets.end[drafts];
      const auto found = std::lower_bound(first, last, sets.counts[set] + ones(depth));
      CHECK(found != last);
      sets.with[set][static_cast<size_t>(depth)] =
          static_cast<uint16_t>(found - sets.counts.begin());
    }
  }
  return sets;
}

const DepthSets& depth_sets() {
  static const DepthSets sets = make_depth_sets();
  return sets;
}

// Step 2: the most tokens of the chained claims for every multiset of depths.
class ChainSearch {
 public:
  // `room` is the number of drafts that fit, 1..kMostDrafts.
  ChainSearch(std::span<const DraftClaim> claims, int room) : room_(room) {
    CHECK_LE(claims.size(), from_.size());
    for (size_t i = 0; i < claims.size(); ++i) {
      if (!claims[i].sunk && !claims[i].chances.empty()) chained_[stages_++] = i;
    }
    const int reach = depth_sets().end[static_cast<size_t>(room_)];
    tokens_[0] = 0;
    std::fill(tokens_.begin() + 1, tokens_.begin() + reach, kUnreached);
    // From the last claim to the first, so that of two claims as good the first gets the draft.
    for (size_t stage = stages_; stage-- > 0;) {
      give_depths(claims[chained_[stage]], from_[stage]);
    }
  }

  // Whether the claims can have these depths.
  bool reached(size_t set) const { return tokens_[set] != kUnreached; }
  double tokens(size_t set) const { return tokens_[set]; }

  void write_counts(size_t set, std::vector<int>& counts) const {
    const DepthSets& sets = depth_sets();
    for (size_t stage = 0; stage < stages_; ++stage) {
      const size_t before = from_[stage][set];
      counts[chained_[stage]] = sets.drafts[set] - sets.drafts[before];
      set = before;
    }
  }

 private:
  static constexpr double kUnreached = std::numeric_limits<double>::lowest();

  void give_depths(const DraftClaim& claim, std::array<uint16_t, kSets>& from) {
    const std::span<const double> chances = claim.chances;
    const DepthSets& sets = depth_sets();
    std::array<double, kMostDrafts + 1> gain;  // of the first d drafts
    gain[0] = 0;
    const int deepest = std::min(room_, static_cast<int>(chances.size()));
    for (size_t d = 1; d <= static_cast<size_t>(deepest); ++d) {
      gain[d] = gain[d - 1] + chances[d - 1];
    }
    for (size_t d = 1; d <= static_cast<size_t>(deepest); ++d) gain[d] -= claim.toll;
    const auto reach = static_cast<size_t>(sets.end[static_cast<size_t>(room_)]);
    std::array<double, kSets> grown;
    std::fill(grown.begin(), grown.begin() + static_cast<int>(reach), kUnreached);
    for (size_t set = 0; set < reach; ++set) {
      if (!reached(set)) continue;
      const auto most = static_cast<size_t>(std::min(deepest, room_ - sets.drafts[set]));
      for (size_t d = 0; d <= most; ++d) {
        const size_t next = sets.with[set][d];
        const double value = tokens_[set] + gain[d];
        if (value <= grown[next]) continue;
        grown[next] = value;
        from[next] = static_cast<uint16_t>(set);
      }
    }
    std::copy_n(grown.begin(), reach, tokens_.begin());
  }

  int room_;
  size_t stages_ = 0;
  std::array<size_t, kMostDecodeRows> chained_ = {};
  std::array<double, kSets> tokens_;
  std::array<std::array<uint16_t, kSets>, kMostDecodeRows>
      from_;  // written where tokens were reached
};

// Step 3: sunk drafts by falling chance, of equals the first claim's.
struct SunkWalk {
  std::array<size_t, kMostDrafts> owner = {};
  std::array<double, kMostDrafts + 1> tokens = {};  // of the first f drafts
  int drafts = 0;

  SunkWalk(std::span<const DraftClaim> claims, int room) {
    std::array<size_t, kMostDecodeRows> taken = {};
    while (drafts < room) {
      size_t best = claims.size();
      double best_chance = -1;
      for (size_t i = 0; i < claims.size(); ++i) {
        if (!claims[i].sunk || taken[i] >= claims[i].chances.size()) continue;
        if (claims[i].chances[taken[i]] <= best_chance) continue;
        best = i;
        best_chance = claims[i].chances[taken[i]];
      }
      if (best == claims.size()) return;
      ++taken[best];
      const auto f = static_cast<size_t>(drafts++);
      owner[f] = best;
      tokens[f + 1] = tokens[f] + best_chance;
    }
  }
};

}  // namespace

std::vector<double> depth_set_prices(const CostTable& head_step, int first_depth) {
  std::vector<double> prices;
  prices.reserve(kSets);
  for (uint64_t counts : depth_sets().counts) {
    double ms = 0;
    if (!head_step.empty()) {
      for (int depth = 1; counts != 0; counts >>= 4, ++depth) {
        if (depth >= first_depth)
          ms += head_step_ms(depth, static_cast<int>(counts & 15), head_step);
      }
    }
    prices.push_back(ms);
  }
  return prices;
}

std::vector<int> exact_allocation(std::span<const DraftClaim> claims, const CostTable& forward,
                                  std::span<const double> chain_ms, double overhead_ms, int limit) {
  CHECK_EQ(chain_ms.size(), kSets);
  std::vector<int> counts(claims.size(), 0);
  int fixed = 0;
  for (const DraftClaim& claim : claims) fixed += claim.fixed_rows;
  const int room = limit - fixed;
  if (claims.empty() || room <= 0) return counts;

  const DepthSets& sets = depth_sets();
  const ChainSearch chains(claims, room);
  const SunkWalk sunk(claims, room);
  // Step 4. A row count without a cost can't win.
  double best_rate = -1;
  size_t best_set = 0;
  int best_sunk = 0;
  for (size_t set = 0; set < static_cast<size_t>(sets.end[static_cast<size_t>(room)]); ++set) {
    if (!chains.reached(set)) continue;
    const int most_sunk = std::min(sunk.drafts, room - sets.drafts[set]);
    for (int f = 0; f <= most_sunk; ++f) {
      const int rows = fixed + sets.drafts[set] + f;
      if (!forward.empty() && !forward.covers(rows)) break;
      const double tokens = fixed + chains.tokens(set) + sunk.tokens[static_cast<size_t>(f)];
      const double forward_ms = forward.empty() ? 1 : forward.ms(rows);
      const double rate = tokens / (forward_ms + overhead_ms + chain_ms[set]);
      if (rate <= best_rate) continue;
      best_rate = rate;
      best_set = set;
      best_sunk = f;
    }
  }
  chains.write_counts(best_set, counts);
  for (int f = 0; f < best_sunk; ++f) ++counts[sunk.owner[static_cast<size_t>(f)]];
  return counts;
}

}  // namespace flashlane::scheduler
