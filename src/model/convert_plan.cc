// What becomes of each tensor. Matrices are recognised by their bytes: the loader has checked them
// and points into the source, so a tensor is a matrix when one of the loader's begins where it
// does.
#include <algorithm>
#include <map>
#include <set>

#include "model/convert.h"
#include "tensor/affine.h"

namespace flashlane::model {
namespace {

using format::TensorSpec;
using kernels::Layout;
using kernels::Matrix;

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kScales = ".scales";
constexpr std::string_view kBiases = ".biases";

bool is_float(DType dtype) {
  return dtype == DType::kBf16 || dtype == DType::kF16 || dtype == DType::kF32;
}

Layout plain_layout(DType dtype) {
  return dtype == DType::kF32 ? Layout::kF32 : dtype == DType::kF16 ? Layout::kF16 : Layout::kBf16;
}

std::string without(std::string name, std::string_view suffix) {
  if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
  return name;
}

std::vector<int64_t> shape_of(const TensorView& view) {
  return {view.shape.begin(), view.shape.begin() + view.rank};
}

std::vector<int64_t> with_last(std::vector<int64_t> shape, int64_t last) {
  shape.back() = last;
  return shape;
}

// The plain tensor of a module: official expert banks have no suffix.
std::string plain_name(const std::string& path) {
  const bool official_bank = path.find(".mlp.experts.") != std::string::npos;
  return official_bank ? path : path + std::string(kWeight);
}

class Planner {
 public:
  Planner(Weights& weights, const WeightFormat& format) : source_(*weights.source) {
    conversion_.format = format;
    find_matrices(weights);
    find_modules();
  }

  Result<Conversion> plan() {
    for (const std::string& name : source_.names()) {
      if (!parts_.contains(name)) RETURN_IF_ERROR(add(name, *source_.find(name)));
    }
    finish();
    return std::move(conversion_);
  }

 private:
  struct Role {
    const Matrix* matrix = nullptr;
    bool is_router = false;
  };

  void find_matrices(Weights& weights);
  void find_modules();
  Status add(const std::string& name, const TensorView& view);
  void add_matrix(const std::string& name, const TensorView& view, const Role& role);
  void add_copy(const std::string& name, const TensorView& view, const std::string& module,
                bool is_matrix);
  void add_conversion(ConversionUnit::Kind kind, const Matrix& source, const TensorView& view,
                      std::vector<TensorSpec> tensors, bool is_matrix);
  void add_exception(const std::string& path, const QuantizationDefault& affine) {
    if (!(affine == conversion_.format.affine)) conversion_.exceptions.push_back({path, affine});
  }
  void finish();

