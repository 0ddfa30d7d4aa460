// Sources whose tensors a test may rename, reshape, rewrite or remove, and the comparison of two
// loaded models by what kernels would read: dequantised rows and f32 vectors, to the bit.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "format/tensor_source.h"
#include "kernels/matrix.h"
#include "kernels/ngram_row.h"
#include "model/synth.h"
#include "model/weights.h"

namespace flashlane::model {

class EditableSource final : public format::TensorSource {
 public:
  struct Tensor {
    std::vector<std::byte> bytes;
    TensorView view;
  };

  EditableSource() = default;
  // A copy of every tensor of `source`.
  explicit EditableSource(const format::TensorSource& source) {
    for (const std::string& name : source.names()) {
      const TensorView& view = *source.find(name);
      const format::ByteRange bytes{view.data, view.bytes()};
      source.want({&bytes, 1});
      put(name, view.dtype, {view.shape.begin(), view.shape.begin() + view.rank},
          {view.data, view.data + view.bytes()});
    }
  }

  void put(const std::string& name, DType dtype, const std::vector<int64_t>& shape,
           std::vector<std::byte> bytes) {
    Tensor& tensor = tensors_[name];
    tensor.bytes = std::move(bytes);
    tensor.view = TensorView{};
    tensor.view.dtype = dtype;
    tensor.view.rank = static_cast<int>(shape.size());
    std::copy(shape.begin(), shape.end(), tensor.view.shape.begin());
    tensor.view.data = tensor.bytes.data();
    EXPECT_EQ(tensor.view.bytes(), tensor.bytes.size()) << name;
  }
  void put_floats(const std::string& name, const std::vector<int64_t>& shape,
                  const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    put(name, DType::kF32, shape, std::move(bytes));
  }
  // The tensor taken out of the source.
  Tensor take(const std::string& name) {
    auto node = tensors_.extract(name);
    EXPECT_FALSE(node.empty()) << name;
    return node.empty() ? Tensor{} : std::move(node.mapped());
  }
  void rename(const std::string& from, const std::string& to) {
    Tensor tensor = take(from);
    tensors_[to] = std::move(tensor);
  }
  Tensor& at(const std::string& name) { return tensors_.at(name); }

  const TensorView* find(std::string_view name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second.view;
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& entry : tensors_) all.push_back(entry.first);
    return all;
  }
  std::string description() const override { return "edited"; }

 private:
  std::map<std::string, Tensor, std::less<>> tensors_;
};

// The values of a BF16 tensor.
inline std::vector<float> bf16_values(const EditableSource::Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.view.elements()));
  for (size_t i = 0; i < values.size(); ++i)
    values[i] = bf16_to_float(tensor.view.as<uint16_t>()[i]);
  return values;
}

struct Synthetic {
  ModelShape shape;
  std::shared_ptr<const format::TensorSource> source;
};

inline Synthetic synthetic(const std::string& text, int threads = 2) {
  auto spec = parse_synth(text);
  CHECK(spec.ok());
  auto shape = synthetic_shape(spec->shape, spec->layers);
  CHECK(shape.ok());
  auto source = make_synthetic(*spec, *shape, threads);
  CHECK(source.ok());
  // Tests read what they like; a source makes its bytes when they are wanted.
  for (const std::string& name : (*source)->names()) {
    const TensorView& view = *(*source)->find(name);
    const format::ByteRange bytes{view.data, view.bytes()};
    (*source)->want({&bytes, 1});
  }
  return {*shape, *source};
}

// The tiny model with its n-gram table as tensors, so that every one of them can be edited.
inline std::shared_ptr<EditableSource> editable_tiny(const std::string& more = "") {
  return std::make_shared<EditableSource>(*synthetic("tiny,ngram=stored" + more).source);
}
inline ModelShape tiny_shape() {
  return *synthetic_shape("tiny", 0);
}

inline constexpr const char* kText = "model.language_model.";

