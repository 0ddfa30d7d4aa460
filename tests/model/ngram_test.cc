// Hashed n-gram ids: the published vectors of the real and the tiny model, the integer buffers and
// traced rows that checkpoints carry, and any split of a history against a plain walk.
#include "model/ngram.h"

#include <gtest/gtest.h>

#include "base/keyed_random.h"
#include "format/checkpoint.h"
#include "format/safetensors.h"
#include "tests/support/tensor_values.h"

namespace flashlane::model {
namespace {

using Rows = std::vector<int64_t>;

ModelShape shape_of(std::string_view name) {
  return synthetic_shape(name, 0).value();
}

Rows rows_of(const NgramHash& hash, const std::vector<int32_t>& history, size_t first) {
  Rows out((history.size() - first) * hash.moduli.size());
  hash.rows(history, first, out);
  return out;
}

// The rows of one position.
Rows at(const NgramHash& hash, const std::vector<int32_t>& history, size_t position) {
  const auto end = history.begin() + static_cast<std::ptrdiff_t>(position) + 1;
  return rows_of(hash, std::vector<int32_t>(history.begin(), end), position);
}

TEST(Ngram, HasTheRealConstants) {
  const NgramHash hash = make_ngram_hash(shape_of("true"), 0);
  EXPECT_EQ(hash.multipliers, (Rows{23703573157769, 20109073645365, 8052911324071}));
  EXPECT_EQ(hash.moduli,
            (Rows{20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
                  20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171}));
  EXPECT_EQ(hash.offsets, (Rows{0, 20000003, 40000026, 60000059, 80000106, 100000165, 120000228,
                                140000297, 160000374, 180000455, 200000548, 220000655, 240000802,
                                260000955, 280001114, 300001275}));
  EXPECT_EQ(hash.table_rows, 320001536);
  EXPECT_EQ(hash.heads(), 16);
  EXPECT_EQ(hash.ngram_size, 3);
  EXPECT_EQ(hash.heads_per_ngram, 8);
  EXPECT_EQ(hash.reset_token, 248044);
}

TEST(Ngram, GivesTheRealRows) {
  const NgramHash hash = make_ngram_hash(shape_of("true"), 0);
  const std::vector<int32_t> tokens = {9707,   11, 1879,   248044, 314, 2001,
                                       248319, 0,  248044, 248044, 77};
  EXPECT_EQ(at(hash, tokens, 0), (Rows{16410909, 39682429, 55103279, 60931720, 87006904, 116506179,
                                       131512017, 152932897, 169641436, 182022480, 209277433,
                                       237891023, 256841529, 277007269, 290665954, 300984276}));
  EXPECT_EQ(at(hash, tokens, 1), (Rows{18158303, 36390029, 45652312, 70783524, 98191154, 114024957,
                                       127804916, 159566246, 175132467, 192583600, 217919476,
                                       237199054, 259336807, 261799367, 289359313, 307699687}));
  EXPECT_EQ(at(hash, tokens, 4), (Rows{8260854, 33106041, 59264976, 60072089, 98935463, 112687005,
                                       134061582, 143955837, 178749106, 199051338, 215607266,
                                       231149282, 254184348, 278446456, 293473221, 310651623}));
  EXPECT_EQ(at(hash, tokens, 10), (Rows{16611476, 29512305, 49704971, 66165983, 89881645, 105251896,
                                        139055756, 152191225, 178497739, 192880870, 205859405,
                                        228292887, 258357841, 269648670, 287018169, 315908561}));
  EXPECT_EQ(at(hash, {123, 456, 789}, 2),
            (Rows{2491316, 28761835, 51917996, 68359989, 88189145, 101470006, 131395511, 157970613,
                  166816437, 197523925, 206707499, 235951520, 251357128, 266767674, 285239060,
                  317603747}));
}

TEST(Ngram, HasTheTinyConstantsAndRows) {
  const NgramHash hash = make_ngram_hash(shape_of("tiny"), 0);
  EXPECT_EQ(hash.multipliers, (Rows{4295158889763781, 17440218147737327, 1270917961434445}));
  EXPECT_EQ(hash.moduli, (Rows{1009, 1013, 1019, 1021}));
  EXPECT_EQ(hash.offsets, (Rows{0, 1009, 2022, 3041}));
  EXPECT_EQ(hash.table_rows, 4096);
  const std::vector<int32_t> tokens = {424, 10, 236, 292, 203, 446, 420, 500, 201, 1};
  EXPECT_EQ(at(hash, tokens, 0), (Rows{978, 2016, 2034, 3433}));
  EXPECT_EQ(at(hash, tokens, 1), (Rows{792, 1235, 2905, 3861}));
  EXPECT_EQ(at(hash, tokens, 2), (Rows{78, 1313, 2376, 3149}));
  EXPECT_EQ(at(hash, tokens, 7), (Rows{817, 1909, 2531, 3507}));
  EXPECT_EQ(at(hash, tokens, 8), (Rows{872, 1865, 2449, 3175}));
  EXPECT_EQ(at(hash, tokens, 9), (Rows{496, 1646, 2163, 3071}));
}

Rows integers(const format::TensorSource& source, const std::string& name) {
  const TensorView* view = source.find(name);
  if (view == nullptr || view->dtype != DType::kI64) {
    ADD_FAILURE() << name;
    return {};
  }
  return values_of<int64_t>(*view);
}

void expect_buffers(const std::string& directory, const std::vector<std::string>& prefixes) {
  const auto checkpoint = format::Checkpoint::open(directory);
  const auto texts = format::read_checkpoint_texts(directory);
  ASSERT_TRUE(checkpoint.ok() && texts.ok());
  const auto shape = parse_shape(texts->config_json);
  ASSERT_TRUE(shape.ok()) << shape.error().message;
  ASSERT_EQ(shape->ple_layers.size(), prefixes.size());
  for (size_t rank = 0; rank < prefixes.size(); ++rank) {
    const NgramHash hash = make_ngram_hash(*shape, static_cast<int>(rank));
    const std::string prefix = prefixes[rank] + ".ple.ple_embedding.";
    EXPECT_EQ(hash.multipliers, integers(**checkpoint, prefix + "layer_multipliers"));
    EXPECT_EQ(hash.moduli, integers(**checkpoint, prefix + "ngram_heads_vocab_sizes"));
    EXPECT_EQ(hash.offsets, integers(**checkpoint, prefix + "ngram_heads_offsets"));
  }
}

TEST(Ngram, EqualsTheBuffersOfCheckpoints) {
  expect_buffers(FLASHLANE_SOURCE_DIR "/models/flash-next-nano-6bit",
                 {"language_model.model.layers.1"});
  expect_buffers(FLASHLANE_SOURCE_DIR "/tests/fixtures/micro_a",
                 {"model.language_model.layers.0", "model.language_model.layers.3"});
}

void expect_traced_rows(const std::string& trace_path, const ModelShape& shape) {
  const auto trace =
      format::SafetensorsFile::open(FLASHLANE_SOURCE_DIR "/tests/fixtures/" + trace_path);
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  const TensorView* tokens = (*trace)->find("tokens");
  const TensorView* positions = (*trace)->find("positions");
  ASSERT_TRUE(tokens != nullptr && positions != nullptr);
  const std::vector<int32_t> history = values_of<int32_t>(*tokens);
  const std::vector<int32_t> places = values_of<int32_t>(*positions);
  for (size_t rank = 0; rank < shape.ple_layers.size(); ++rank) {
    const NgramHash hash = make_ngram_hash(shape, static_cast<int>(rank));
    const TensorView* rows =
        (*trace)->find("layer" + std::to_string(shape.ple_layers[rank]) + "_ngram_rows");
    ASSERT_NE(rows, nullptr);
    const std::vector<int32_t> traced = values_of<int32_t>(*rows);
    const int32_t* wanted = traced.data();
    for (size_t i = 0; i < places.size(); ++i, wanted += hash.heads()) {
      const auto position = static_cast<size_t>(places[i]);
      EXPECT_EQ(at(hash, history, position), Rows(wanted, wanted + hash.heads())) << position;
    }
  }
}

TEST(Ngram, EqualsTracedRows) {
  const auto micro =
      format::read_text_file(FLASHLANE_SOURCE_DIR "/tests/fixtures/micro_a/config.json");
  ASSERT_TRUE(micro.ok());
  expect_traced_rows("micro_a/trace_t60.safetensors", parse_shape(*micro).value());
  expect_traced_rows("nano/trace_short.safetensors", shape_of("nano"));
  expect_traced_rows("nano/trace_long700.safetensors", shape_of("nano"));
}

// The rule of spec 3.4 as it is written: c_s is the token s back unless it or one between is the
// reset token or before the start.
int64_t plain_row(const NgramHash& hash, const std::vector<int32_t>& history, size_t position,
                  size_t head) {
  const size_t order = head / static_cast<size_t>(hash.heads_per_ngram) + 2;
  uint64_t mixed = 0;
  for (size_t back = 0; back < order; ++back) {
    bool reset = back > position;
    for (size_t s = 1; s <= back && !reset; ++s) {
      reset = history[position - s] == hash.reset_token;
    }
    const int32_t token = reset ? hash.reset_token : history[position - back];
    mixed ^= static_cast<uint64_t>(token) * static_cast<uint64_t>(hash.multipliers[back]);
  }
  return static_cast<int64_t>(mixed % static_cast<uint64_t>(hash.moduli[head])) +
         hash.offsets[head];
}

TEST(Ngram, GivesTheSameRowsForEverySplit) {
  ModelShape shape = shape_of("tiny");
  for (const int ngram_size : {2, 3, 5}) {
    shape.ngram_size = ngram_size;
    const NgramHash hash = make_ngram_hash(shape, 0);
    std::vector<int32_t> history;
    for (uint64_t i = 0; i < 40; ++i) {
      // Every third token or so is the reset token, twice in a row at times.
      const uint64_t bits = keyed_bits(5, i, static_cast<uint64_t>(ngram_size));
      history.push_back(bits % 3 == 0 ? 500 : static_cast<int32_t>(bits >> 32 & 511));
    }
    Rows wanted;
    for (size_t position = 0; position < history.size(); ++position) {
      for (size_t head = 0; head < hash.moduli.size(); ++head) {
        wanted.push_back(plain_row(hash, history, position, head));
        ASSERT_GE(wanted.back(), hash.offsets[head]);
        ASSERT_LT(wanted.back(), hash.offsets[head] + hash.moduli[head]);
      }
    }
    for (size_t first = 0; first <= history.size(); ++first) {
      const auto skipped = static_cast<std::ptrdiff_t>(first * hash.moduli.size());
      EXPECT_EQ(rows_of(hash, history, first), Rows(wanted.begin() + skipped, wanted.end()));
    }
  }
}

// The second layer's primes follow the first one's, near the largest base too.
TEST(Ngram, RanksContinueThePrimes) {
  ModelShape shape = shape_of("tiny");
  shape.ple_layers = {0, 1};
  EXPECT_EQ(make_ngram_hash(shape, 1).moduli, (Rows{1031, 1033, 1039, 1049}));
  EXPECT_NE(make_ngram_hash(shape, 1).multipliers, make_ngram_hash(shape, 0).multipliers);
  shape.ngram_vocab_base = 2;
  EXPECT_EQ(make_ngram_hash(shape, 0).moduli, (Rows{2, 3, 5, 7}));
  EXPECT_EQ(make_ngram_hash(shape, 1).moduli, (Rows{11, 13, 17, 19}));
  shape.ngram_vocab_base = 2147483647;
  EXPECT_EQ(make_ngram_hash(shape, 0).moduli,
            (Rows{2147483647, 2147483659, 2147483693, 2147483713}));
}

}  // namespace
}  // namespace flashlane::model
