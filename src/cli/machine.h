// What a measurement has to say about the machine it ran on.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "cli/json_line.h"
#include "kernels/ops.h"

namespace flashlane::cli {

struct Machine {
  std::string cpu;  // "unknown" where the system does not say, as are the zeros below
  int cores = 0;
  size_t memory_bytes = 0;
  std::array<double, 3> load_average = {};  // over 1, 5 and 15 minutes
};
Machine read_machine();

// {"cpu","cores",…,"backend","isa","threads","build"}: the machine and what runs on it.
void write_machine(JsonLine& json, const Machine& machine, const kernels::BackendInfo& backend);
std::string machine_text(const Machine& machine, const kernels::BackendInfo& backend);

}  // namespace flashlane::cli