inline bool is_centred_norm(const std::string& name) {
  return !name.ends_with("linear_attn.norm.weight") && name.find("norm") != std::string::npos;
}

// Splits a stacked BF16 bank [E, 2I, H] into gate and up.
inline void split_bank(EditableSource& source, const std::string& path) {
  const EditableSource::Tensor both = source.take(path + "experts.gate_up_proj");
  const int64_t experts = both.view.dim(0);
  const int64_t width = both.view.dim(1) / 2;
  const int64_t hidden = both.view.dim(2);
  const auto half = static_cast<size_t>(width * hidden) * 2;
  std::vector<std::byte> gate;
  std::vector<std::byte> up;
  for (int64_t e = 0; e < experts; ++e) {
    const std::byte* expert = both.view.data + static_cast<size_t>(e) * 2 * half;
    gate.insert(gate.end(), expert, expert + half);
    up.insert(up.end(), expert + half, expert + 2 * half);
  }
  source.put(path + "switch_mlp.gate_proj.weight", DType::kBf16, {experts, width, hidden}, gate);
  source.put(path + "switch_mlp.up_proj.weight", DType::kBf16, {experts, width, hidden}, up);
  source.rename(path + "experts.down_proj", path + "switch_mlp.down_proj.weight");
}

struct MlxStyle {
  std::string text = "language_model.model.";
  std::string head = "language_model.lm_head.weight";
  std::string mtp = "language_model.mtp.";
  bool fold_trunk = true;
  bool fold_mtp = true;
  std::string shard = "shard_";
};

// The tiny model as a conversion would store it; folded gains as F32, where 1 + w is exact.
inline std::shared_ptr<EditableSource> as_mlx(const MlxStyle& style) {
  auto source = editable_tiny();
  for (const std::string& name : source->names()) {
    const bool mtp = name.starts_with("mtp.");
    if (is_centred_norm(name) && (mtp ? style.fold_mtp : style.fold_trunk)) {
      const EditableSource::Tensor norm = source->take(name);
      std::vector<float> gains = bf16_values(norm);
      for (float& gain : gains) gain = 1.0F + gain;
      source->put_floats(name, {norm.view.dim(0)}, gains);
    } else if (name.ends_with("conv1d.weight")) {
      EditableSource::Tensor conv = source->take(name);
      source->put(name, conv.view.dtype, {conv.view.dim(0), conv.view.dim(2), 1}, conv.bytes);
    } else if (name.ends_with("experts.gate_up_proj")) {
      split_bank(*source, name.substr(0, name.size() - std::string("experts.gate_up_proj").size()));
    }
  }
  for (const std::string& name : source->names()) {
    std::string renamed = name;
    if (name == "lm_head.weight") renamed = style.head;
    if (name.starts_with(kText)) renamed = style.text + name.substr(std::string(kText).size());
    if (name.starts_with("mtp.")) renamed = style.mtp + name.substr(4);
    if (const size_t at = renamed.find("shard_"); at != std::string::npos) {
      renamed.replace(at, 6, style.shard);
    }
    if (renamed != name) source->rename(name, renamed);
  }
  return source;
}

// "" when both hold the same values, else where they differ.
inline std::string matrix_difference(const kernels::Matrix& a, const kernels::Matrix& b) {
  if (a.rows != b.rows || a.cols != b.cols || a.count != b.count) return "sizes differ";
  std::vector<float> left(static_cast<size_t>(a.cols));
  std::vector<float> right(left.size());
  for (int64_t index = 0; index < a.count; ++index) {
    for (int64_t row = 0; row < a.rows; ++row) {
      kernels::dequantize_row(a, index, row, left.data());
      kernels::dequantize_row(b, index, row, right.data());
      if (std::memcmp(left.data(), right.data(), left.size() * sizeof(float)) != 0) {
        return fmt::format("matrix {} of the bank, row {}", index, row);
      }
    }
  }
  return "";
}

