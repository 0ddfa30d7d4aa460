// Synthetic weights: the specification's own numbers, independence from threads and storage, every
// format's layout, and what a specification may say.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/keyed_random.h"
#include "model/synth.h"
#include "model/synth_plan.h"
#include "model/synth_values.h"
#include "model/synthetic_source.h"
#include "tests/model/weights_fixture.h"

namespace flashlane::model {
namespace {

constexpr const char* kEmbedding = "model.language_model.embed_tokens.weight";

std::vector<float> first_values(const format::TensorSource& source, const std::string& name,
                                size_t count) {
  const TensorView* view = source.find(name);
  if (view == nullptr) return {};
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) values.push_back(bf16_to_float(view->as<uint16_t>()[i]));
  return values;
}

TEST(Synth, HoldsTheNumbersOfTheSpecification) {
  EXPECT_EQ(fnv1a64(kEmbedding), 0xddb796cdcc616f74ULL);
  const Synthetic tiny = synthetic("tiny,format=bf16");
  EXPECT_EQ(first_values(*tiny.source, kEmbedding, 4),
            (std::vector<float>{-0.98828125F, 0.90234375F, 0.185546875F, -0.375F}));
  EXPECT_EQ(first_values(*tiny.source, "model.language_model.layers.0.linear_attn.A_log", 6),
            (std::vector<float>{0.8671875F, -0.9453125F, -0.275390625F, 0.96484375F, 0.44140625F,
                                -0.80859375F}));
}

TEST(Synth, BulkDrawsFollowTheFormulaToTheBit) {
  const ValueRule rules[] = {{1, 0}, {0.25F, 1}, {0.0625F, 0}};
  for (const ValueRule& rule : rules) {
    for (const size_t count : {1, 7, 8, 31, 1000}) {
      for (const uint64_t first : {uint64_t{0}, uint64_t{5}, (uint64_t{1} << 33) + 3}) {
        const uint64_t hash = fnv1a64("any") ^ count;
        std::vector<float> values(count);
        draw_values(hash, rule, first, values);
        for (size_t i = 0; i < count; ++i) {
          const auto bits = static_cast<float>(splitmix64(hash + first + i) >> 40);
          const float r = bits * 0x1.0p-23F - 1.0F;
          ASSERT_EQ(values[i], round_to_bf16(rule.scale * r + rule.offset)) << count << " " << i;
        }
      }
    }
  }
}

TEST(Synth, RowsAreMadeWhenWantedAndGoWhenDropped) {
  const SynthSpec spec = *parse_synth("nano,format=q4g32");
  const ModelShape shape = *synthetic_shape("nano", 0);
  const auto source = *make_synthetic(spec, shape, 2);
  const std::string path = "model.language_model.layers.0.mlp.experts.gate_up_proj";
  const TensorView& codes = *source->find(path + ".weight");  // [16, 256, 48] words
  const TensorView& scales = *source->find(path + ".scales");
  const Synthetic whole = synthetic("nano,format=q4g32");
  const auto equal = [&](size_t first, size_t rows) {
    const size_t row_bytes = 48 * 4;
    const size_t scale_bytes = 12 * 2;
    const auto same = [&](const TensorView& a, const std::string& name, size_t bytes) {
      const TensorView& b = *whole.source->find(path + name);
      return std::memcmp(a.data + first * bytes, b.data + first * bytes, rows * bytes) == 0;
    };
    return same(codes, ".weight", row_bytes) && same(scales, ".scales", scale_bytes);
  };
  EXPECT_FALSE(equal(0, 1)) << "made before it was wanted";
  const size_t row_bytes = 48 * 4;
  const format::ByteRange middle{codes.data + 256 * row_bytes, 300 * row_bytes};
  source->want({&middle, 1});
  EXPECT_TRUE(equal(256, 300));
  EXPECT_FALSE(equal(0, 4096));
  const format::ByteRange all{codes.data, codes.bytes()};
  source->want({&all, 1});
  EXPECT_TRUE(equal(0, 4096));
  source->drop({&all, 1});
  EXPECT_FALSE(equal(1000, 100)) << "not given back";
  source->want({&middle, 1});
  EXPECT_TRUE(equal(256, 300));
}

TEST(Synth, ScalesFollowTheName) {
  // The largest of many values comes close to the scale and never exceeds it.
  const struct {
    const char* name;
    int64_t cols;
    float scale, offset;
  } cases[] = {
      {"lm_head.weight", 128, 0.125F, 0},
      {"lm_head.weight", 192, 0.125F, 0},
      {"lm_head.weight", 256, 0.0625F, 0},
      {"lm_head.weight", 512, 0.0625F, 0},
      {"model.language_model.layers.0.mlp.experts.down_proj", 64, 0.125F, 0},
      {"model.language_model.layers.0.mlp.gate.weight", 128, 0.5F, 0},
      {"model.language_model.layers.0.mlp.shared_expert_gate.weight", 128, 0.125F, 0},
      {"model.language_model.layers.0.linear_attn.conv1d.weight", 4, 0.5F, 0},
      {"model.language_model.layers.1.ple.conv1d.weight", 4, 0.5F, 0},
      {"model.language_model.layers.0.linear_attn.norm.weight", 32, 0.25F, 1},
      {"model.language_model.layers.0.attn_hyper_connection.hc_norm.weight", 512, 0.25F, 0},
      {"model.language_model.layers.1.ple.norm_key.weight", 512, 0.25F, 0},
      {"model.language_model.layers.3.self_attn.indexer.q_layernorm.weight", 32, 0.25F, 0},
      {"mtp.pre_fc_norm_hidden.weight", 512, 0.25F, 0},
      {"model.language_model.layers.0.linear_attn.dt_bias", 6, 1, 0},
      {"model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_3.weight", 32, 1, 0},
  };
  for (const auto& c : cases) {
    float largest = 0;
    for (uint64_t i = 0; i < 4096; ++i) {
      largest = std::max(largest, std::abs(synthetic_value(c.name, 0, c.cols, i) - c.offset));
    }
    EXPECT_LE(largest, c.scale) << c.name;
    EXPECT_GT(largest, c.scale * 0.99F) << c.name;
  }
}

TEST(Synth, ValuesDependOnSeedAndNeverOnThreads) {
  for (const char* text : {"tiny,ngram=stored", "tiny,ngram=stored,format=q4g32"}) {
    const Synthetic one = synthetic(text, 1);
    const Synthetic three = synthetic(text, 3);
    ASSERT_EQ(one.source->names(), three.source->names());
    for (const std::string& name : one.source->names()) {
      const TensorView& a = *one.source->find(name);
      const TensorView& b = *three.source->find(name);
      ASSERT_EQ(a.bytes(), b.bytes());
      EXPECT_EQ(std::memcmp(a.data, b.data, a.bytes()), 0) << name;
    }
  }
  const Synthetic seeded = synthetic("tiny,seed=7");
  EXPECT_EQ(first_values(*seeded.source, kEmbedding, 1)[0], synthetic_value(kEmbedding, 7, 128, 0));
  EXPECT_NE(first_values(*seeded.source, kEmbedding, 4),
            first_values(*synthetic("tiny").source, kEmbedding, 4));
}

TEST(Synth, ComputedTableEqualsTheStoredOne) {
  for (const char* format : {"bf16", "q2g32", "q4g32", "q6g64", "q8g64"}) {
    const std::string text = std::string("tiny,format=") + format;
    const Synthetic computed = synthetic(text);
    const Synthetic stored = synthetic(text + ",ngram=stored");
    auto a = load_weights(computed.shape, computed.source);
    auto b = load_weights(stored.shape, stored.source);
    ASSERT_TRUE(a.ok() && b.ok());
    EXPECT_TRUE((*a)->ple[0].table.computed);
    EXPECT_FALSE((*b)->ple[0].table.computed);
    EXPECT_EQ((*a)->ngram_bytes, 0U);
    EXPECT_GT((*b)->ngram_bytes, 0U);
    expect_same_weights(**a, **b);
  }
}

TEST(Synth, EveryFormatStoresWhatItSays) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) {
      const Synthetic made = synthetic(fmt::format("tiny,layers=4,format=q{}g{}", bits, group));
      auto weights = load_weights(made.shape, made.source);
      ASSERT_TRUE(weights.ok()) << weights.error().message;
      EXPECT_EQ((*weights)->format, fmt::format("affine {}-bit group {}", bits, group));
      const kernels::Matrix& head = (*weights)->head;  // [512, 128]
      EXPECT_EQ(head.layout, kernels::Layout::kAffine);
      EXPECT_EQ(head.bits, bits);
      EXPECT_EQ(head.group, group);
      // 64 columns: no group of 128 divides them.
      EXPECT_EQ((*weights)->layers[0].moe.down.group, std::min(group, 64));
      EXPECT_EQ((*weights)->layers[0].moe.router.layout, kernels::Layout::kBf16);
      EXPECT_EQ((*weights)->ple[0].table.group, 32);

      // The quantiser keeps the larger edge exactly and may cut the other by a step; in the mean a
      // value is a quarter of a step off.
      const double step = 0.25 / ((1 << bits) - 1);
      double sum = 0;
      int count = 0;
      std::vector<float> row(128);
      for (int64_t r = 0; r < head.rows; r += 37) {
        kernels::dequantize_row(head, 0, r, row.data());
        for (size_t k = 0; k < row.size(); ++k, ++count) {
          const float value =
              synthetic_value("lm_head.weight", 0, 128, static_cast<uint64_t>(r) * 128 + k);
          ASSERT_NEAR(row[k], value, 1.5 * step + 0.001) << bits << " " << r << " " << k;
          sum += std::abs(row[k] - value);
        }
      }
      EXPECT_LT(sum / count, 0.35 * step + 0.0002) << bits;
    }
  }
}

