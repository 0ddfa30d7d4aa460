// How names become tensors: prefixes, suffixes, quantised modules, and the checks of each. See the
// header. Tensors rule: bits and group of a module are told by its own tensors' shapes.
#include "model/weights_names.h"

#include <array>
#include <cstring>

#include "tensor/affine.h"

namespace flashlane::model {
namespace {

using kernels::Layout;
using kernels::Matrix;

constexpr std::string_view kEmbedding = "embed_tokens.weight";

bool is_float(DType dtype) {
  return dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF32;
}

// "[16, 384]"; a size that may be anything prints as "any".
std::string expected_string(std::initializer_list<int64_t> shape) {
  std::string text;
  for (const int64_t size : shape) {
    if (!text.empty()) text += ", ";
    text += size < 0 ? std::string("any") : std::to_string(size);
  }
  return "[" + text + "]";
}

bool shape_fits(const TensorView& view, std::initializer_list<int64_t> shape) {
  if (view.rank != static_cast<int>(shape.size())) return false;
  int index = 0;
  for (const int64_t size : shape) {
    if (size >= 0 && view.dim(index) != size) return false;
    ++index;
  }
  return true;
}

Error missing(const std::string& name, const std::string& source) {
  return invalid("tensor {} is missing from {}", name, source);
}

Error misshapen(const std::string& name, const TensorView& view, const std::string& expected) {
  return invalid("tensor {} has shape {}, expected {}", name, shape_string(view), expected);
}

// What an unusable dtype of a matrix means, said as a person would want to know it.
Error wrong_matrix_dtype(const std::string& path, const std::string& name, const TensorView& view,
                         const format::TensorSource& source) {
  if (view.dtype == DType::kF8E4M3) {
    return error(ErrorCode::kUnsupported,
                 "tensor {} is F8_E4M3: FP8 weights are served on CUDA only", name);
  }
  if (view.dtype == DType::kU8 && source.find(path + ".weight_scale") != nullptr) {
    return error(ErrorCode::kUnsupported,
                 "tensor {} is U8 with {}.weight_scale: NVFP4 weights are "
                 "served on CUDA only",
                 name, path);
  }
  if (view.dtype == DType::kU32) {
    return invalid("tensor {}.scales is missing from {}: {} is U32, so it is quantised", path,
                   source.description(), name);
  }
  return invalid("tensor {} is {}, expected BF16, F16, F32 or (quantised) U32", name,
                 dtype_name(view.dtype));
}

float element_as_float(const TensorView& view, size_t index) {
  if (view.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, view.data + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, view.data + index * 2, 2);
  return view.dtype == DType::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

}  // namespace

Result<TensorPrefixes> find_prefixes(const format::TensorSource& source) {
  struct Scheme {
    std::string_view text, head;
    std::array<std::string_view, 2> mtp;  // the scheme's own prefix first
  };
  static constexpr std::array<Scheme, 3> kSchemes = {{
      {"model.language_model.", "lm_head", {"mtp.", ""}},
      {"language_model.model.", "language_model.lm_head", {"language_model.mtp.", "mtp."}},
      {"model.", "lm_head", {"mtp.", ""}},
  }};
  const std::vector<std::string> names = source.names();
  const auto any_name_starts_with = [&](std::string_view prefix) {
    for (const std::string& name : names) {
      if (name.starts_with(prefix)) return true;
    }
    return false;
  };
  for (const Scheme& scheme : kSchemes) {
    if (source.find(std::string(scheme.text) + std::string(kEmbedding)) == nullptr) continue;
    TensorPrefixes prefixes;
    prefixes.text = scheme.text;
    prefixes.head = scheme.head;
    for (size_t i = 0; i < scheme.mtp.size(); ++i) {
      if (scheme.mtp[i].empty() || !any_name_starts_with(scheme.mtp[i])) continue;
      prefixes.mtp = scheme.mtp[i];
      prefixes.mtp_apart = i > 0;
      break;
    }
    return prefixes;
  }
  return invalid("tensor {}{} is missing from {} (nor is there {}{} or {}{})", kSchemes[0].text,
                 kEmbedding, source.description(), kSchemes[1].text, kEmbedding, kSchemes[2].text,
                 kEmbedding);
}

Result<Matrix> TensorReader::read(const std::string& path, std::initializer_list<int64_t> shape) {
  // Expert banks are stored with and without the suffix.
  std::string name = path + ".weight";
  const TensorView* view = find(name);
  if (view == nullptr && shape.size() == 3 && has(path)) {
    name = path;
    view = find(name);
  }
  if (view == nullptr) {
    const bool official_bank = path.find(".mlp.experts.") != std::string::npos;
    const bool suffixless = official_bank && !has(path + ".scales");
    return missing(suffixless ? path : name, source_.description());
  }

  const int64_t cols = *(shape.end() - 1);
  Matrix matrix;
  matrix.cols = cols;
  if (has(path + ".scales")) {
    if (view->dtype != DType::kU32) {
      return invalid("tensor {} is {}, expected U32 because {}.scales exists", name,
                     dtype_name(view->dtype), path);
    }
    matrix.layout = Layout::kAffine;
  } else if (is_float(view->dtype)) {
    if (!shape_fits(*view, shape)) return misshapen(name, *view, expected_string(shape));
    matrix.layout = view->dtype == DType::kF32   ? Layout::kF32
                    : view->dtype == DType::kF16 ? Layout::kF16
                                                 : Layout::kBf16;
  } else {
    return wrong_matrix_dtype(path, name, *view, source_);
  }
  if (matrix.layout == Layout::kAffine) {
    // The last size is in words and tells the bits; those before it must fit as they are.
    bool fits = view->rank == static_cast<int>(shape.size());
    for (int i = 0; fits && i + 1 < view->rank; ++i) {
      const int64_t wanted = shape.begin()[i];
      fits = wanted < 0 || view->dim(i) == wanted;
    }
    if (!fits) {
      return misshapen(name, *view, expected_string(shape) + " with the last size in 32-bit words");
    }
    RETURN_IF_ERROR(read_affine(matrix, path, name, *view));
  }
  matrix.rows = view->dim(-2);
  matrix.count = view->rank == 3 ? view->dim(0) : 1;
  matrix.stride_rows = matrix.rows;
  matrix.data = view->data;
  return matrix;
}

Status TensorReader::read_affine(Matrix& matrix, const std::string& path, const std::string& name,
                                 const TensorView& codes) {
  const int64_t cols = matrix.cols;
  const int64_t words = codes.dim(-1);
  // A word count above this could not be 8 bits each, and the product below must not overflow.
  const int64_t bits = words > 0 && words <= cols ? 32 * words / cols : 0;
  if (bits * cols != 32 * words || !affine_bits_supported(static_cast<int>(bits))) {
    return invalid(
        "tensor {} has shape {}: {} words for {} columns are not 2, 3, 4, 5, 6 or 8 "
        "bits each",
        name, shape_string(codes), words, cols);
  }
  matrix.bits = static_cast<int>(bits);

  const std::string scales_name = path + ".scales";
  const std::string biases_name = path + ".biases";
  const TensorView& scales = *find(scales_name);
  const TensorView* biases = find(biases_name);
  if (biases == nullptr) return missing(biases_name, source_.description());
  if (!is_float(scales.dtype)) {
    return invalid("tensor {} is {}, expected BF16, F16 or F32", scales_name,
                   dtype_name(scales.dtype));
  }
  bool fits = scales.rank == codes.rank && scales.dim(-1) > 0 && scales.dim(-1) <= cols;
  for (int i = 0; fits && i + 1 < codes.rank; ++i) fits = scales.dim(i) == codes.dim(i);
  const int64_t group = fits ? cols / scales.dim(-1) : 0;
  if (!fits || group * scales.dim(-1) != cols || !affine_group_supported(static_cast<int>(group))) {
    return invalid(
        "tensor {} has shape {}, expected one scale per 32, 64 or 128 of {} columns and "
        "the rows of {} {}",
        scales_name, shape_string(scales), cols, name, shape_string(codes));
  }
  matrix.group = static_cast<int>(group);
  matrix.scale_dtype = scales.dtype;
  if (biases->dtype != scales.dtype || biases->rank != scales.rank ||
      biases->shape != scales.shape) {
    return invalid("tensor {} is {} {}, expected {} {} as {} is", biases_name,
                   dtype_name(biases->dtype), shape_string(*biases), dtype_name(scales.dtype),
                   shape_string(scales), scales_name);
  }
  matrix.scales = scales.data;
  matrix.biases = biases->data;
  return {};
}

Result<Matrix> TensorReader::matrix(const std::string& path, int64_t rows, int64_t cols) {
  return read(path, {rows, cols});
}

Result<Matrix> TensorReader::matrix_of_any_rows(const std::string& path, int64_t cols) {
  return read(path, {-1, cols});
}

Result<Matrix> TensorReader::bank(const std::string& path, int64_t count, int64_t rows,
                                  int64_t cols) {
  return read(path, {count, rows, cols});
}

Result<std::vector<float>> TensorReader::read_floats(const std::string& name,
                                                     const TensorView& view) {
  if (!is_float(view.dtype)) {
    return invalid("tensor {} is {}, expected BF16, F16 or F32", name, dtype_name(view.dtype));
  }
  std::vector<float> values(static_cast<size_t>(view.elements()));
  const format::ByteRange bytes{view.data, view.bytes()};
  source_.want({&bytes, 1});
  for (size_t i = 0; i < values.size(); ++i) values[i] = element_as_float(view, i);
  source_.drop({&bytes, 1});
  return values;
}

const float* TensorReader::keep(std::vector<float> values) {
  return owner_.floats.emplace_back(std::move(values)).data();
}

Result<const TensorView*> TensorReader::find_vector(const std::string& name, int64_t length) {
  const TensorView* view = find(name);
  if (view == nullptr) return missing(name, source_.description());
  if (!shape_fits(*view, {length})) return misshapen(name, *view, expected_string({length}));
  return view;
}

Result<const float*> TensorReader::vector(const std::string& name, int64_t length) {
  ASSIGN_OR_RETURN(const TensorView* view, find_vector(name, length));
  ASSIGN_OR_RETURN(std::vector<float> values, read_floats(name, *view));
  return keep(std::move(values));
}

Result<const float*> TensorReader::gain(const std::string& name, int64_t length,
                                        NormConvention convention) {
  ASSIGN_OR_RETURN(const TensorView* view, find_vector(name, length));
  ASSIGN_OR_RETURN(std::vector<float> values, read_floats(name, *view));
  if (convention == NormConvention::kCentred) {
    for (float& value : values) value = 1.0F + value;
  }
  return keep(std::move(values));
}

Result<const float*> TensorReader::convolution(const std::string& name, int64_t channels,
                                               int64_t taps) {
  const TensorView* view = find(name);
  if (view == nullptr) return missing(name, source_.description());
  // The size of 1 makes both orders the same bytes.
  if (!shape_fits(*view, {channels, 1, taps}) && !shape_fits(*view, {channels, taps, 1})) {
    return misshapen(
        name, *view,
        expected_string({channels, 1, taps}) + " or " + expected_string({channels, taps, 1}));
  }
  ASSIGN_OR_RETURN(std::vector<float> values, read_floats(name, *view));
  return keep(std::move(values));
}

Result<double> TensorReader::mean(const std::string& name, int64_t length) {
  ASSIGN_OR_RETURN(const TensorView* view, find_vector(name, length));
  ASSIGN_OR_RETURN(const std::vector<float> values, read_floats(name, *view));
  double sum = 0;
  for (const float value : values) sum += static_cast<double>(value);
  return sum / static_cast<double>(length);
}

Status TensorReader::expect_integers(const std::string& name,
                                     const std::vector<int64_t>& expected) {
  const TensorView* view = find(name);
  if (view == nullptr) return {};
  if (view->dtype != DType::kI64) {
    return invalid("tensor {} is {}, expected I64", name, dtype_name(view->dtype));
  }
  const auto length = static_cast<int64_t>(expected.size());
  if (!shape_fits(*view, {length})) return misshapen(name, *view, expected_string({length}));
  const format::ByteRange bytes{view->data, view->bytes()};
  source_.want({&bytes, 1});
  for (size_t i = 0; i < expected.size(); ++i) {
    int64_t value;
    std::memcpy(&value, view->data + i * sizeof(value), sizeof(value));
    if (value != expected[i]) {
      return invalid(
          "tensor {} holds {} at {}, but the configuration gives {}: its n-gram table "
          "was made with other constants",
          name, value, i, expected[i]);
    }
  }
  source_.drop({&bytes, 1});
  return {};
}

}  // namespace flashlane::model