// Every vector of a layer that kernels read, with its length.
inline std::vector<std::pair<const float*, int>> layer_vectors(const ModelShape& shape,
                                                               const LayerWeights& layer) {
  std::vector<std::pair<const float*, int>> all = {{layer.attention_hyper.gain, shape.wide()},
                                                   {layer.mlp_hyper.gain, shape.wide()}};
  if (layer.kind == LayerKind::kDelta) {
    const kernels::GdnWeights& step = layer.delta.step;
    all.insert(all.end(), {{step.conv, step.channels() * step.taps},
                           {step.a_log, step.value_heads},
                           {step.dt_bias, step.value_heads},
                           {step.norm_gain, step.value_dim}});
  } else {
    const kernels::AttentionWeights& attention = layer.sparse.attention;
    all.insert(all.end(), {{attention.query_gain, attention.head_dim},
                           {attention.key_gain, attention.head_dim},
                           {attention.index_query_gain, attention.index_dim},
                           {attention.index_key_gain, attention.index_dim},
                           {attention.inverse_frequency, attention.rotary_dims / 2}});
  }
  return all;
}

inline std::vector<std::pair<const float*, int>> all_vectors(const Weights& weights) {
  const ModelShape& shape = weights.shape;
  std::vector<std::pair<const float*, int>> all = {{weights.mixer.gain, shape.wide()}};
  for (const LayerWeights& layer : weights.layers) {
    const auto more = layer_vectors(shape, layer);
    all.insert(all.end(), more.begin(), more.end());
  }
  for (const PleLayer& ple : weights.ple) {
    all.insert(all.end(), {{ple.inject.key_gain, shape.wide()},
                           {ple.inject.query_gain, shape.wide()},
                           {ple.inject.conv_gain, shape.wide()},
                           {ple.inject.conv, shape.wide() * shape.ple_taps}});
  }
  if (!weights.has_mtp) return all;
  const auto more = layer_vectors(shape, weights.mtp.layer);
  all.insert(all.end(), more.begin(), more.end());
  all.insert(all.end(), {{weights.mtp.fuse.embedding_gain, shape.hidden},
                         {weights.mtp.fuse.hidden_gain, shape.wide()},
                         {weights.mtp.mixer.gain, shape.wide()}});
  return all;
}

// Expects that kernels would read the same from both, n-gram rows included.
inline void expect_same_weights(Weights& a, Weights& b) {
  const auto left = kernel_matrices(a);
  const auto right = kernel_matrices(b);
  ASSERT_EQ(left.size(), right.size());
  EXPECT_EQ(matrix_difference(a.embedding, b.embedding), "");
  for (size_t i = 0; i < left.size(); ++i) {
    EXPECT_EQ(matrix_difference(*left[i], *right[i]), "") << "kernel matrix " << i;
  }
  const auto left_vectors = all_vectors(a);
  const auto right_vectors = all_vectors(b);
  ASSERT_EQ(left_vectors.size(), right_vectors.size());
  for (size_t i = 0; i < left_vectors.size(); ++i) {
    const auto [values, length] = left_vectors[i];
    ASSERT_EQ(length, right_vectors[i].second);
    EXPECT_EQ(std::vector<float>(values, values + length),
              std::vector<float>(right_vectors[i].first, right_vectors[i].first + length))
        << "vector " << i;
  }
  ASSERT_EQ(a.ple.size(), b.ple.size());
  for (size_t i = 0; i < a.ple.size(); ++i) {
    const auto width = static_cast<size_t>(a.ple[i].table.row_width);
    ASSERT_EQ(a.ple[i].hash.table_rows, b.ple[i].hash.table_rows);
    std::vector<float> one(width);
    std::vector<float> other(width);
    for (int64_t row = 0; row < a.ple[i].hash.table_rows; ++row) {
      kernels::ngram_table_row(a.ple[i].table, row, one.data());
      kernels::ngram_table_row(b.ple[i].table, row, other.data());
      ASSERT_EQ(one, other) << "n-gram row " << row;
    }
  }
}

}  // namespace flashlane::model
