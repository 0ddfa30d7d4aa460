// What this process holds of the machine's memory, and what is left for it: read from /proc and the
// memory cgroups when asked, never cached. Anonymous memory is what the process made; file-backed
// memory are clean pages of mapped files, which the system takes back when it needs them.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace flashlane {

struct ResidentMemory {
  size_t anonymous_bytes = 0;
  size_t file_bytes = 0;
};
// Zeros when the system does not say. `root`: where proc/ is looked for (tests).
ResidentMemory resident_memory(const std::string& root = "");

// Bytes that may still be taken: the least of MemAvailable and what each memory cgroup above this
// process leaves, whose own file pages count as free. Nullopt when the system does not say.
std::optional<size_t> available_memory(const std::string& root = "");

// Bytes that this process could ever have: the least of MemTotal and the limits of those cgroups.
std::optional<size_t> total_memory(const std::string& root = "");

}  // namespace flashlane