TEST(Synth, BytesAreThoseOfTheTensors) {
  for (const char* text : {"tiny", "tiny,format=q4g32", "nano,format=q6g64", "tiny,ngram=stored"}) {
    const Synthetic made = synthetic(text);
    size_t sum = 0;
    for (const std::string& name : made.source->names()) {
      const TensorView& view = *made.source->find(name);
      if (view.dtype != DType::kI64) sum += view.bytes();
    }
    EXPECT_EQ(*synth_bytes(*parse_synth(text)), sum) << text;
  }
}

TEST(Synth, TrueShapeHasTheTrueParameters) {
  const SynthSpec full = *parse_synth("true,ngram=stored");
  // Spec 2.1: trunk, MTP head and n-gram table, two bytes each.
  constexpr size_t kTrunkAndHead = 125'743'653'760ULL + 2'607'150'848ULL;
  constexpr size_t kTable = 51'200'245'760ULL;
  EXPECT_EQ(*synth_bytes(full), 2 * (kTrunkAndHead + kTable));
  EXPECT_EQ(*synth_bytes(*parse_synth("true")), 2 * kTrunkAndHead);
}

TEST(Synth, TinyHasTheOfficialNames) {
  const Synthetic tiny = synthetic("tiny,ngram=stored");
  // 8 layers: 16 + 16·2 … counted as spec 2.1 does: per layer 8 hyper-connection and 7 expert
  // tensors, 9 for DeltaNet (6 layers) or 9 for attention (2); 3 + 2 outside; PLE 6 + shards 4 +
  // 3 constants; MTP 31.
  EXPECT_EQ(tiny.source->names().size(), 8U * (8 + 7 + 9) + 3 + 2 + 6 + 4 + 3 + 31);
  for (const char* name :
       {"lm_head.weight", "model.language_model.layers.7.self_attn.indexer.index_qk_proj.weight",
        "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_3.weight",
        "model.language_model.layers.1.ple.ple_embedding.layer_multipliers",
        "mtp.layers.0.mlp.experts.gate_up_proj", "mtp.pre_fc_norm_embedding.weight"}) {
    EXPECT_NE(tiny.source->find(name), nullptr) << name;
  }
  EXPECT_EQ(tiny.source->find("lm_head.bias"), nullptr);
}

