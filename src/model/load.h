// MODEL on the command line → a loaded model: a checkpoint directory, "nano" (the bundled one) or
// "synth:…". Also what can be known without loading weights.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "format/checkpoint.h"
#include "model/forward.h"
#include "model/prepare.h"
#include "model/shape.h"

namespace flashlane::model {

struct ModelLocation {
  std::string name;       // as a person would call it: the directory's name, "synth:tiny"
  std::string directory;  // empty for synthetic models
  std::string synth;      // the text after "synth:", else empty
};

// Resolves MODEL: "nano" is looked for beside the binary, in its source tree and in
// share/flashlane/models; the error lists the places.
Result<ModelLocation> locate_model(const std::string& model);

// The shape alone, from config.json or the synth specification.
Result<ModelShape> read_shape(const ModelLocation& location);

struct BackendOptions {
  std::string backend = "auto";  // auto, reference, cpu, cuda
  std::string isa = "auto";
  int threads = 0;  // 0 = all cores
};
Result<std::unique_ptr<kernels::Ops>> make_ops(const BackendOptions& options);

// The memory of what computes: the GPU's for the cuda backend, else the machine's. Nothing where it
// can't be told.
std::optional<size_t> total_memory_of(const BackendOptions& options);
std::optional<size_t> available_memory_of(const BackendOptions& options);

struct LoadOptions {
  BackendOptions backend;
  int max_rows = 512;  // of any forward
  int context = 0;     // 0 = the model's max_position
  // Anonymous memory that the caller will take besides: a model that would not fit with it is
  // refused before a weight is read.
  size_t more_bytes = 0;
  // If any, receives the most anonymous memory that the process had while weights were prepared.
  size_t* peak_bytes = nullptr;
  // What there is; unset = what the system says (base/process_memory.h).
  std::optional<size_t> available_bytes = std::nullopt;
  // Called with a short line every `progress_every` as loading goes on, from another thread; may be
  // empty.
  std::function<void(const std::string&)> progress;
  std::chrono::milliseconds progress_every{1000};
};

// What a model holds once it is loaded, from names, shapes and headers: no matrix is read or made.
struct ModelMemory {
  WeightMemory weights;
  size_t scratch_bytes = 0;  // the backend's, for steps of max_rows rows

  size_t anonymous_bytes() const { return weights.anonymous_bytes() + scratch_bytes; }
};
Result<ModelMemory> model_memory(const ModelLocation& location, const BackendOptions& backend,
                                 int max_rows, int context);

Result<std::unique_ptr<Model>> load_model(const ModelLocation& location,
                                          const LoadOptions& options);

}  // namespace flashlane::model
