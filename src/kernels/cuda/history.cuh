// Convolution histories in place, for the layers with recurrent state: a thread has one element of
// all columns, so nothing is written that another still reads.
#pragma once

#include "kernels/cuda/device_code.cuh"

namespace flashlane::kernels::cuda {

// One element of `count` columns. The ranges may overlap where `to` is the lower one: what is read
// later lies above all that has been written.
__device__ inline void move_columns(float* to, const float* from, int64_t width, int count) {
  constexpr int kAtOnce = 8;  // so that loads wait together
  for (int first = 0; first < count; first += kAtOnce) {
    float held[kAtOnce] = {};
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
      if (first + t < count) held[t] = from[(first + t) * width];
    }
#pragma unroll
    for (int t = 0; t < kAtOnce; ++t) {
      if (first + t < count) to[(first + t) * width] = held[t];
    }
  }
}

// Settles one element of a history and puts the segment's inputs behind it: all of a decode
// segment's, the last `tail` of a prompt segment's. Both pointers are at the element, `inputs` in
// the segment's first row. A prompt segment without rows settles alone.
__device__ inline void keep_history(float* history, const float* inputs, int64_t width, int tail,
                                    Role role, const Segment& segment) {
  const int kept = role == Role::kDecode ? segment.row_count : min(segment.row_count, tail);
  const int gone = role == Role::kDecode ? 0 : kept;
  const int shift = segment.pending_rows + gone;
  if (shift > 0) move_columns(history, history + shift * width, width, tail - gone);
  move_columns(history + (tail - gone) * width, inputs + (segment.row_count - kept) * width, width,
               kept);
}

}  // namespace flashlane::kernels::cuda