TEST(SynthParse, ReadsEveryKey) {
  const SynthSpec spec =
      *parse_synth("true,layers=6,format=q6g64,ngram=stored,seed=18446744073709551615");
  EXPECT_EQ(spec.shape, "true");
  EXPECT_EQ(spec.layers, 6);
  EXPECT_EQ(spec.bits, 6);
  EXPECT_EQ(spec.group, 64);
  EXPECT_TRUE(spec.store_ngram);
  EXPECT_EQ(spec.seed, UINT64_MAX);
  const SynthSpec plain = *parse_synth("tiny");
  EXPECT_EQ(plain.layers, 0);
  EXPECT_EQ(plain.bits, 0);
  EXPECT_FALSE(plain.store_ngram);
  EXPECT_EQ(plain.seed, 0U);
}

TEST(SynthParse, RefusesTheRestByName) {
  const struct {
    const char* text;
    const char* said;
  } cases[] = {
      {"", "synth shape \"\""},
      {"big", "synth shape \"big\" is unknown: it may be tiny, nano or true"},
      {"tiny,", "synth key \"\""},
      {"tiny,layer=2", "synth key \"layer\""},
      {"tiny,layers", "synth layers="},
      {"tiny,layers=", "synth layers="},
      {"tiny,layers=0", "synth layers=0"},
      {"tiny,layers=-1", "synth layers=-1"},
      {"tiny,layers=2x", "synth layers=2x"},
      {"tiny,layers=99999999999", "synth layers=99999999999"},
      {"tiny,layers=4,layers=4", "synth key \"layers\" is given twice"},
      {"tiny,format=q7g64", "synth format=q7g64: it may be bf16, q4g32"},
      {"tiny,format=q4g48", "synth format=q4g48"},
      {"tiny,format=q4", "synth format=q4"},
      {"tiny,format=qg", "synth format=qg"},
      {"tiny,format=g32", "synth format=g32"},
      {"tiny,format=", "synth format="},
      {"tiny,format=fp8", "synth format=fp8: this format is served on CUDA only"},
      {"tiny,format=nvfp4", "synth format=nvfp4: this format is served on CUDA only"},
      {"tiny,ngram=computed", "synth ngram=computed"},
      {"tiny,seed=", "synth seed="},
      {"tiny,seed=-1", "synth seed=-1"},
      {"tiny,seed=18446744073709551616", "synth seed=18446744073709551616"},
      {"tiny,seed=0x10", "synth seed=0x10"},
  };
  for (const auto& c : cases) {
    const auto parsed = parse_synth(c.text);
    ASSERT_FALSE(parsed.ok()) << c.text;
    EXPECT_EQ(parsed.error().message.rfind(c.said, 0), 0U)
        << c.text << ": " << parsed.error().message;
  }
  EXPECT_EQ(parse_synth("tiny,format=fp8").error().code, ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace flashlane::model
