// config.json → shape: the bundled, the micro and the real configuration, defaults, aliases, and
// every constraint of spec 1.3 as one line that names the key.
#include "model/shape.h"

#include <gtest/gtest.h>

#include <map>

#include "format/checkpoint.h"

namespace flashlane::model {
namespace {

using Keys = std::map<std::string, std::string>;  // key → raw JSON

std::string object_of(const Keys& keys) {
  std::string out;
  for (const auto& [key, value] : keys) {
    out += (out.empty() ? "{\"" : ",\"") + key + "\":" + value;
  }
  return out.empty() ? "{}" : out + "}";
}

// The real model's text keys (spec 1.1).
Keys true_keys() {
  std::string layers = "[";
  for (int i = 0; i < 12; ++i) {
    layers += R"("linear_attention","linear_attention","linear_attention","full_attention",)";
  }
  layers.back() = ']';
  return {
      {"model_type", "\"qwen4_exp_text\""},
      {"hidden_size", "2560"},
      {"num_hidden_layers", "48"},
      {"layer_types", layers},
      {"full_attention_interval", "4"},
      {"vocab_size", "248320"},
      {"tie_word_embeddings", "false"},
      {"rms_norm_eps", "1e-6"},
      {"hidden_act", "\"silu\""},
      {"max_position_embeddings", "262144"},
      {"num_attention_heads", "24"},
      {"num_key_value_heads", "2"},
      {"head_dim", "256"},
      {"attention_bias", "false"},
      {"attention_dropout", "0.0"},
      {"partial_rotary_factor", "0.25"},
      {"rope_parameters",
       R"({"rope_type":"default","rope_theta":10000000,"partial_rotary_factor":0.25,)"
       R"("mrope_interleaved":true,"mrope_section":[11,11,10]})"},
      {"indexer_n_heads", "4"},
      {"indexer_kv_heads", "1"},
      {"indexer_head_dim", "128"},
      {"indexer_budget", "2048"},
      {"indexer_compress_ratio", "4"},
      {"linear_num_key_heads", "16"},
      {"linear_num_value_heads", "48"},
      {"linear_key_head_dim", "128"},
      {"linear_value_head_dim", "128"},
      {"linear_conv_kernel_dim", "4"},
      {"output_gate_type", "\"sigmoid\""},
      {"mamba_ssm_dtype", "\"float32\""},
      {"num_experts", "512"},
      {"num_experts_per_tok", "10"},
      {"moe_intermediate_size", "640"},
      {"shared_expert_intermediate_size", "640"},
      {"hc_count", "4"},
      {"hc_lowrank", "320"},
      {"ple_layer_ids", "[2]"},
      {"ple_embed_dim", "2560"},
      {"ple_conv_kernel_size", "4"},
      {"ngram_size", "3"},
      {"heads_per_ngram", "8"},
      {"ngram_vocab_size_base", "20000000"},
      {"make_ngram_vocab_size_divisible_by", "128"},
      {"split_ngram_parts", "128"},
      {"bos_token_id", "248044"},
      {"eos_token_id", "248044"},
      {"pad_token_id", "null"},
      {"mtp_num_hidden_layers", "1"},
      {"mtp_use_dedicated_embeddings", "false"},
      {"mtp",
       R"({"hybrid":true,"layer_types":["full_attention"],)"
       R"("mtp_use_hidden_state_from_layer":null,"num_hidden_layers":1,"rope_theta":10000000})"},
      {"dtype", "\"bfloat16\""}};
}

std::string nested(const Keys& text, Keys top = {}) {
  top.emplace("model_type", "\"qwen4_exp\"");
  top.emplace("text_config", object_of(text));
  return object_of(top);
}

Keys with(Keys keys, const Keys& changes) {
  for (const auto& [key, value] : changes) {
    if (value.empty()) {
      keys.erase(key);
    } else {
      keys[key] = value;
    }
  }
  return keys;
}

ModelShape parsed(const std::string& json) {
  auto shape = parse_shape(json);
  if (!shape.ok()) {
    ADD_FAILURE() << shape.error().message;
    return {};
  }
  return *shape;
}

ModelShape known(std::string_view name) {
  auto shape = synthetic_shape(name, 0);
  if (!shape.ok()) ADD_FAILURE() << shape.error().message;
  return shape.ok() ? *shape : ModelShape();
}

TEST(Shape, ReadsTheRealConfiguration) {
  const ModelShape shape = parsed(nested(true_keys()));
  EXPECT_EQ(shape, known("true"));
  EXPECT_EQ(shape.wide(), 10240);
  EXPECT_EQ(shape.gdn_channels(), 10240);
  EXPECT_EQ(shape.rotary_dims, 64);
  EXPECT_EQ(shape.ngram_heads(), 16);
  EXPECT_EQ(shape.ngram_row_width(), 160);
  EXPECT_EQ(shape.block_budget(), 512);
  EXPECT_EQ(shape.sparse_layers(), 12);
  EXPECT_EQ(shape.delta_layers(), 36);
  EXPECT_EQ(shape.layer_kinds[3], LayerKind::kSparse);
  EXPECT_EQ(shape.layer_kinds[4], LayerKind::kDelta);
  EXPECT_TRUE(shape.is_ple_layer(1));
  EXPECT_FALSE(shape.is_ple_layer(2));
  EXPECT_EQ(shape.seed, 1234U);
  EXPECT_TRUE(shape.renormalize_experts);
  EXPECT_EQ(shape.quantization, QuantizationDefault());
}

TEST(Shape, ReadsTheSameFlat) {
  EXPECT_EQ(parsed(object_of(true_keys())), known("true"));
}

TEST(Shape, ReadsTheBundledModel) {
  const auto texts =
      format::read_checkpoint_texts(FLASHLANE_SOURCE_DIR "/models/flash-next-nano-6bit");
  ASSERT_TRUE(texts.ok()) << texts.error().message;
  ModelShape shape = parsed(texts->config_json);
  EXPECT_EQ(shape.quantization, (QuantizationDefault{6, 64}));
  shape.quantization = {};
  EXPECT_EQ(shape, known("nano"));
  EXPECT_EQ(shape.ngram_row_width(), 32);
  EXPECT_EQ(shape.block_budget(), 64);
}

TEST(Shape, ReadsTheMicroModel) {
  const auto text =
      format::read_text_file(FLASHLANE_SOURCE_DIR "/tests/fixtures/micro_a/config.json");
  ASSERT_TRUE(text.ok()) << text.error().message;
  ModelShape wanted;
  wanted.hidden = 64;
  wanted.layers = 6;
  for (int i = 0; i < 6; ++i) {
    wanted.layer_kinds.push_back(i % 3 == 2 ? LayerKind::kSparse : LayerKind::kDelta);
  }
  wanted.vocabulary = 320;
  wanted.norm_eps = 1e-5F;
  wanted.max_position = 4096;
  wanted.heads = 6;
  wanted.kv_heads = 2;
  wanted.head_dim = 32;
  wanted.rotary_dims = 16;
  wanted.rope_theta = 100000;
  wanted.index_heads = 3;
  wanted.index_dim = 32;
  wanted.index_budget = 32;
  wanted.index_block = 4;
  wanted.gdn_key_heads = 2;
  wanted.gdn_value_heads = 4;
  wanted.gdn_key_dim = 32;
  wanted.gdn_value_dim = 32;
  wanted.gdn_taps = 4;
  wanted.gdn_output_gate = kernels::Gate::kSilu;
  wanted.experts = 10;
  wanted.top_experts = 3;
  wanted.expert_width = 32;
  wanted.shared_width = 64;
  wanted.streams = 3;
  wanted.low_rank = 32;
  wanted.ple_layers = {0, 3};
  wanted.ple_width = 64;
  wanted.ple_taps = 3;
  wanted.ngram_size = 3;
  wanted.heads_per_ngram = 2;
  wanted.ngram_vocab_base = 101;
  wanted.ngram_row_multiple = 16;
  wanted.ngram_shards = 3;
  wanted.seed = 77;
  wanted.bos_token = 5;
  wanted.eos_token = 5;
  wanted.mtp_layers = 1;
  EXPECT_EQ(parsed(*text), wanted);
}

TEST(Shape, TinyIsTheConfigurationOfTheSpecification) {
  const ModelShape tiny = parsed(nested(
      with(true_keys(), {{"hidden_size", "128"},
                         {"num_hidden_layers", "8"},
                         {"layer_types", ""},
                         {"vocab_size", "512"},
                         {"max_position_embeddings", "4096"},
                         {"num_attention_heads", "4"},
                         {"head_dim", "64"},
                         {"rope_parameters",
                          R"({"rope_type":"default","rope_theta":1e7,"partial_rotary_factor":0.25,)"
                          R"("mrope_interleaved":true,"mrope_section":[4,2,2]})"},
                         {"indexer_head_dim", "32"},
                         {"indexer_budget", "16"},
                         {"linear_num_key_heads", "2"},
                         {"linear_num_value_heads", "6"},
                         {"linear_key_head_dim", "32"},
                         {"linear_value_head_dim", "32"},
                         {"num_experts", "16"},
                         {"num_experts_per_tok", "4"},
                         {"moe_intermediate_size", "64"},
                         {"shared_expert_intermediate_size", "64"},
                         {"norm_topk_prob", "true"},
                         {"hc_lowrank", "64"},
                         {"ple_embed_dim", "128"},
                         {"heads_per_ngram", "2"},
                         {"ngram_vocab_size_base", "1000"},
                         {"split_ngram_parts", "4"},
                         {"seed", "1234"},
                         {"bos_token_id", "500"},
                         {"eos_token_id", "500"}})));
  EXPECT_EQ(tiny, known("tiny"));
  EXPECT_EQ(tiny.gdn_channels(), 320);
  EXPECT_EQ(tiny.rotary_dims, 16);
  EXPECT_EQ(tiny.block_budget(), 4);
  EXPECT_EQ(tiny.ngram_row_width(), 32);
}

// What absent keys mean.
TEST(Shape, FillsInDefaults) {
  const ModelShape shape = parsed(nested(with(true_keys(), {{"layer_types", ""},
                                                            {"full_attention_interval", ""},
                                                            {"tie_word_embeddings", ""},
                                                            {"rms_norm_eps", ""},
                                                            {"output_gate_type", ""},
                                                            {"ple_embed_dim", ""},
                                                            {"split_ngram_parts", ""},
                                                            {"bos_token_id", "null"},
                                                            {"mtp_num_hidden_layers", ""},
                                                            {"mtp", ""}})));
  ModelShape wanted = known("true");
  wanted.gdn_output_gate = kernels::Gate::kSilu;  // that of hidden_act
  wanted.ngram_shards = 512;
  wanted.bos_token = -1;
  wanted.mtp_layers = 0;
  EXPECT_EQ(shape, wanted);
}

TEST(Shape, TakesIntervalTheDraftHeadAndRopeFromTheirOtherPlaces) {
  ModelShape wanted = known("true");
  EXPECT_EQ(parsed(nested(with(true_keys(), {{"mtp_num_hidden_layers", ""}}))), wanted);
  EXPECT_EQ(
      parsed(nested(with(true_keys(), {{"rope_parameters", ""}, {"rope_theta", "10000000.0"}}))),
      wanted);
  EXPECT_EQ(parsed(nested(with(true_keys(), {{"partial_rotary_factor", ""}}))), wanted);
  EXPECT_EQ(parsed(nested(with(true_keys(), {{"eos_token_id", "[248044,248046]"}}))), wanted);
  wanted.tie_embeddings = true;
  EXPECT_EQ(parsed(nested(with(true_keys(), {{"tie_word_embeddings", ""}}),
                          {{"tie_word_embeddings", "true"}})),
            wanted);
  wanted = known("true");
  wanted.layer_kinds.clear();
  for (int i = 0; i < 48; ++i) {
    wanted.layer_kinds.push_back(i % 6 == 5 ? LayerKind::kSparse : LayerKind::kDelta);
  }
  EXPECT_EQ(
      parsed(nested(with(true_keys(), {{"layer_types", ""}, {"full_attention_interval", "6"}}))),
      wanted);
}

// The list at the top level belongs to generation; the n-grams reset on the text level's token.
TEST(Shape, IgnoresTheOuterEndTokens) {
  EXPECT_EQ(parsed(nested(true_keys(), {{"eos_token_id", "[248046,248044]"}})).eos_token, 248044);
}

TEST(Shape, WithoutNgramKeysThereIsNoNgramLayer) {
  const Keys none = {{"ple_layer_ids", ""},        {"ple_embed_dim", ""},
                     {"ple_conv_kernel_size", ""}, {"ngram_size", ""},
                     {"heads_per_ngram", ""},      {"ngram_vocab_size_base", ""},
                     {"split_ngram_parts", ""},    {"make_ngram_vocab_size_divisible_by", ""},
                     {"eos_token_id", ""}};
  const ModelShape shape = parsed(nested(with(true_keys(), none)));
  EXPECT_TRUE(shape.ple_layers.empty());
  EXPECT_FALSE(shape.is_ple_layer(1));
  EXPECT_EQ(shape.eos_token, -1);
  EXPECT_TRUE(parsed(nested(with(true_keys(), {{"ple_layer_ids", "[]"}}))).ple_layers.empty());
  EXPECT_EQ(parsed(nested(with(true_keys(), {{"ple_layer_ids", "[6,2,6]"}}))).ple_layers,
            (std::vector<int>{1, 5}));
}

TEST(Shape, KnowsEveryNameOfASparseLayer) {
  for (const std::string name : {"full_attention", "qwen_sparse_attention",
                                 "deepseek_sparse_attention", "sparse_attention"}) {
    const ModelShape shape = parsed(nested(
        with(true_keys(),
             {{"num_hidden_layers", "3"},
              {"layer_types", "[\"linear_attention\",\"linear_attention\",\"" + name + "\"]"}})));
    EXPECT_EQ(shape.layer_kinds,
              (std::vector<LayerKind>{LayerKind::kDelta, LayerKind::kDelta, LayerKind::kSparse}));
  }
}

TEST(Shape, ReadsQuantization) {
  const std::string quantization =
      R"({"group_size":32,"bits":4,"mode":"affine","a.b":{"bits":8,"group_size":64},"c":false})";
  for (const std::string key : {"quantization", "quantization_config"}) {
    const ModelShape shape = parsed(nested(true_keys(), {{key, quantization}}));
    EXPECT_EQ(shape.quantization, (QuantizationDefault{4, 32}));
  }
}

struct Breach {
  Keys text;
  std::string message;  // after "config.json: "
};

void expect_refused(const std::string& json, const std::string& message) {
  const auto shape = parse_shape(json);
  ASSERT_FALSE(shape.ok()) << "not refused; expected: " << message;
  EXPECT_EQ(shape.error().message, message);
  EXPECT_EQ(shape.error().message.find('\n'), std::string::npos);
}

TEST(Shape, RefusesEveryBreachByName) {
  const std::string rope = R"("rope_theta":10000000,"partial_rotary_factor":0.25)";
  const std::vector<Breach> breaches = {
      {{{"hidden_size", "0"}}, "hidden_size is 0: must be an integer from 1 to 1048576"},
      {{{"hidden_size", "\"2560\""}},
       "hidden_size is \"2560\": must be an integer from 1 to 1048576"},
      {{{"hidden_size", "2560.5"}}, "hidden_size is 2560.5: must be an integer from 1 to 1048576"},
      {{{"hidden_size", ""}}, "hidden_size is missing: must be an integer from 1 to 1048576"},
      {{{"hidden_size", "99999999999"}},
       "hidden_size is 99999999999: must be an integer from 1 to 1048576"},
      {{{"vocab_size", "-5"}}, "vocab_size is -5: must be an integer from 1 to 16777216"},
      {{{"num_hidden_layers", "2000"}},
       "num_hidden_layers is 2000: must be an integer from 1 to 1024"},
      {{{"num_hidden_layers", "47"}},
       "layer_types is a list: has 48 entries: must have num_hidden_layers = 47"},
      {{{"layer_types", "[\"hybrid_indexed\"]"}},
       "layer_types is a list: holds \"hybrid_indexed\": must be linear_attention or one of "
       "full_attention, qwen_sparse_attention, deepseek_sparse_attention, sparse_attention"},
      {{{"layer_types", "[1]"}}, "layer_types holds 1: must be strings"},
      {{{"layer_types", "3"}}, "layer_types is 3: must be a list"},
      {{{"rms_norm_eps", "0"}}, "rms_norm_eps is 0: must be a number from 1e-20 to 1"},
      {{{"max_position_embeddings", "true"}},
       "max_position_embeddings is true: must be an integer from 1 to 16777216"},
      {{{"hidden_act", "\"gelu\""}}, "hidden_act is \"gelu\": must be silu"},
      {{{"tie_word_embeddings", "1"}}, "tie_word_embeddings is 1: must be true or false"},
      {{{"hc_count", "1"}}, "hc_count is 1: must be an integer from 2 to 64"},
      {{{"hc_lowrank", "0"}}, "hc_lowrank is 0: must be an integer from 1 to 1048576"},
      {{{"num_key_value_heads", "5"}},
       "num_key_value_heads is 5: must divide num_attention_heads = 24"},
      {{{"attention_bias", "true"}}, "attention_bias is true: not built"},
      {{{"indexer_budget", ""}},
       "indexer_budget is missing: must be an integer from 1 to 16777216"},
      {{{"indexer_n_heads", "0"}}, "indexer_n_heads is 0: must be an integer from 1 to 1024"},
      {{{"indexer_kv_heads", "2"}}, "indexer_kv_heads is 2: must be 1"},
      {{{"indexer_budget", "2050"}},
       "indexer_budget is 2050: must be a multiple of indexer_compress_ratio = 4"},
      {{{"indexer_head_dim", "32"}},
       "rope_parameters.partial_rotary_factor is 0.25: gives 64 rotary dimensions of head_dim 256: "
       "must be even, at least 2 and at most indexer_head_dim = 32"},
      {{{"head_dim", "20"}},
       "rope_parameters.partial_rotary_factor is 0.25: gives 5 rotary dimensions of head_dim 20: "
       "must be even, at least 2 and at most indexer_head_dim = 128"},
      {{{"partial_rotary_factor", "0.5"}},
       "partial_rotary_factor is 0.5: must equal rope_parameters.partial_rotary_factor = 0.25"},
      {{{"partial_rotary_factor", "0"}, {"rope_parameters", R"({"rope_theta":10000})"}},
       "partial_rotary_factor is 0: gives 0 rotary dimensions of head_dim 256: must be even, at "
       "least 2 and at most indexer_head_dim = 128"},
      {{{"rope_parameters", "{" + rope + R"(,"mrope_section":[11,11,11]})"}},
       "rope_parameters.mrope_section is a list: sums to 33: must sum to half of 64 rotary "
       "dimensions"},
      {{{"rope_parameters", "{" + rope + R"(,"rope_type":"yarn"})"}},
       "rope_parameters.rope_type is \"yarn\": must be default"},
      {{{"rope_scaling", R"({"type":"linear"})"}},
       "rope_scaling.type is \"linear\": must be default"},
      {{{"rope_parameters", ""}},
       "rope_theta is missing: must be a number from 1 to 1000000000000000"},
      {{{"rope_parameters", "[]"}}, "rope_parameters is a list: must be an object"},
      {{{"linear_num_value_heads", "40"}},
       "linear_num_value_heads is 40: must be a multiple of linear_num_key_heads = 16"},
      {{{"linear_conv_kernel_dim", "1"}},
       "linear_conv_kernel_dim is 1: must be an integer from 2 to 64"},
      {{{"output_gate_type", "\"tanh\""}}, "output_gate_type is \"tanh\": must be sigmoid or silu"},
      {{{"num_experts", "0"}}, "num_experts is 0: must be an integer from 1 to 16384"},
      {{{"num_experts_per_tok", "513"}},
       "num_experts_per_tok is 513: must be an integer from 1 to 512"},
      {{{"moe_intermediate_size", "0"}},
       "moe_intermediate_size is 0: must be an integer from 1 to 1048576"},
      {{{"shared_expert_intermediate_size", "0"}},
       "shared_expert_intermediate_size is 0: must be an integer from 1 to 1048576"},
      {{{"norm_topk_prob", "\"yes\""}}, "norm_topk_prob is \"yes\": must be true or false"},
      {{{"ple_layer_ids", "[0]"}}, "ple_layer_ids holds 0: must be integers from 1 to 48"},
      {{{"ple_layer_ids", "[49]"}}, "ple_layer_ids holds 49: must be integers from 1 to 48"},
      {{{"ple_layer_ids", "[4]"}},
       "ple_layer_ids is a list: holds 4: must name linear_attention layers"},
      {{{"ple_layer_ids", "2"}}, "ple_layer_ids is 2: must be a list"},
      {{{"ple_embed_dim", "2568"}},
       "ple_embed_dim is 2568: must be a multiple of (ngram_size - 1) * heads_per_ngram = "
       "16"},
      {{{"ple_embed_dim", ""}, {"ngram_size", "4"}},
       "ple_embed_dim is missing: hidden_size = 2560 must be a multiple of (ngram_size - 1) * "
       "heads_per_ngram = 24"},
      {{{"ple_embedding_dtype", "\"float8_e4m3fn\""}},
       "ple_embedding_dtype is \"float8_e4m3fn\": must be bfloat16 or float16 or float32"},
      {{{"ple_conv_kernel_size", "1"}},
       "ple_conv_kernel_size is 1: must be an integer from 2 to 64"},
      {{{"ngram_size", "1"}}, "ngram_size is 1: must be an integer from 2 to 16"},
      {{{"heads_per_ngram", "0"}}, "heads_per_ngram is 0: must be an integer from 1 to 64"},
      {{{"ngram_vocab_size_base", "3000000000"}},
       "ngram_vocab_size_base is 3000000000: must be an integer from 2 to 2147483647"},
      {{{"make_ngram_vocab_size_divisible_by", "0"}},
       "make_ngram_vocab_size_divisible_by is 0: must be an integer from 1 to 1048576"},
      {{{"split_ngram_parts", "0"}},
       "split_ngram_parts is 0: must be an integer from 1 to 1048576"},
      {{{"seed", "-1"}}, "seed is -1: must be an integer from 0 to 9223372036854775807"},
      {{{"eos_token_id", ""}}, "eos_token_id is missing: must be set: it resets the n-grams"},
      {{{"eos_token_id", "248320"}}, "eos_token_id is 248320: must be an integer from 0 to 248319"},
      {{{"eos_token_id", "[]"}}, "eos_token_id is a list: must hold at least one token id"},
      {{{"bos_token_id", "-1"}}, "bos_token_id is -1: must be an integer from 0 to 248319"},
      {{{"mtp_num_hidden_layers", "2"}},
       "mtp_num_hidden_layers is 2: must be an integer from 0 to 1"},
      {{{"mtp_use_dedicated_embeddings", "true"}},
       "mtp_use_dedicated_embeddings is true: not built"},
      {{{"mtp", R"({"rope_theta":10000})"}},
       "mtp.rope_theta is 10000: must equal the trunk's 10000000"},
      {{{"mtp", R"({"layer_types":["linear_attention"]})"}},
       "mtp.layer_types is a list: must be one full_attention"},
      {{{"mtp", R"({"mtp_use_hidden_state_from_layer":3})"}},
       "mtp.mtp_use_hidden_state_from_layer is 3: must be null"},
      {{{"model_type", "\"llama\""}},
       "model_type is \"llama\": must be qwen4_exp or qwen4_exp_text"},
  };
  for (const Breach& breach : breaches) {
    const std::string json = nested(with(true_keys(), breach.text));
    expect_refused(json, "config.json: text_config." + breach.message);
  }
}

TEST(Shape, RefusesAtTheTop) {
  const std::string other = "not built for the CPU: only MLX affine quantisation is";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[]", "config.json is a list: must be an object"},
      {"{}", "config.json: model_type is missing: must be a string"},
      {R"({"model_type":"qwen4_exp","text_config":3})",
       "config.json: text_config is 3: must be an object"},
      {nested(true_keys(), {{"model_type", "\"qwen3_next\""}}),
       "config.json: model_type is \"qwen3_next\": must be qwen4_exp or qwen4_exp_text"},
      {nested(true_keys(), {{"tie_word_embeddings", "true"}}),
       "config.json: text_config.tie_word_embeddings is false: must equal the one beside "
       "text_config"},
      {nested(true_keys(), {{"quantization_config", R"({"quant_method":"fp8"})"}}),
       "config.json: quantization_config.quant_method is \"fp8\": " + other},
      {nested(true_keys(), {{"quantization_config", R"({"quant_method":"modelopt"})"}}),
       "config.json: quantization_config.quant_method is \"modelopt\": " + other},
      {nested(with(true_keys(), {{"quantization_config", R"({"quant_method":"fp8"})"}})),
       "config.json: text_config.quantization_config.quant_method is \"fp8\": " + other},
      {nested(true_keys(), {{"quantization", R"({"bits":4,"group_size":16,"mode":"nvfp4"})"}}),
       "config.json: quantization.mode is \"nvfp4\": must be affine"},
      {nested(true_keys(), {{"quantization", "4"}}),
       "config.json: quantization is 4: must be an object"},
      {nested(true_keys(), {{"quantization", R"({"bits":7,"group_size":64})"}}),
       "config.json: quantization.bits is 7: must be 2, 3, 4, 5, 6 or 8"},
      {nested(true_keys(), {{"quantization", R"({"bits":4,"group_size":48})"}}),
       "config.json: quantization.group_size is 48: must be 32, 64 or 128"},
      {nested(true_keys(),
              {{"quantization", R"({"bits":4,"group_size":64,"x":{"mode":"mxfp4"}})"}}),
       "config.json: quantization.x.mode is \"mxfp4\": must be affine"},
      {R"({"model_type":"qwen4_exp","model_type":"qwen4_exp"})",
       "config.json: model_type is given twice"},
  };
  for (const auto& [json, message] : cases) expect_refused(json, message);
  for (const std::string json : {"", "{", "nonsense", "{\"model_type\":1e999}", "\xff"}) {
    const auto shape = parse_shape(json);
    ASSERT_FALSE(shape.ok());
    EXPECT_EQ(shape.error().message.find("config.json: not valid JSON: "), 0U) << json;
  }
  EXPECT_EQ(parse_shape(nested(true_keys(), {{"quantization_config", R"({"quant_method":"fp8"})"}}))
                .error()
                .code,
            ErrorCode::kUnsupported);
}

TEST(SyntheticShape, KeepsTheFirstLayers) {
  const auto shape = synthetic_shape("true", 5);
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(shape->layers, 5);
  EXPECT_EQ(shape->layer_kinds.size(), 5U);
  EXPECT_EQ(shape->sparse_layers(), 1);
  EXPECT_EQ(shape->delta_layers(), 4);
  EXPECT_EQ(shape->hidden, 2560);
  EXPECT_TRUE(synthetic_shape("true", 2).ok());
  EXPECT_EQ(*synthetic_shape("tiny", 8), known("tiny"));
}

TEST(SyntheticShape, RefusesByName) {
  EXPECT_EQ(synthetic_shape("huge", 0).error().message,
            "synthetic shape \"huge\" is not known: must be tiny, nano or true");
  EXPECT_EQ(synthetic_shape("true", 1).error().message,
            "layers=1 of synthetic shape true: must be from 2 (the n-gram layer) to 48");
  EXPECT_EQ(synthetic_shape("nano", 9).error().message,
            "layers=9 of synthetic shape nano: must be from 2 (the n-gram layer) to 8");
  EXPECT_FALSE(synthetic_shape("tiny", -1).ok());
}

}  // namespace
}  // namespace flashlane::model
