// Finding tensors under any of the accepted names, and turning each into what kernels take after
// checking dtype and shape against what the model's shape demands. Every failure is one line that
// names the tensor, what it is and what was expected. Internal to model's loading.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/result.h"
#include "format/tensor_source.h"
#include "model/weights.h"

namespace flashlane::model {

// The prefixes of one naming scheme, dots included: "model.language_model.", "lm_head", "mtp.".
struct TensorPrefixes {
  std::string text;
  std::string head;
  std::string mtp;         // empty: the source has no MTP tensors
  bool mtp_apart = false;  // the MTP head follows another scheme, so it came from another file
};

// Told by which embedding exists; an error names all that were looked for.
Result<TensorPrefixes> find_prefixes(const format::TensorSource& source);

class TensorReader {
 public:
  // What is converted lives in owner.floats, and its bytes are dropped; matrices are addresses in
  // the source, and no byte of theirs is read.
  TensorReader(const format::TensorSource& source, Weights& owner)
      : source_(source), owner_(owner) {}

  bool has(const std::string& name) const { return source_.find(name) != nullptr; }
  const TensorView* find(const std::string& name) const { return source_.find(name); }
  std::string source_name() const { return source_.description(); }

  // The linear module `path`, plain or quantised: [rows, cols].
  Result<kernels::Matrix> matrix(const std::string& path, int64_t rows, int64_t cols);
  // As matrix, of whatever row count the file has; the caller checks it (n-gram shards).
  Result<kernels::Matrix> matrix_of_any_rows(const std::string& path, int64_t cols);
  // The expert bank `path`: [count, rows, cols].
  Result<kernels::Matrix> bank(const std::string& path, int64_t count, int64_t rows, int64_t cols);

  // A 1-D tensor as f32.
  Result<const float*> vector(const std::string& name, int64_t length);
  // A norm as the gain that multiplies: 1 + w for centred files.
  Result<const float*> gain(const std::string& name, int64_t length, NormConvention convention);
  // Depthwise taps, [channels, 1, taps] or [channels, taps, 1], as f32 [channels, taps].
  Result<const float*> convolution(const std::string& name, int64_t channels, int64_t taps);
  // The mean of a 1-D tensor.
  Result<double> mean(const std::string& name, int64_t length);
  // An I64 tensor that must hold exactly these values when it is there.
  Status expect_integers(const std::string& name, const std::vector<int64_t>& expected);

 private:
  // `shape`: the expected one, cols last; -1 accepts any size there.
  Result<kernels::Matrix> read(const std::string& path, std::initializer_list<int64_t> shape);
  Status read_affine(kernels::Matrix& matrix, const std::string& path, const std::string& name,
                     const TensorView& codes);
  Result<std::vector<float>> read_floats(const std::string& name, const TensorView& view);
  const float* keep(std::vector<float> values);
  Result<const TensorView*> find_vector(const std::string& name, int64_t length);

  const format::TensorSource& source_;
  Weights& owner_;
};

}  // namespace flashlane::model
