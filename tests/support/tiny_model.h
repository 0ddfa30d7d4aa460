// The deterministic tiny model of spec/architecture.md 8 on the reference backend, loaded once.
#pragma once

#include <memory>

#include "model/load.h"

namespace flashlane::testing {

inline constexpr int kTinyRows = 64;
inline constexpr int kTinyContext = 256;

inline model::Model& tiny_model() {
  static const std::unique_ptr<model::Model> model = [] {
    const auto location = model::locate_model("synth:tiny");
    CHECK(location.ok());
    auto loaded = model::load_model(
        location.value(), {.backend = {.backend = "reference", .isa = "auto", .threads = 1},
                           .max_rows = kTinyRows,
                           .context = kTinyContext,
                           .progress = {}});
    if (!loaded.ok()) check_failed(__FILE__, __LINE__, "load synth:tiny", loaded.error().message);
    return std::move(loaded).value();
  }();
  return *model;
}

}  // namespace flashlane::testing
