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
  std::string backend = "auto";  // auto, reference, cpu
  std::string isa = "auto";
  int threads = 0;  // 0 = all cores
};
Result<std::unique_ptr<kernels::Ops>> make_ops(const BackendOptions& options);

struct LoadOptions {
  BackendOptions backend;
  int max_rows = 512;  // of any forward
  int context = 0;     // 0 = the model's max_position
  // Called with a short line every `progress_every` as loading goes on, from another thread; may be
  // empty.
  std::function<void(const std::string&)> progress;
  std::chrono::milliseconds progress_every{1000};
};

Result<std::unique_ptr<Model>> load_model(const ModelLocation& location,
                                          const LoadOptions& options);

}  // namespace flashlane::model
