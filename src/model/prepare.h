// From found weights to prepared ones: every matrix goes to the backend part by part, and the bytes
// it came from are given back as they are done with; synthetic ones are made by the backend itself
// where it can. After it, memory holds the backend's copies, the vectors, and what is looked up by
// row (embedding, stored n-gram tables); a matrix that was prepared has no bytes of its own left.
#pragma once

#include <cstddef>
#include <functional>

#include "base/result.h"
#include "kernels/ops.h"
#include "model/weights.h"

namespace flashlane::model {

// What prepared weights hold, from shapes alone.
struct WeightMemory {
  size_t copies_bytes = 0;   // the backend's copies of matrices
  size_t vectors_bytes = 0;  // norms and convolutions, as f32
  size_t tables_bytes = 0;   // embedding and stored n-gram tables, as stored
  bool tables_in_files = false;
  bool tables_apart = false;  // not in the memory that computes but in the machine's
  size_t part_bytes = 0;      // stored bytes that are there at a time while loading

  // Of the memory that computes.
  size_t anonymous_bytes() const {
    return copies_bytes + vectors_bytes + (tables_in_files || tables_apart ? 0 : tables_bytes);
  }
  // Of the machine's where that is another.
  size_t host_bytes() const { return tables_apart && !tables_in_files ? tables_bytes : 0; }
  size_t file_bytes() const { return tables_in_files ? tables_bytes : 0; }
};
WeightMemory weight_memory(Weights& weights, kernels::Ops& ops);

// Hands every matrix that kernels read to the backend. `progress`, if any, is told the stored bytes
// of each part that is done, while both the part and its copy are there.
Status prepare_weights(Weights& weights, kernels::Ops& ops,
                       const std::function<void(size_t)>& progress = {});

}  // namespace flashlane::model
