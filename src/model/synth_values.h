// Drawing the values of synthetic tensors in bulk (spec 8.1): element i is bf16(scale * r + offset)
// with r = (splitmix64(hash + i) >> 40) / 2^23 - 1. Every instruction level gives the same bits:
// all steps but the last rounding are exact or rounded once, in this order. Internal to model.
#pragma once

#include <cstdint>
#include <span>

#include "model/synth_plan.h"

namespace flashlane::model {

// values[k] = element first + k, rounded to bf16 and kept as float.
void draw_values(uint64_t hash, const ValueRule& rule, uint64_t first, std::span<float> values);

}  // namespace flashlane::model
