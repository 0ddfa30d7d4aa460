// ReadProbe: how fast this machine reads memory, as a plain sum over a large block, so that speeds
// can be told as a share of it. Every word is read: each pass checks the sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/result.h"

namespace flashlane::cli {

struct ReadBandwidth {
  double gbps = 0;  // median of the passes, 1e9 bytes a second
  double lowest = 0;
  double highest = 0;
};

// What a probe should read: `wanted`, or a quarter of the memory that is free if that is less.
size_t probe_bytes(size_t wanted, size_t free_bytes);

// One warm-up pass and an odd number of timed ones over a block of `bytes`, each thread its part.
// The block is made and freed here, and lies in huge pages where the system has them.
Result<ReadBandwidth> measure_read_bandwidth(size_t bytes, int threads);

}  // namespace flashlane::cli
