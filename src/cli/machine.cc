// Linux says all of it in /proc; a file that is missing or reads otherwise leaves the field empty.
#include "cli/machine.h"

#include <fmt/format.h>

#include <fstream>
#include <string_view>
#include <thread>

#include "cli/command.h"

namespace flashlane::cli {

namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

// The bytes of one line of /proc/meminfo.
size_t memory_line(std::string_view wanted) {
  std::ifstream file("/proc/meminfo");
  std::string key;
  size_t kibibytes = 0;
  std::string rest;
  while (file >> key >> kibibytes && std::getline(file, rest)) {
    if (key == wanted) return kibibytes * 1024;
  }
  return 0;
}

std::string processor_name() {
  constexpr std::string_view kKey = "model name";
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(kKey)) continue;
    const size_t start = line.find_first_not_of(" \t:", kKey.size());
    if (start != std::string::npos) return line.substr(start);
  }
  return "unknown";
}

}  // namespace

Machine read_machine() {
  Machine machine;
  machine.cpu = processor_name();
  machine.cores = static_cast<int>(std::thread::hardware_concurrency());
  machine.memory_bytes = memory_line("MemTotal:");
  std::ifstream file("/proc/loadavg");
  for (double& load : machine.load_average) file >> load;
  return machine;
}

void write_machine(JsonLine& json, const Machine& machine, const kernels::BackendInfo& backend) {
  json.begin_object();
  json.key("cpu").text(machine.cpu).key("cores").integer(machine.cores);
  json.key("memory_bytes").unsigned_integer(machine.memory_bytes);
  json.key("load_average").begin_array();
  for (const double load : machine.load_average) json.number(load);
  json.end_array();
  json.key("backend").text(backend.name).key("isa").text(backend.isa);
  json.key("activations").text(backend.activations).key("threads").integer(backend.threads);
  json.key("version").text(version_number()).key("build").text(build_id());
  json.end_object();
}

std::string machine_text(const Machine& machine, const kernels::BackendInfo& backend) {
  return fmt::format(
      "{}, {} cores, {:.1f} GiB, load average {:.2f} at the start\n"
      "flashlane {} ({}), backend {} ({}), {} activations, {} threads\n",
      machine.cpu, machine.cores, static_cast<double>(machine.memory_bytes) / kGib,
      machine.load_average[0], version_number(), build_id(), backend.name, backend.isa,
      backend.activations, backend.threads);
}

}  // namespace flashlane::cli
