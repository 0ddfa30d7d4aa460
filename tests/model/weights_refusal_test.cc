// Loading what is not right: whatever is missing, misshapen, ambiguous or meant for another engine
// is named in one line, and nothing else is refused.
#include <gtest/gtest.h>

#include <cmath>

#include "model/weights.h"
#include "model/weights_names.h"
#include "tests/model/weights_fixture.h"

namespace flashlane::model {
namespace {

std::string error_of(const ModelShape& shape, std::shared_ptr<const format::TensorSource> source) {
  const auto loaded = load_weights(shape, std::move(source));
  return loaded.ok() ? "" : loaded.error().message;
}

bool is_hash_constant(const std::string& name) {
  return name.ends_with("layer_multipliers") || name.ends_with("ngram_heads_vocab_sizes") ||
         name.ends_with("ngram_heads_offsets");
}

TEST(WeightsRefusal, EveryMissingTensorIsNamed) {
  for (const char* format : {"", ",format=q4g32"}) {
    auto source = editable_tiny(format);
    for (const std::string& name : source->names()) {
      EditableSource::Tensor taken = source->take(name);
      const std::string message = error_of(tiny_shape(), source);
      if (is_hash_constant(name)) {
        EXPECT_EQ(message, "");
      } else {
        EXPECT_NE(message.find(name + " is missing"), std::string::npos)
            << "without " << name << ": " << message;
        EXPECT_EQ(message.find('\n'), std::string::npos);
      }
      source->put(name, taken.view.dtype,
                  {taken.view.shape.begin(), taken.view.shape.begin() + taken.view.rank},
                  taken.bytes);
    }
    EXPECT_EQ(error_of(tiny_shape(), source), "");
  }
}

TEST(WeightsRefusal, EveryMissingTensorOfAConversionIsNamed) {
  auto source = as_mlx({});
  for (const std::string& name : source->names()) {
    if (is_hash_constant(name)) continue;
    EditableSource::Tensor taken = source->take(name);
    const std::string message = error_of(tiny_shape(), source);
    // Without its embedding no scheme is recognised; all that were looked for are named.
    EXPECT_NE(message.find(name), std::string::npos) << "without " << name << ": " << message;
    source->put(name, taken.view.dtype,
                {taken.view.shape.begin(), taken.view.shape.begin() + taken.view.rank},
                taken.bytes);
  }
}

TEST(WeightsRefusal, EveryMisshapenTensorIsNamed) {
  for (const char* format : {"", ",format=q6g64"}) {
    auto source = editable_tiny(format);
    for (const std::string& name : source->names()) {
      TensorView& view = source->at(name).view;
      const TensorView good = view;
      // A dimension too many, then one row less than expected, then a type that can't be.
      view.rank = good.rank + 1;
      view.shape[static_cast<size_t>(good.rank)] = 1;
      std::string message = error_of(tiny_shape(), source);
      EXPECT_NE(message.find("tensor " + name + " "), std::string::npos) << name << ": " << message;
      EXPECT_NE(message.find("expected"), std::string::npos) << message;

      view = good;
      --view.shape[0];
      message = error_of(tiny_shape(), source);
      // A short n-gram shard shows as rows missing at the table's end, or by its scales.
      const bool shard = name.find("shard_") != std::string::npos;
      EXPECT_NE(message.find(shard ? "ngram_embedding.shard_" : name), std::string::npos)
          << name << ": " << message;

      view = good;
      view.dtype = DType::kI32;
      message = error_of(tiny_shape(), source);
      EXPECT_NE(message.find("tensor " + name + " is I32"), std::string::npos)
          << name << ": " << message;
      view = good;
    }
    EXPECT_EQ(error_of(tiny_shape(), source), "");
  }
}

TEST(WeightsRefusal, QuantisedModulesAreChecked) {
  auto source = editable_tiny(",format=q4g32");
  const auto message_with = [&](const std::string& name, std::vector<int64_t> shape) {
    TensorView& view = source->at(name).view;
    const TensorView good = view;
    std::copy(shape.begin(), shape.end(), view.shape.begin());
    std::string message = error_of(tiny_shape(), source);
    view = good;
    return message;
  };
  EXPECT_EQ(message_with("lm_head.weight", {512, 7}),
            "tensor lm_head.weight has shape [512, 7]: 7 words for 128 columns are not 2, 3, 4, 5, "
            "6 or 8 bits each");
  EXPECT_NE(message_with("lm_head.weight", {512, 28}).find("28 words for 128"), std::string::npos);
  EXPECT_NE(message_with("lm_head.weight", {512, 0}).find("0 words"), std::string::npos);
  EXPECT_NE(
      message_with("lm_head.scales", {512, 8}).find("tensor lm_head.scales has shape [512, 8]"),
      std::string::npos);
  EXPECT_NE(message_with("lm_head.scales", {512, 3}).find("tensor lm_head.scales"),
            std::string::npos);
  EXPECT_NE(message_with("lm_head.biases", {512, 2})
                .find("tensor lm_head.biases is BF16 [512, 2], "
                      "expected BF16 [512, 4]"),
            std::string::npos);
  source->at("lm_head.biases").view.dtype = DType::kF16;
  EXPECT_NE(error_of(tiny_shape(), source).find("tensor lm_head.biases is F16"), std::string::npos);
}

// 79 scales for 2560 columns: a group of 32, if the remainder were dropped.
TEST(WeightsRefusal, ScalesMustDivideTheColumns) {
  const auto error_with = [](int64_t scales) {
    EditableSource source;
    source.put("m.weight", DType::kU32, {1, 320}, std::vector<std::byte>(320 * 4));
    for (const char* name : {"m.scales", "m.biases"}) {
      source.put(name, DType::kBf16, {1, scales},
                 std::vector<std::byte>(static_cast<size_t>(scales) * 2));
    }
    Weights owner;
    const auto matrix = TensorReader(source, owner).matrix("m", 1, 2560);
    return matrix.ok() ? "" : matrix.error().message;
  };
  EXPECT_EQ(error_with(80), "");
  EXPECT_NE(error_with(79).find("tensor m.scales has shape [1, 79], expected one scale per 32"),
            std::string::npos);
}

TEST(WeightsRefusal, OtherEnginesFormatsAreRefusedByName) {
  const std::string path = std::string(kText) + "layers.0.mlp.";
  const auto message_with = [&](const std::string& suffix, DType dtype, const std::string& extra) {
    auto source = editable_tiny();
    source->take(path + "experts.gate_up_proj");
    source->take(path + "experts.down_proj");
    source->put(path + suffix, dtype, {1, 1}, std::vector<std::byte>(dtype_bytes(dtype)));
    source->put(path + extra, DType::kBf16, {1, 1}, std::vector<std::byte>(2));
    const auto loaded = load_weights(tiny_shape(), source);
    EXPECT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.error().code, ErrorCode::kUnsupported);
    return loaded.error().message;
  };
  const std::string single = "experts.0.gate_proj.weight";
  EXPECT_NE(message_with(single, DType::kF8E4M3, "experts.0.gate_proj.weight_scale_inv")
                .find("FP8 experts stored one by one are served on CUDA only"),
            std::string::npos);
  EXPECT_NE(message_with(single, DType::kU8, "experts.0.gate_proj.weight_scale").find("NVFP4"),
            std::string::npos);

