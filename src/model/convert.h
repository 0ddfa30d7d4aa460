// Conversion of a checkpoint's weights from any served format to any other (M2). What is a matrix
// is what loading takes as one, so nothing is guessed from names; the router and all that is no
// matrix are never quantised, and a matrix that has the wanted format already keeps its codes bit
// by bit. Names, norm convention and the layout of expert banks stay as they are. Values are
// dequantised exactly as kernels do it and worked in pieces of bounded size.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "format/safetensors_writer.h"
#include "kernels/matrix.h"
#include "model/weight_format.h"
#include "model/weights.h"

namespace flashlane::model {

// One tensor, or one quantised matrix with its scales and biases.
struct ConversionUnit {
  enum class Kind { kCopy, kCast, kQuantise };
  Kind kind = Kind::kCopy;
  bool is_matrix = false;
  std::vector<format::TensorSpec> tensors;  // to be written; quantised: weight, scales, biases
  std::vector<TensorView> bytes;            // kCopy: of each tensor
  kernels::Matrix source;                   // else: [rows, cols], leading dimensions folded
  WeightFormat format;                      // else
};

// A quantised module whose bits and group the configuration must name.
struct QuantisedModule {
  std::string path;
  QuantizationDefault affine;  // bits 0: as the source's configuration says
};

struct Conversion {
  WeightFormat format;
  std::vector<ConversionUnit> units;        // sorted by the name of the first tensor
  std::vector<QuantisedModule> exceptions;  // modules that differ from the format
  size_t bytes = 0;                         // of all tensors to be written
  int matrices_kept = 0;                    // copied bit by bit
  int matrices_converted = 0;
};

// `weights` are loaded, so every matrix is checked; they must outlive the conversion.
Result<Conversion> plan_conversion(Weights& weights, const WeightFormat& format);

// How far the values of matrices moved: sums over all of them.
struct ConversionLoss {
  double squared_error = 0;
  double squared_value = 0;

  // Root of mean square error over root of mean square value; 0 when nothing moved.
  double relative() const;
};

// Takes the next bytes of tensor `tensor` of the unit.
using TensorSink = std::function<Status(size_t tensor, std::span<const std::byte> bytes)>;
// Hands out every byte of the unit's tensors, from the calling thread; stops at the sink's first
// error. A value that the format can't hold is an error that names the tensor. `threads`, at least
// 1, change no byte.
Status convert_unit(const ConversionUnit& unit, int threads, const TensorSink& sink,
                    ConversionLoss& loss);

// config.json of the converted checkpoint: every key as it was but those that speak of the weights'
// format. An error when the source's text is none.
Result<std::string> converted_config(std::string_view config_json, const Conversion& conversion);

}  // namespace flashlane::model
