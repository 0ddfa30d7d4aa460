// Both cgroup versions are read: version 2 has one hierarchy, version 1 a hierarchy of its own for
// memory. A container may see its cgroup as the root of the mount, so files that are not at the
// path that /proc/self/cgroup names are looked for in the folders above it.
#include "base/process_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>

namespace flashlane {
namespace {

// A limit at or above this means that there is none (version 1 writes the largest page multiple).
constexpr size_t kNoLimit = size_t{1} << 60;

std::optional<size_t> parse_bytes(std::string_view text) {
  size_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  if (failure != std::errc{} || stop == text.data()) return std::nullopt;
  return value;
}

// The number after `key` at the start of a line, as in "VmRSS:   12 kB" and "inactive_file 12".
std::optional<size_t> field_of(const std::string& path, std::string_view key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(key)) continue;
    const size_t digit = line.find_first_of("0123456789", key.size());
    if (digit == std::string::npos) return std::nullopt;
    return parse_bytes(std::string_view(line).substr(digit));
  }
  return std::nullopt;
}

std::optional<size_t> kibibytes_of(const std::string& path, std::string_view key) {
  const std::optional<size_t> value = field_of(path, key);
  return value.has_value() ? std::optional(*value * 1024) : std::nullopt;
}

std::optional<size_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::string word;
  file >> word;
  return parse_bytes(word);  // "max" is no number
}

struct CgroupFiles {
  std::string folder;  // of the mount
  const char* limit;
  const char* used;
  const char* inactive;  // the key in memory.stat
};

// What one cgroup allows in all.
std::optional<size_t> limit_of(const std::string& folder, const CgroupFiles& files) {
  const std::optional<size_t> limit = number_in(folder + files.limit);
  return limit && *limit < kNoLimit ? limit : std::nullopt;
}

// What one cgroup leaves; nullopt when it has no limit.
std::optional<size_t> room_in(const std::string& folder, const CgroupFiles& files) {
  const std::optional<size_t> limit = limit_of(folder, files);
  const std::optional<size_t> used = number_in(folder + files.used);
  if (!limit || !used) return std::nullopt;
  const size_t inactive = field_of(folder + "memory.stat", files.inactive).value_or(0);
  const size_t held = *used - std::min(*used, inactive);
  return *limit - std::min(*limit, held);
}

std::optional<size_t> least(std::optional<size_t> a, std::optional<size_t> b) {
  if (!a) return b;
  return b ? std::min(*a, *b) : a;
}

using OfOne = std::optional<size_t> (*)(const std::string& folder, const CgroupFiles& files);

// The least value of the cgroup at `path` and of all above it.
std::optional<size_t> least_along(std::string path, const CgroupFiles& files, OfOne of_one) {
  std::optional<size_t> found;
  while (true) {
    found = least(found, of_one(files.folder + path + (path.ends_with('/') ? "" : "/"), files));
    const size_t slash = path.find_last_of('/');
    if (path.size() <= 1 || slash == std::string::npos) return found;
    path.resize(std::max<size_t>(slash, 1));
  }
}

// The least of what /proc/meminfo says and of all cgroups that this process is in.
std::optional<size_t> least_of_all(const std::string& root, const char* key, OfOne of_one) {
  std::optional<size_t> found = kibibytes_of(root + "/proc/meminfo", key);
  const CgroupFiles one = {root + "/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                           "memory.usage_in_bytes", "total_inactive_file"};
  const CgroupFiles two = {root + "/sys/fs/cgroup", "memory.max", "memory.current",
                           "inactive_file"};
  // Lines are "number:controllers:path"; version 2's has no controllers.
  std::ifstream file(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', std::min(first, line.size() - 1) + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") found = least(found, least_along(path, two, of_one));
    if (controllers.find(",memory,") != std::string::npos) {
      found = least(found, least_along(path, one, of_one));
    }
  }
  return found;
}

}  // namespace

ResidentMemory resident_memory(const std::string& root) {
  const std::string status = root + "/proc/self/status";
  return {.anonymous_bytes = kibibytes_of(status, "RssAnon:").value_or(0),
          .file_bytes = kibibytes_of(status, "RssFile:").value_or(0)};
}

std::optional<size_t> available_memory(const std::string& root) {
  return least_of_all(root, "MemAvailable:", room_in);
}

std::optional<size_t> total_memory(const std::string& root) {
  return least_of_all(root, "MemTotal:", limit_of);
}

}  // namespace flashlane