  auto table = editable_tiny();
  const std::string scale =
      std::string(kText) + "layers.1.ple.ple_embedding.ngram_embedding.weight_scale";
  table->put(scale, DType::kBf16, {1}, std::vector<std::byte>(2));
  EXPECT_EQ(error_of(tiny_shape(), table),
            "tensor " + scale + ": an FP8 n-gram table is served on CUDA only");

  auto head = editable_tiny();
  head->put("lm_head.weight", DType::kF8E4M3, {512, 128}, std::vector<std::byte>(512 * 128));
  EXPECT_NE(error_of(tiny_shape(), head).find("lm_head.weight is F8_E4M3: FP8"), std::string::npos);
}

TEST(WeightsRefusal, TablesMadeWithOtherConstantsAreRefused) {
  auto source = editable_tiny();
  const std::string path = std::string(kText) + "layers.1.ple.ple_embedding.";
  for (const char* part : {"layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"}) {
    std::byte& low = source->at(path + part).bytes[8];
    low ^= std::byte{1};
    const std::string message = error_of(tiny_shape(), source);
    EXPECT_NE(message.find("tensor " + path + part + " holds"), std::string::npos) << message;
    EXPECT_NE(message.find(" at 1, "), std::string::npos) << message;
    low ^= std::byte{1};
  }
  // One shard more than the table has rows for.
  source->put(path + "ngram_embedding.shard_4.weight", DType::kBf16, {1, 32},
              std::vector<std::byte>(64));
  EXPECT_NE(error_of(tiny_shape(), source).find("shard_4.weight is one too many"),
            std::string::npos);
  // Uneven shards are as good as even ones, as long as they add up.
  source->take(path + "ngram_embedding.shard_4.weight");
  EditableSource::Tensor last = source->take(path + "ngram_embedding.shard_3.weight");
  const std::vector<std::byte> front(last.bytes.begin(), last.bytes.begin() + 64);
  const std::vector<std::byte> rest(last.bytes.begin() + 64, last.bytes.end());
  source->put(path + "ngram_embedding.shard_3.weight", DType::kBf16, {1, 32}, front);
  source->put(path + "ngram_embedding.shard_4.weight", DType::kBf16, {1023, 32}, rest);
  const Synthetic tiny = synthetic("tiny");
  auto computed = load_weights(tiny.shape, tiny.source);
  auto uneven = load_weights(tiny_shape(), source);
  ASSERT_TRUE(computed.ok() && uneven.ok());
  expect_same_weights(**computed, **uneven);
}

TEST(WeightsRefusal, MtpHeadMayBeAbsentButNotPartly) {
  auto source = editable_tiny();
  for (const std::string& name : source->names()) {
    if (name.starts_with("mtp.")) source->take(name);
  }
  auto loaded = load_weights(tiny_shape(), source);
  ASSERT_TRUE(loaded.ok()) << loaded.error().message;
  EXPECT_FALSE((*loaded)->has_mtp);
  EXPECT_EQ((*loaded)->format, "bf16, without the MTP head that the configuration names");

  ModelShape without = tiny_shape();
  without.mtp_layers = 0;
  auto ignored = load_weights(without, editable_tiny());
  ASSERT_TRUE(ignored.ok());
  EXPECT_FALSE((*ignored)->has_mtp);
  EXPECT_EQ((*ignored)->format, "bf16");
  ModelShape two = tiny_shape();
  two.mtp_layers = 2;
  EXPECT_EQ(error_of(two, editable_tiny()), "mtp_num_hidden_layers is 2, expected 0 or 1");
}

TEST(WeightsRefusal, ExtraTensorsAreIgnored) {
  auto source = editable_tiny();
  source->put("model.visual.patch_embed.proj.bias", DType::kBf16, {4}, std::vector<std::byte>(8));
  EXPECT_EQ(error_of(tiny_shape(), source), "");
}

TEST(Norms, RuleOfTheSpecification) {
  const auto verdict = [](std::vector<double> means) {
    return detect_norm_convention(means, "here");
  };
  EXPECT_EQ(*verdict({0.22, 0.2, 0.25}), NormConvention::kCentred);
  EXPECT_EQ(*verdict({1.15, 1.2, 1.22}), NormConvention::kFolded);
  EXPECT_EQ(*verdict({-0.5}), NormConvention::kCentred);
  EXPECT_EQ(*verdict({0.75}), NormConvention::kFolded);
  EXPECT_EQ(*verdict({1.5}), NormConvention::kFolded);
  // Exactly 90 % and 10 %.
  EXPECT_EQ(*verdict({0, 1, 1, 1, 1, 1, 1, 1, 1, 1}), NormConvention::kFolded);
  EXPECT_EQ(*verdict({1, 0, 0, 0, 0, 0, 0, 0, 0, 0}), NormConvention::kCentred);
  for (const std::vector<double>& means :
       std::vector<std::vector<double>>{{},
                                        {0.5},
                                        {0.26},
                                        {0.74},
                                        {1.51},
                                        {-0.51},
                                        {0, 1},
                                        {NAN},
                                        {1, NAN},
                                        {INFINITY},
                                        {0, 0, 1, 1, 1, 1, 1, 1, 1, 1},
                                        {1, 1, 0, 0, 0, 0, 0, 0, 0, 0}}) {
    const auto refused = verdict(means);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().message.rfind("here: ", 0), 0U) << refused.error().message;
  }
}

TEST(Norms, AmbiguousFileIsRefused) {
  auto source = editable_tiny();
  for (int layer = 0; layer < 4; ++layer) {
    const std::string name = std::string(kText) + "layers." + std::to_string(layer) +
                             ".attn_hyper_connection.hc_norm.weight";
    source->put_floats(name, {512}, std::vector<float>(512, 1.0F));
  }
  EXPECT_NE(error_of(tiny_shape(), source)
                .find("edited: ambiguous norms: 4 of 8 hc_norm means exceed 0.5"),
            std::string::npos);
}

}  // namespace
}  // namespace flashlane::model
