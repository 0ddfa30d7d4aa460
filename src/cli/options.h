// The typed options that several commands share, declared once. Commands read these structs and
// never see where a value came from.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "cli/option_table.h"
#include "model/load.h"
#include "tensor/dtype.h"

namespace flashlane::cli {

// Which model, and how to run it.
struct ModelOptions {
  std::optional<std::string> model;
  std::optional<std::string> backend;
  std::optional<std::string> isa;
  std::optional<int64_t> threads;
  std::optional<std::string> kv_dtype;
  std::optional<double> memory_limit_gib;

  std::string model_name() const { return model.value_or("nano"); }
  model::BackendOptions backend_options() const;
  // What --kv-dtype says, else the backend's own.
  DType kv(DType backend_default) const;
};

// --model alone, for commands that read its texts but not its weights.
void add_model_name(OptionTable& table, ModelOptions& options);
// --model, --backend, --isa, --threads, --kv-dtype, --memory-limit-gib.
void add_model_options(OptionTable& table, ModelOptions& options);

void add_json(OptionTable& table, bool& json, const std::string& help);

}  // namespace flashlane::cli
