// One declaration of each shared option: its words, bounds and defaults.
#include "cli/options.h"

namespace flashlane::cli {

model::BackendOptions ModelOptions::backend_options() const {
  model::BackendOptions options;
  options.backend = backend.value_or("auto");
  options.isa = isa.value_or("auto");
  options.threads = static_cast<int>(threads.value_or(0));
  return options;
}

DType ModelOptions::kv(DType backend_default) const {
  if (!kv_dtype.has_value()) return backend_default;
  return *kv_dtype == "f32" ? DType::kF32 : DType::kBf16;
}

void add_model_name(OptionTable& table, ModelOptions& options) {
  table.text("model", options.model, {},
             "checkpoint directory, 'nano' (bundled; the default) or "
             "'synth:SHAPE[,layers=N][,format=F][,seed=S]'");
}

void add_model_options(OptionTable& table, ModelOptions& options) {
  constexpr int64_t kMostThreads = 256;
  constexpr double kMostGib = 1 << 20;
  add_model_name(table, options);
  table.text("backend", options.backend, {"auto", "reference", "cpu", "cuda"},
             "what computes; auto (default) = cpu; cuda: one GPU, where the build has it");
  table.text("isa", options.isa, {"auto", "avx2", "avx512", "avx512_bf16", "amx"},
             "instruction level of the cpu backend; auto (default) = the highest the CPU has");
  table.integer("threads", options.threads, 0, kMostThreads,
                "threads that compute; 0 (default) = all cores");
  table.text("kv-dtype", options.kv_dtype, {"bf16", "f32"},
             "how keys and values are kept; default: the backend's (reference f32, cpu bf16)");
  table.number("memory-limit-gib", options.memory_limit_gib, 0, kMostGib,
               "most GiB that the memory plan may need, and that pool and prompt cache may fill; "
               "default: 70 % of the machine's memory, or of the GPU's with --backend cuda",
               Reach::kEverywhere, {"FLASHNEXT_LOAD_LIMIT_GB"});
}

void add_json(OptionTable& table, bool& json, const std::string& help) {
  table.flag("json", json, help, Reach::kFlagOnly);
}

}  // namespace flashlane::cli
