// Loading the n-gram layers: projections, norms and the sharded table. Internal to model's loading.
#pragma once

#include <string>

#include "model/weights.h"
#include "model/weights_names.h"

namespace flashlane::model {

// Appends the n-gram layer that sits on trunk layer `layer`, the rank-th of the model, under
// `path` ("….layers.1.ple."), to weights.ple.
Status load_ple(Weights& weights, TensorReader& reader, const std::string& path, int layer,
                int rank);

}  // namespace flashlane::model