  const format::TensorSource& source_;
  std::map<const std::byte*, Role> roles_;      // by where the tensor begins
  std::map<std::string, std::string> modules_;  // weight tensor → path of a quantised module
  std::set<std::string, std::less<>> parts_;    // scales and biases of these
  Conversion conversion_;
};

void Planner::find_matrices(Weights& weights) {
  for (const Matrix* matrix : kernel_matrices(weights)) roles_[matrix->data] = {matrix, false};
  roles_[weights.embedding.data] = {&weights.embedding, false};
  for (const auto& shards : weights.shard_matrices) {
    for (const Matrix& shard : shards) roles_[shard.data] = {&shard, false};
  }
  for (LayerWeights& layer : weights.layers) roles_[layer.moe.router.data].is_router = true;
  if (weights.has_mtp) roles_[weights.mtp.layer.moe.router.data].is_router = true;
}

void Planner::find_modules() {
  for (const std::string& name : source_.names()) {
    if (!name.ends_with(kScales)) continue;
    const std::string path = without(name, kScales);
    for (const std::string& weight : {path + std::string(kWeight), path}) {
      const TensorView* view = source_.find(weight);
      if (view == nullptr || view->dtype != DType::kU32) continue;
      modules_[weight] = path;
      parts_.insert({name, path + std::string(kBiases)});
      break;
    }
  }
}

Status Planner::add(const std::string& name, const TensorView& view) {
  const WeightFormat& format = conversion_.format;
  const auto role = roles_.find(view.data);
  if (view.elements() > 0 && role != roles_.end()) {
    add_matrix(name, view, role->second);
    return {};
  }
  const auto module = modules_.find(name);
  if (module != modules_.end()) {
    if (!format.is_affine()) {
      return error(ErrorCode::kUnsupported,
                   "tensor {} is quantised and no part of the text model, so it can't become {}",
                   name, format.name());
    }
    add_copy(name, view, module->second, false);
    conversion_.exceptions.push_back({module->second, {}});
    return {};
  }
  if (format.is_affine() || !is_float(view.dtype) || view.dtype == format.dtype) {
    add_copy(name, view, "", false);
    return {};
  }
  Matrix source;
  source.layout = plain_layout(view.dtype);
  source.cols = view.rank == 0 ? 1 : view.dim(-1);
  source.data = view.data;
  add_conversion(ConversionUnit::Kind::kCast, source, view, {{name, format.dtype, shape_of(view)}},
                 false);
  return {};
}

void Planner::add_matrix(const std::string& name, const TensorView& view, const Role& role) {
  const WeightFormat& format = conversion_.format;
  const Matrix& matrix = *role.matrix;
  const bool is_affine = matrix.layout == Layout::kAffine;
  const std::string path = is_affine ? modules_.at(name) : without(name, kWeight);
  if (!format.is_affine()) {
    if (!is_affine && matrix.layout == plain_layout(format.dtype)) {
      add_copy(name, view, "", true);
      return;
    }
    const std::string plain = is_affine ? plain_name(path) : name;
    add_conversion(ConversionUnit::Kind::kCast, matrix, view,
                   {{plain, format.dtype, with_last(shape_of(view), matrix.cols)}}, true);
    return;
  }
  const QuantizationDefault had = {matrix.bits, matrix.group};
  const QuantizationDefault wanted = {format.affine.bits,
                                      affine_group_that_divides(format.affine.group, matrix.cols)};
  if (role.is_router || wanted.group == 0 || (is_affine && had == wanted)) {
    add_copy(name, view, is_affine ? path : "", true);
    if (is_affine) add_exception(path, had);
    return;
  }
  const std::vector<int64_t> shape = shape_of(view);
  const std::vector<int64_t> groups = with_last(shape, matrix.cols / wanted.group);
  add_conversion(
      ConversionUnit::Kind::kQuantise, matrix, view,
      {{path + std::string(kWeight), DType::kU32, with_last(shape, matrix.cols * wanted.bits / 32)},
       {path + std::string(kScales), DType::kBf16, groups},
       {path + std::string(kBiases), DType::kBf16, groups}},
      true);
  conversion_.units.back().format.affine = wanted;
  add_exception(path, wanted);
}

// `module`: the path of a quantised module, whose scales and biases go along; else empty.
void Planner::add_copy(const std::string& name, const TensorView& view, const std::string& module,
                       bool is_matrix) {
  ConversionUnit unit;
  unit.is_matrix = is_matrix;
  const auto take = [&](const std::string& tensor, const TensorView& bytes) {
    unit.tensors.push_back({tensor, bytes.dtype, shape_of(bytes)});
    unit.bytes.push_back(bytes);
  };
  take(name, view);
  for (const std::string_view suffix : {kScales, kBiases}) {
    if (module.empty()) break;
    const TensorView* part = source_.find(module + std::string(suffix));
    if (part != nullptr) take(module + std::string(suffix), *part);
  }
  conversion_.units.push_back(std::move(unit));
}

void Planner::add_conversion(ConversionUnit::Kind kind, const Matrix& source,
                             const TensorView& view, std::vector<TensorSpec> tensors,
                             bool is_matrix) {
  ConversionUnit unit;
  unit.kind = kind;
  unit.is_matrix = is_matrix;
  unit.tensors = std::move(tensors);
  unit.format = conversion_.format;
  // A bank as one tall matrix, whatever the loader made of it.
  unit.source = source;
  unit.source.count = 1;
  unit.source.rows = view.rank == 0 ? 1 : view.elements() / std::max<int64_t>(1, view.dim(-1));
  unit.source.stride_rows = unit.source.rows;
  unit.source.packed = -1;
  conversion_.units.push_back(std::move(unit));
}

void Planner::finish() {
  const auto first_name = [](const ConversionUnit& unit) -> const std::string& {
    return unit.tensors.front().name;
  };
  std::sort(conversion_.units.begin(), conversion_.units.end(),
            [&](const ConversionUnit& a, const ConversionUnit& b) {
              return first_name(a) < first_name(b);
            });
  for (const ConversionUnit& unit : conversion_.units) {
    for (const TensorSpec& tensor : unit.tensors) conversion_.bytes += spec_bytes(tensor);
    if (!unit.is_matrix) continue;
    ++(unit.kind == ConversionUnit::Kind::kCopy ? conversion_.matrices_kept
                                                : conversion_.matrices_converted);
  }
}

}  // namespace

Result<Conversion> plan_conversion(Weights& weights, const WeightFormat& format) {
  return Planner(weights, format).plan();
}

}  // namespace flashlane::model
