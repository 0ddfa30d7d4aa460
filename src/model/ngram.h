// Hashed n-gram ids (spec 3.4): for each token, the table row of every hash head, from the token
// and the ngram_size - 1 tokens before it, cut at the reset token. All integer, exact.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/shape.h"

namespace flashlane::model {

struct NgramHash {
  int ngram_size = 0;
  int heads_per_ngram = 0;
  int reset_token = 0;
  std::vector<int64_t> multipliers;  // [ngram_size]
  std::vector<int64_t> moduli;       // [heads]
  std::vector<int64_t> offsets;      // [heads]
  int64_t table_rows = 0;            // padded

  int heads() const { return static_cast<int>(moduli.size()); }

  // Row ids of tokens[first..] given everything before: out[(i - first) * heads + head].
  // `history` holds the sequence's tokens from its start (or at least ngram_size - 1 before
  // `first`).
  void rows(std::span<const int32_t> history, size_t first, std::span<int64_t> out) const;
};

// Constants of the rank-th n-gram layer (0 for the first).
NgramHash make_ngram_hash(const ModelShape& shape, int rank);

}  // namespace flashlane::model
