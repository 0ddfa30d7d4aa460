// Small models for tests, each loaded once: the deterministic tiny model of spec/architecture.md 8
// on a backend, and the bundled nano.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "model/load.h"

namespace flashlane::testing {

inline constexpr int kTinyRows = 64;
inline constexpr int kTinyContext = 256;

inline std::unique_ptr<model::Model> load_test_model(const model::ModelLocation& location,
                                                     const std::string& backend) {
  auto loaded =
      model::load_model(location, {.backend = {.backend = backend, .isa = "auto", .threads = 2},
                                   .max_rows = kTinyRows,
                                   .context = kTinyContext,
                                   .progress = {}});
  if (!loaded.ok()) check_failed(__FILE__, __LINE__, "load_model", loaded.error().message);
  return std::move(loaded).value();
}

inline model::Model& tiny_model(const std::string& backend = "reference") {
  static std::map<std::string, std::unique_ptr<model::Model>> models;
  auto& model = models[backend];
  if (model == nullptr) {
    model = load_test_model(model::locate_model("synth:tiny").value(), backend);
  }
  return *model;
}

inline model::Model& nano_model() {
  static const auto model =
      load_test_model({.name = "nano",
                       .directory = FLASHLANE_SOURCE_DIR "/models/flash-next-nano-6bit",
                       .synth = {}},
                      "auto");
  return *model;
}

}  // namespace flashlane::testing
