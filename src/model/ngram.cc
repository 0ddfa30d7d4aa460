// Hash constants and row ids of the n-gram embedding, in 64-bit integers throughout: multipliers
// have 45 bits, and a float on the way would lose some.
#include "model/ngram.h"

#include <algorithm>

#include "base/check.h"
#include "base/int_math.h"
#include "base/keyed_random.h"

namespace flashlane::model {
namespace {

uint64_t power_modulo(uint64_t base, uint64_t exponent, uint64_t modulus) {
  uint64_t result = 1;
  base %= modulus;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = result * base % modulus;
    base = base * base % modulus;
  }
  return result;
}

// Miller-Rabin; the witnesses 2, 3, 5 and 7 decide every number below 3,215,031,751.
bool is_prime(uint64_t candidate) {
  CHECK_LT(candidate, 3'215'031'751U);
  for (const uint64_t prime : {2, 3, 5, 7}) {
    if (candidate % prime == 0) return candidate == prime;
  }
  if (candidate < 2) return false;
  uint64_t odd = candidate - 1;
  int halvings = 0;
  for (; odd % 2 == 0; odd /= 2) ++halvings;
  for (const uint64_t witness : {2, 3, 5, 7}) {
    uint64_t power = power_modulo(witness, odd, candidate);
    bool passes = power == 1 || power == candidate - 1;
    for (int i = 1; i < halvings && !passes; ++i) {
      power = power * power % candidate;
      passes = power == candidate - 1;
    }
    if (!passes) return false;
  }
  return true;
}

// The primes number `skip` to `skip + count - 1` of those that are at least `base`.
std::vector<int64_t> primes_from(int64_t base, int skip, int count) {
  std::vector<int64_t> primes;
  for (int64_t candidate = base; static_cast<int>(primes.size()) < count; ++candidate) {
    if (!is_prime(static_cast<uint64_t>(candidate))) continue;
    if (skip > 0) {
      --skip;
    } else {
      primes.push_back(candidate);
    }
  }
  return primes;
}

std::vector<int64_t> multipliers_of(const ModelShape& shape, int rank) {
  constexpr uint64_t kRankStep = 10007;
  const uint64_t largest = INT64_MAX / static_cast<uint64_t>(shape.vocabulary);
  const uint64_t half = std::max<uint64_t>(1, largest / 2);
  std::vector<int64_t> multipliers;
  for (uint64_t i = 0; i < static_cast<uint64_t>(shape.ngram_size); ++i) {
    const uint64_t key =
        shape.seed + kRankStep * static_cast<uint64_t>(rank) + kGoldenGamma * (i + 1);
    multipliers.push_back(static_cast<int64_t>(2 * (splitmix64(key) % half) + 1));
  }
  return multipliers;
}

}  // namespace

NgramHash make_ngram_hash(const ModelShape& shape, int rank) {
  CHECK(rank >= 0 && static_cast<size_t>(rank) < shape.ple_layers.size());
  NgramHash hash;
  hash.ngram_size = shape.ngram_size;
  hash.heads_per_ngram = shape.heads_per_ngram;
  hash.reset_token = shape.eos_token;
  hash.multipliers = multipliers_of(shape, rank);
  const int heads = shape.ngram_heads();
  hash.moduli = primes_from(shape.ngram_vocab_base, heads * rank, heads);
  int64_t rows = 0;
  for (const int64_t modulus : hash.moduli) {
    hash.offsets.push_back(rows);
    rows += modulus;
  }
  hash.table_rows = round_up(rows, static_cast<int64_t>(shape.ngram_row_multiple));
  return hash;
}

void NgramHash::rows(std::span<const int32_t> history, size_t first, std::span<int64_t> out) const {
  CHECK_LE(first, history.size());
  CHECK_EQ(out.size(), (history.size() - first) * moduli.size());
  for (size_t position = first; position < history.size(); ++position) {
    int64_t* row = out.data() + (position - first) * moduli.size();
    uint64_t mixed = 0;
    bool cut = false;
    for (size_t back = 0; back < multipliers.size(); ++back) {
      // Walking back, the first reset token, or the start, turns itself and all before it into one;
      // the current token does not cut its own context.
      if (back > 0) cut = cut || back > position || history[position - back] == reset_token;
      const int32_t token = cut ? reset_token : history[position - back];
      CHECK_GE(token, 0);
      mixed ^= static_cast<uint64_t>(token) * static_cast<uint64_t>(multipliers[back]);
      if (back == 0) continue;
      const size_t order_start = (back - 1) * static_cast<size_t>(heads_per_ngram);
      for (size_t head = order_start; head < order_start + static_cast<size_t>(heads_per_ngram);
           ++head) {
        row[head] =
            static_cast<int64_t>(mixed % static_cast<uint64_t>(moduli[head])) + offsets[head];
      }
    }
  }
}

}  // namespace flashlane::model
