// `flashlane --version`: what this binary is and what it finds on this machine.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/json_line.h"
#include "kernels/gpu.h"
#include "model/load.h"

namespace flashlane::cli {

namespace {

std::vector<std::string> isa_levels() {
  std::vector<std::string> levels;
  std::string level;
  for (const char c : kernels::available_isa_levels() + " ") {
    if (c != ' ' && c != ',') {
      level.push_back(c);
    } else if (!level.empty()) {
      levels.push_back(std::move(level));
      level.clear();
    }
  }
  return levels;
}

}  // namespace

std::string_view version_number() {
  return FLASHLANE_VERSION;
}

std::string_view build_id() {
  return FLASHLANE_BUILD;
}

Result<Exit> print_version(bool json_wanted) {
  model::BackendOptions options;
  options.threads = 1;
  ASSIGN_OR_RETURN(const auto ops, model::make_ops(options));
  if (!json_wanted) {
    fmt::print("flashlane {} ({}), {} activations, {}\n", version_number(), build_id(),
               ops->info().activations, ops->info().isa);
    return Exit::kOk;
  }
  JsonLine json;
  json.begin_object();
  json.key("version").text(version_number()).key("build").text(build_id());
  json.key("activations").text(ops->info().activations).key("isa").text(ops->info().isa);
  json.key("isa_available").begin_array();
  for (const std::string& level : isa_levels()) json.text(level);
  json.end_array().key("cuda");
  if (const auto gpu = kernels::first_gpu()) {
    json.begin_object().key("device").text(gpu->name).key("architecture").text(gpu->architecture);
    json.key("memory_bytes").integer(gpu->memory_bytes).end_object();
  } else {
    json.null();
  }
  json.end_object();
  fmt::print("{}\n", json.str());
  return Exit::kOk;
}

}  // namespace flashlane::cli
