// The bundled model behind the server: what its card promises, and the exactness that a client can
// see, i.e. drafted = plain, streamed = whole, repeated = same (E1, E4).
#include <gtest/gtest.h>

#include <set>

#include "model/load.h"
#include "runner/runner.h"
#include "tests/server/served.h"

namespace flashlane::server {
namespace {

using testing::joined;
using testing::parsed;
using testing::Served;
using testing::text_at;

constexpr std::string_view kChat = "/v1/chat/completions";
constexpr int kContext = 2048;

class Nano : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    const auto location =
        model::locate_model(std::string(FLASHLANE_SOURCE_DIR) + "/models/flash-next-nano-6bit");
    ASSERT_TRUE(location.ok()) << location.error().message;
    model::LoadOptions options;
    options.backend.threads = 2;
    options.max_rows = 256;
    options.context = kContext;
    auto loaded = model::load_model(*location, options);
    ASSERT_TRUE(loaded.ok()) << loaded.error().message;
    model_ = std::move(loaded).value();
  }
  static void TearDownTestSuite() { model_.reset(); }

  void SetUp() override {
    ASSERT_NE(model_, nullptr);
    auto created = runner::Runner::create(
        *model_, {.context = kContext, .max_rows = 256, .kv_dtype = DType::kF32});
    ASSERT_TRUE(created.ok()) << created.error().message;
    std::shared_ptr<runner::Runner> runner = std::move(created).value();
    testing::ServedOptions options;
    options.context = kContext;
    options.engine.scheduler.prefill_chunk = 64;
    options.engine.scheduler.max_draft = 3;
    options.generation = {
        .eos_ids = {}, .temperature = 0.7f, .top_k = 20, .top_p = 0.95f, .do_sample = true};
    options.engine = engine::with_pool_of(*runner, options.engine);
    served_ = std::make_unique<Served>(
        [runner](const scheduler::StepPlan& plan) { return runner->run(plan); }, options);
  }

  std::string ask(std::string_view question, std::string_view fields) const {
    return fmt::format(R"({{"messages":[{{"role":"user","content":"{}"}}],{}}})", question, fields);
  }
  boost::json::value whole(std::string_view question, std::string_view fields) const {
    return parsed(served_->send(kChat, ask(question, fields)).body);
  }

  static inline std::unique_ptr<model::Model> model_;
  std::unique_ptr<Served> served_;
};

TEST_F(Nano, AnswersAsItsCardSays) {
  const auto reply = whole("What is the capital of France?",
                           R"("temperature":0,"max_tokens":40,"enable_thinking":false)");
  EXPECT_EQ(text_at(reply, "choices/0/message/content"), "The capital of France is Paris.");
  EXPECT_EQ(text_at(reply, "choices/0/finish_reason"), "stop");
}

TEST_F(Nano, DraftsStreamsAndRepeatsChangeNothing) {
  const std::string count = "Count from 1 to 50, one per line.";
  const std::string story = "Tell me a story about a child named Anna.";
  const std::pair<std::string, std::string> cases[] = {
      {count, R"("max_tokens":80,"temperature":0)"},
      {count, R"("max_tokens":80,"enable_thinking":false,"stop":"4\n")"},
      {story, R"("max_tokens":80,"temperature":1.2,"seed":11)"},
      {story, R"("max_tokens":80)"},
  };
  std::set<std::string> shas;
  for (const auto& [question, fields] : cases) {
    const auto drafted = whole(question, fields);
    const auto plain = whole(question, fmt::format(R"({},"draft":false)", fields));
    const auto streamed =
        joined(served_->send(kChat, ask(question, fmt::format(R"({},"stream":true)", fields))));
    const std::string sha = text_at(drafted, "flashlane/token_sha");
    EXPECT_EQ(sha.size(), 64u);
    EXPECT_EQ(text_at(plain, "flashlane/token_sha"), sha) << fields;
    EXPECT_EQ(streamed.token_sha, sha) << fields;
    EXPECT_EQ(streamed.content, text_at(drafted, "choices/0/message/content")) << fields;
    EXPECT_EQ(text_at(plain, "flashlane/drafts/drafted"), "0");
    EXPECT_NE(text_at(drafted, "flashlane/drafts/accepted"), "0") << fields;
    shas.insert(sha);
  }
  EXPECT_EQ(shas.size(), 4u);  // else the cases would not differ in what they try
}

}  // namespace
}  // namespace flashlane::server
