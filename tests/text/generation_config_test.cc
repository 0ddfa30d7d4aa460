// generation_config.json: the bundled file, defaults, and refusals by key.
#include "text/generation_config.h"

#include <gtest/gtest.h>

#include "tests/text/text_fixtures.h"

namespace flashlane::text {
namespace {

TEST(GenerationConfig, ReadsTheBundledFile) {
  const auto config =
      parse_generation_config(read_file("models/flash-next-nano-6bit/generation_config.json"))
          .value();
  EXPECT_EQ(config.eos_ids, (std::vector<int32_t>{8162, 8160}));
  EXPECT_FLOAT_EQ(config.temperature, 0.7f);
  EXPECT_EQ(config.top_k, 20);
  EXPECT_FLOAT_EQ(config.top_p, 0.95f);
  EXPECT_EQ(config.min_p, 0.0f);
  EXPECT_TRUE(config.do_sample);
}

TEST(GenerationConfig, AbsentAndNullKeysKeepTheDefaults) {
  for (const char* text : {"{}", R"({"temperature":null,"eos_token_id":null,"do_sample":null})"}) {
    const auto config = parse_generation_config(text).value();
    EXPECT_TRUE(config.eos_ids.empty());
    EXPECT_EQ(config.temperature, 1.0f);
    EXPECT_EQ(config.top_k, 0);
    EXPECT_EQ(config.top_p, 1.0f);
    EXPECT_FALSE(config.do_sample);
  }
  EXPECT_EQ(parse_generation_config(R"({"eos_token_id":7})").value().eos_ids,
            std::vector<int32_t>{7});
}

TEST(GenerationConfig, RefusesByKey) {
  const std::pair<const char*, const char*> cases[] = {
      {"[]", "is not an object"},
      {"{", "not valid JSON"},
      {R"({"temperature":"1"})", "temperature is not a number"},
      {R"({"temperature":-1})", "temperature is -1, not within 0 to 100"},
      {R"({"top_p":1.5})", "top_p is 1.5, not within 0 to 1"},
      {R"({"min_p":-0.1})", "min_p is -0.1"},
      {R"({"repetition_penalty":0})", "repetition_penalty is 0"},
      {R"({"top_k":2.5})", "top_k is not an integer"},
      {R"({"top_k":-1})", "top_k is -1"},
      {R"({"do_sample":1})", "do_sample is not true or false"},
      {R"({"eos_token_id":"x"})", "eos_token_id is not an integer"},
      {R"({"eos_token_id":[1,-2]})", "eos_token_id is -2"},
      {R"({"eos_token_id":4294967296})", "eos_token_id is 4294967296"},
  };
  for (const auto& [text, message] : cases) {
    const auto config = parse_generation_config(text);
    ASSERT_FALSE(config.ok()) << text;
    EXPECT_NE(config.error().message.find(message), std::string::npos) << config.error().message;
  }
}

}  // namespace
}  // namespace flashlane::text
