// Loading: every accepted naming and storage of one model gives the same weights, and the bundled
// model gives those of its fixture.
#include "model/weights.h"

#include <gtest/gtest.h>

#include "format/checkpoint.h"
#include "tests/model/weights_fixture.h"
#include "tests/support/tensor_values.h"

namespace flashlane::model {
namespace {

using kernels::Matrix;

TEST(Weights, TinyFillsEveryStruct) {
  const Synthetic tiny = synthetic("tiny");
  auto loaded = load_weights(tiny.shape, tiny.source);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  const Weights& weights = **loaded;
  EXPECT_EQ(weights.norms, NormConvention::kCentred);
  EXPECT_EQ(weights.format, "bf16");
  EXPECT_TRUE(weights.has_mtp);
  ASSERT_EQ(weights.layers.size(), 8U);
  EXPECT_EQ(weights.layers[1].ple, 0);
  EXPECT_EQ(weights.layers[0].ple, -1);
  EXPECT_EQ(weights.layers[3].kind, LayerKind::kSparse);

  const kernels::MoeWeights& moe = weights.layers[0].moe;
  EXPECT_EQ(moe.gate.count, 16);
  EXPECT_EQ(moe.gate.rows, 64);
  EXPECT_EQ(moe.gate.stride_rows, 128);
  EXPECT_EQ(moe.top_experts, 4);
  std::vector<float> row(128);
  const std::string bank = std::string(kText) + "layers.0.mlp.experts.gate_up_proj";
  kernels::dequantize_row(moe.up, 3, 5, row.data());
  EXPECT_EQ(row[7], synthetic_value(bank, 0, 128, ((3 * 128) + 64 + 5) * 128 + 7));
  kernels::dequantize_row(moe.gate, 3, 5, row.data());
  EXPECT_EQ(row[7], synthetic_value(bank, 0, 128, ((3 * 128) + 5) * 128 + 7));

  const std::string norm = std::string(kText) + "layers.0.attn_hyper_connection.hc_norm.weight";
  EXPECT_EQ(weights.layers[0].attention_hyper.gain[9], 1.0F + synthetic_value(norm, 0, 512, 9));
  const std::string plain = std::string(kText) + "layers.0.linear_attn.norm.weight";
  EXPECT_EQ(weights.layers[0].delta.step.norm_gain[2], synthetic_value(plain, 0, 32, 2));
  EXPECT_EQ(weights.layers[0].mlp_hyper.eps, 1e-6F);
  EXPECT_EQ(weights.ple[0].inject.dilation, 3);
  EXPECT_EQ(weights.ple[0].table.heads, 4);
  EXPECT_TRUE(weights.mixer.inject.empty());
  EXPECT_FALSE(weights.mtp.layer.mlp_hyper.inject.empty());

  // Everything but the norms, convolutions, A_log and dt_bias is a matrix.
  size_t matrices = 0;
  for (const std::string& name : tiny.source->names()) {
    const TensorView& view = *tiny.source->find(name);
    if (view.rank >= 2 && !name.ends_with("conv1d.weight")) matrices += view.bytes();
  }
  EXPECT_EQ(weights.stored_bytes, matrices);
}

TEST(Weights, ConversionsGiveTheSameWeights) {
  const Synthetic tiny = synthetic("tiny");
  auto official = load_weights(tiny.shape, tiny.source);
  ASSERT_TRUE(official.ok());
  std::vector<MlxStyle> styles(5);
  styles[1].fold_trunk = styles[1].fold_mtp = false;
  styles[2].shard = "shards.";
  styles[3] = {"model.", "lm_head.weight", "mtp."};
  // A head from another conversion, with its own convention.
  styles[4].mtp = "mtp.";
  styles[4].fold_mtp = false;
  for (size_t i = 0; i < styles.size(); ++i) {
    SCOPED_TRACE(i);
    auto converted = load_weights(tiny.shape, as_mlx(styles[i]));
    ASSERT_TRUE(converted.ok()) << converted.error().message;
    EXPECT_EQ((*converted)->norms,
              styles[i].fold_trunk ? NormConvention::kFolded : NormConvention::kCentred);
    expect_same_weights(**official, **converted);
  }
}

TEST(Weights, StackedAndSplitQuantisedBanksAgree) {
  const Synthetic made = synthetic("tiny,layers=2,format=q4g32,ngram=stored");
  auto stacked = load_weights(made.shape, made.source);
  ASSERT_TRUE(stacked.ok()) << stacked.error().message;
  // Without the suffix on the codes, as some files have it.
  auto bare = std::make_shared<EditableSource>(*made.source);
  bare->rename("mtp.layers.0.mlp.experts.gate_up_proj.weight",
               "mtp.layers.0.mlp.experts.gate_up_proj");
  auto suffixless = load_weights(made.shape, bare);
  ASSERT_TRUE(suffixless.ok()) << suffixless.error().message;
  expect_same_weights(**stacked, **suffixless);

  // Split by hand: rows of codes, scales and biases go with their half.
  auto split = std::make_shared<EditableSource>(*made.source);
  for (const std::string& name : made.source->names()) {
    const size_t at = name.find("experts.gate_up_proj.");
    if (name.find("experts.down_proj.") != std::string::npos) {
      std::string renamed = name;
      split->rename(name, renamed.replace(renamed.find("experts.down"), 7, "switch_mlp"));
    }
    if (at == std::string::npos) continue;
    const EditableSource::Tensor both = split->take(name);
    const TensorView& view = both.view;
    const size_t half = both.bytes.size() / static_cast<size_t>(view.dim(0)) / 2;
    for (size_t part = 0; part < 2; ++part) {
      std::vector<std::byte> bytes;
      for (size_t e = 0; e < static_cast<size_t>(view.dim(0)); ++e) {
        const auto start = both.bytes.begin() + static_cast<ptrdiff_t>((2 * e + part) * half);
        bytes.insert(bytes.end(), start, start + static_cast<ptrdiff_t>(half));
      }
      split->put(name.substr(0, at) +
                     (part == 0 ? "switch_mlp.gate_proj." : "switch_mlp.up_proj.") +
                     name.substr(at + 21),
                 view.dtype, {view.dim(0), view.dim(1) / 2, view.dim(2)}, bytes);
    }
  }
  auto separate = load_weights(made.shape, split);
  ASSERT_TRUE(separate.ok()) << separate.error().message;
  expect_same_weights(**stacked, **separate);
  EXPECT_EQ((*stacked)->stored_bytes, (*separate)->stored_bytes);
}

TEST(Weights, TiedHeadIsTheEmbedding) {
  ModelShape tied = tiny_shape();
  tied.tie_embeddings = true;
  auto source = editable_tiny();
  source->take("lm_head.weight");
  auto loaded = load_weights(tied, source);
  auto untied = load_weights(tiny_shape(), editable_tiny());
  ASSERT_TRUE(loaded.ok() && untied.ok());
  EXPECT_EQ((*loaded)->head.data, (*loaded)->embedding.data);
  EXPECT_EQ((*untied)->stored_bytes - (*loaded)->stored_bytes, 512U * 128 * 2);
}

struct Loaded {
  std::shared_ptr<const format::TensorSource> source;
  std::unique_ptr<Weights> weights;
};

Loaded load_directory(const std::string& directory) {
  auto config = format::read_text_file(directory + "/config.json");
  CHECK(config.ok());
  auto shape = parse_shape(*config);
  CHECK(shape.ok());
  auto checkpoint = format::Checkpoint::open(directory);
  CHECK(checkpoint.ok());
  Loaded loaded;
  loaded.source = std::shared_ptr<const format::TensorSource>(std::move(checkpoint).value());
  auto weights = load_weights(*shape, loaded.source);
  EXPECT_TRUE(weights.ok()) << weights.error().message;
  if (weights.ok()) loaded.weights = std::move(weights).value();
  return loaded;
}

TEST(Weights, MicroModelLoads) {
  const Loaded loaded =
      load_directory(std::string(FLASHLANE_SOURCE_DIR) + "/tests/fixtures/micro_a");
  ASSERT_NE(loaded.weights, nullptr);
  const Weights& weights = *loaded.weights;
  EXPECT_EQ(weights.norms, NormConvention::kCentred);
  EXPECT_TRUE(weights.has_mtp);
  ASSERT_EQ(weights.ple.size(), 2U);
  EXPECT_EQ(weights.layers[0].ple, 0);
  EXPECT_EQ(weights.layers[3].ple, 1);
  EXPECT_EQ(weights.ple[1].table.shard_count, 3);
  EXPECT_EQ(weights.ple[1].table.shard_starts[3], 512);
  EXPECT_EQ(weights.layers[0].delta.step.output_gate, kernels::Gate::kSilu);
  EXPECT_EQ(weights.layers[0].moe.gate.rows, 32);
}

const Matrix& nano_matrix(const Weights& weights, const std::string& name) {
  if (name.ends_with("lm_head")) return weights.head;
  if (name.ends_with("embed_tokens")) return weights.embedding;
  if (name.ends_with("in_proj_qkv")) return weights.layers[0].delta.in_qkv;
  if (name.ends_with("shard_2")) return weights.ple[0].table.shards[2];
  if (name.ends_with("switch_mlp.down_proj")) return weights.layers[2].moe.down;
  if (name.ends_with("index_qk_proj")) return weights.layers[3].sparse.index;
  if (name.ends_with("q_proj")) return weights.layers[3].sparse.query;
  if (name.ends_with("input_mix_weight_up")) return weights.layers[5].mlp_hyper.up;
  EXPECT_TRUE(name.ends_with("mtp.fc_hidden")) << name;
  return weights.mtp.fuse.hidden_projection;
}

// Every dequantised row and every gain of the fixture, to the bit.
TEST(Weights, BundledModelEqualsItsFixture) {
  const std::string root(FLASHLANE_SOURCE_DIR);
  const Loaded loaded = load_directory(root + "/models/flash-next-nano-6bit");
  ASSERT_NE(loaded.weights, nullptr);
  const Weights& weights = *loaded.weights;
  EXPECT_EQ(weights.norms, NormConvention::kFolded);
  EXPECT_EQ(weights.format, "affine 6-bit group 64");
  EXPECT_EQ(weights.ple[0].table.shards[0].group, 32);
  // Theta 1e7 over 64 rotary dimensions: the values that spec 3.7 gives.
  const float* omega = weights.layers[3].sparse.attention.inverse_frequency;
  EXPECT_EQ(omega[0], 1.0F);
  EXPECT_FLOAT_EQ(omega[1], 0.604296386F);
  EXPECT_FLOAT_EQ(omega[2], 0.365174115F);
  EXPECT_FLOAT_EQ(omega[3], 0.220673412F);
  EXPECT_FLOAT_EQ(omega[31], 1.65481708e-07F);

  auto fixture =
      format::SafetensorsFile::open(root + "/tests/fixtures/nano/dequant_6bit.safetensors");
  ASSERT_TRUE(fixture.ok());
  int checked = 0;
  for (const std::string& name : (*fixture)->names()) {
    if (!name.ends_with(".values")) continue;
    const std::string path = name.substr(0, name.size() - 7);
    const TensorView& values = *(*fixture)->find(name);
    const auto rows = values_of<int32_t>(*(*fixture)->find(path + ".rows"));
    const auto all = values_of<float>(values);
    const Matrix& matrix = nano_matrix(weights, path);
    ASSERT_EQ(matrix.cols, values.dim(1)) << name;
    std::vector<float> row(static_cast<size_t>(matrix.cols));
    for (int64_t i = 0; i < values.dim(0); ++i) {
      kernels::dequantize_row(matrix, matrix.count > 1 ? 5 : 0, rows[static_cast<size_t>(i)],
                              row.data());
      const float* expected = all.data() + i * matrix.cols;
      EXPECT_EQ(row, std::vector<float>(expected, expected + matrix.cols)) << name << " " << i;
      ++checked;
    }
  }
  EXPECT_EQ(checked, 36);
  const std::vector<std::pair<std::string, const float*>> gains = {
      {"model.layers.0.attn_hyper_connection.hc_norm", weights.layers[0].attention_hyper.gain},
      {"model.layers.0.linear_attn.norm", weights.layers[0].delta.step.norm_gain},
      {"model.layers.3.self_attn.q_norm", weights.layers[3].sparse.attention.query_gain},
      {"mtp.pre_fc_norm_hidden", weights.mtp.fuse.hidden_gain}};
  for (const auto& [name, gain] : gains) {
    const TensorView* expected = (*fixture)->find("gain." + name + ".weight");
    ASSERT_NE(expected, nullptr) << name;
    EXPECT_EQ(std::vector<float>(gain, gain + expected->dim(0)), values_of<float>(*expected))
        << name;
  }
}

}  // namespace
}  // namespace flashlane::model
