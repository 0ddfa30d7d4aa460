// Replies in time: headers before the prompt is done, comments in silence, order of requests,
// clients that leave, failures in mid-reply, overload, stopping; and that streams and drafts change
// nothing.
#include <gtest/gtest.h>

#include <thread>

#include "base/sha256.h"
#include "tests/server/served.h"
#include "tests/support/fake_runner.h"

namespace flashlane::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::get;
using testing::ids_of;
using testing::joined;
using testing::parsed;
using testing::post;
using testing::RawClient;
using testing::RawReply;
using testing::ScriptRunner;
using testing::Served;
using testing::sse_data;
using testing::text_at;
using testing::wait_until;

constexpr std::string_view kChat = "/v1/chat/completions";
constexpr std::string_view kCompletions = "/v1/completions";

// Never ends by itself.
std::shared_ptr<ScriptRunner> endless() {
  auto runner = std::make_shared<ScriptRunner>();
  runner->filler = ids_of("a").front();
  return runner;
}

std::string ask(std::string_view more = "") {
  return fmt::format(R"({{"messages":[{{"role":"user","content":"hi"}}]{}{}}})",
                     more.empty() ? "" : ",", more);
}

std::string prompt(int first, std::string_view more = "") {
  return fmt::format(R"({{"prompt":[{},7]{}{}}})", first, more.empty() ? "" : ",", more);
}

// Tokens that are a hash of all before them: any text, half characters and markers among it.
engine::StepFunction hashed(testing::Drafting drafting) {
  auto runner = std::make_shared<testing::FakeRunner>();
  runner->vocabulary = testing::kNanoVocabulary;
  runner->drafting = drafting;
  return [runner](const scheduler::StepPlan& plan) { return runner->run(plan); };
}

TEST(Reply, AStreamJoinedIsTheWholeReply) {
  const Served served(hashed(testing::Drafting::kRandom));
  for (int seed = 0; seed < 12; ++seed) {
    const std::string fields = fmt::format(
        R"("max_tokens":120,"temperature":1,"seed":{},"ignore_eos":{},"stop":["e","qu"])", seed,
        seed % 2 == 0);
    const auto whole = parsed(served.send(kCompletions, prompt(1, fields)).body);
    const auto streamed =
        joined(served.send(kCompletions, prompt(1, fields + R"(,"stream":true)")));
    EXPECT_EQ(streamed.content, text_at(whole, "choices/0/text"));
    EXPECT_EQ(streamed.finish_reason, text_at(whole, "choices/0/finish_reason"));
    EXPECT_EQ(streamed.token_sha, text_at(whole, "flashlane/token_sha"));
    EXPECT_TRUE(streamed.done);
    const std::string thinking = fmt::format(
        R"("max_tokens":120,"temperature":1,"seed":{},"enable_thinking":{})", seed, seed % 3 == 0);
    const auto chat = parsed(served.send(kChat, ask(thinking)).body);
    const auto chunks = joined(served.send(kChat, ask(thinking + R"(,"stream":true)")));
    EXPECT_EQ(chunks.content, text_at(chat, "choices/0/message/content"));
    const std::string reasoning = text_at(chat, "choices/0/message/reasoning_content");
    EXPECT_EQ(chunks.reasoning, reasoning == "(none)" ? "" : reasoning);
  }
}

// Lists of one reply's chunks, or of the whole, joined; a chunk without any has null.
boost::json::array logprob_entries(const boost::json::value& body, std::string_view list) {
  boost::json::array joined;
  for (const boost::json::value& choice : body.at("choices").as_array()) {
    const boost::json::value& logprobs = choice.at("logprobs");
    if (logprobs.is_null()) continue;
    const boost::json::array& part = logprobs.at(list).as_array();
    joined.insert(joined.end(), part.begin(), part.end());
  }
  return joined;
}

TEST(Reply, LogProbabilitiesComeWithEveryTokenStreamedOrWhole) {
  const Served served(hashed(testing::Drafting::kRandom));
  const auto streamed = [&](std::string_view path, const std::string& body, std::string_view list) {
    boost::json::array joined;
    for (const std::string& data : sse_data(served.send(path, body).body)) {
      if (data == "[DONE]") continue;
      const boost::json::array part = logprob_entries(parsed(data), list);
      joined.insert(joined.end(), part.begin(), part.end());
    }
    return joined;
  };
  const std::string chat_fields =
      R"("max_tokens":90,"temperature":1,"seed":5,"enable_thinking":true,"thinking_budget":20,
         "stop":["e"],"return_token_ids":true,"logprobs":true,"top_logprobs":2)";
  const auto whole = parsed(served.send(kChat, ask(chat_fields)).body);
  const boost::json::array entries = logprob_entries(whole, "content");
  const boost::json::array& ids = whole.at("flashlane").at("token_ids").as_array();
  ASSERT_EQ(entries.size(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    const auto id = static_cast<int32_t>(ids[i].as_int64());
    const int32_t own[] = {id};
    EXPECT_EQ(entries[i].at("token").as_string(),
              testing::nano_tokenizer().decode(own, false).value());
    EXPECT_EQ(entries[i].at("bytes").as_array().size(),
              testing::nano_tokenizer().token_bytes(id).size());
    EXPECT_EQ(entries[i].at("top_logprobs").as_array().size(), 2U);
  }
  EXPECT_EQ(streamed(kChat, ask(chat_fields + R"(,"stream":true)"), "content"), entries);

  const std::string fields = R"("max_tokens":40,"ignore_eos":true,"logprobs":1)";
  const auto completion = parsed(served.send(kCompletions, prompt(1, fields)).body);
  const boost::json::array tokens = logprob_entries(completion, "tokens");
  const boost::json::array offsets = logprob_entries(completion, "text_offset");
  EXPECT_EQ(tokens.size(), 40U);
  EXPECT_EQ(offsets.front(), 0);
  for (const char* list : {"tokens", "token_logprobs", "top_logprobs", "text_offset"}) {
    EXPECT_EQ(streamed(kCompletions, prompt(1, fields + R"(,"stream":true)"), list),
              logprob_entries(completion, list))
        << list;
  }
  std::vector<int32_t> before = {1, 7};
  const boost::json::array own = logprob_entries(completion, "token_logprobs");
  const auto plain = parsed(
      served.send(kCompletions, prompt(1, fields + R"(,"return_token_ids":true,"draft":false)"))
          .body);
  for (size_t i = 0; i < own.size(); ++i) {
    const auto id =
        static_cast<int32_t>(plain.at("flashlane").at("token_ids").as_array().at(i).as_int64());
    EXPECT_EQ(own[i].to_number<double>(), static_cast<double>(testing::fake_logprob(before, id)));
    before.push_back(id);
  }
  const auto none = parsed(served.send(kCompletions, prompt(1, R"("max_tokens":3)")).body);
  EXPECT_TRUE(none.at("choices").at(0).at("logprobs").is_null());
}

TEST(Reply, DraftsChangeNothingButTheFigures) {
  const Served served(hashed(testing::Drafting::kRandom));
  for (const char* sampling : {R"("temperature":0)", R"("temperature":1,"seed":5)"}) {
    const std::string fields = fmt::format(R"("max_tokens":60,"ignore_eos":true,{})", sampling);
    const auto drafted = parsed(served.send(kCompletions, prompt(1, fields)).body);
    const auto plain =
        parsed(served.send(kCompletions, prompt(1, fields + R"(,"draft":false)")).body);
    EXPECT_EQ(text_at(drafted, "flashlane/token_sha"), text_at(plain, "flashlane/token_sha"));
    EXPECT_NE(text_at(drafted, "flashlane/drafts/accepted"), "0");
    EXPECT_EQ(text_at(plain, "flashlane/drafts/drafted"), "0");
  }
}

TEST(Reply, SeedsDecideSampledReplies) {
  const Served served(hashed(testing::Drafting::kRight));
  const auto sha = [&](std::string_view fields) {
    return text_at(parsed(served.send(kCompletions, prompt(1, fields)).body),
                   "flashlane/token_sha");
  };
  const std::string one = sha(R"("max_tokens":20,"temperature":1,"seed":1)");
  EXPECT_EQ(sha(R"("max_tokens":20,"temperature":1,"seed":1)"), one);
  EXPECT_NE(sha(R"("max_tokens":20,"temperature":1,"seed":2)"), one);
  // Without a seed: one that the prompt gives.
  EXPECT_EQ(sha(R"("max_tokens":20,"temperature":1)"), sha(R"("max_tokens":20,"temperature":1)"));
}

TEST(Reply, TheHeadersAndTheRoleGoOutBeforeThePromptIsDone) {
  auto runner = endless();
  runner->hold = true;
  const Served served(runner);
  RawClient client(served.port());
  client.send(post(kChat, ask(R"("stream":true,"max_tokens":3)")));
  EXPECT_TRUE(client.read_until(R"("role":"assistant")"));
  EXPECT_EQ(runner->steps, 0);
  runner->hold = false;
  EXPECT_TRUE(joined(client.read_reply()).done);
}

TEST(Reply, SilentStreamsAreKeptAliveInPromptAndQueue) {
  auto runner = endless();
  runner->hold = true;
  const Served served(runner, {.server = {.keep_alive_interval = milliseconds(30)}});
  RawClient running(served.port());
  running.send(post(kCompletions, prompt(1, R"("stream":true,"max_tokens":2)")));
  ASSERT_TRUE(wait_until([&] { return served.engine().status().running == 1; }));
  RawClient waiting(served.port());
  waiting.send(post(kChat, ask(R"("stream":true,"max_tokens":2)")));
  const std::string twice = ": keep-alive\n\n\r\ne\r\n: keep-alive\n\n";
  EXPECT_TRUE(running.read_until(twice)) << running.received();
  EXPECT_TRUE(waiting.read_until(twice)) << waiting.received();
  runner->hold = false;
  EXPECT_TRUE(joined(running.read_reply()).done);
  EXPECT_TRUE(joined(waiting.read_reply()).done);
}

TEST(Reply, RequestsQueueInOrder) {
  auto runner = endless();
  runner->hold = true;
  const Served served(runner);
  std::vector<std::unique_ptr<RawClient>> clients;
  std::vector<int32_t> order;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(std::make_unique<RawClient>(served.port()));
    clients.back()->send(post(
        kCompletions,
        prompt(100 + i, i % 2 == 0 ? R"("stream":true,"max_tokens":4)" : R"("max_tokens":4)")));
    order.push_back(100 + i);
    ASSERT_TRUE(wait_until([&] {
      // The first must run before the others come, as a busy engine may take all in at once.
      const engine::EngineStatus status = served.engine().status();
      return status.running == 1 && status.waiting == i;
    }));
  }
  const auto status = parsed(testing::exchange(served.port(), get("/status")).body);
  EXPECT_EQ(text_at(status, "waiting"), "5");
  runner->hold = false;
  for (auto& client : clients) EXPECT_EQ(client->read_reply().status, 200);
  EXPECT_EQ(runner->prompts_begun(), order);
}

TEST(Reply, AClientThatLeavesStopsItsReply) {
  for (const bool stream : {true, false}) {
    auto runner = endless();
    runner->step_delay_ms = 2;
    const Served served(runner);
    RawClient client(served.port());
    client.send(post(kChat, ask(stream ? R"("stream":true)" : "")));
    if (stream) {
      ASSERT_TRUE(client.read_until("reasoning_content"));
    } else {
      ASSERT_TRUE(wait_until([&] { return runner->steps > 5; }));
    }
    const auto left = std::chrono::steady_clock::now();
    client.close();
    ASSERT_TRUE(served.becomes_idle());
    EXPECT_LT(std::chrono::steady_clock::now() - left, seconds(3)) << stream;
    EXPECT_LT(served.engine().status().reply_tokens_total, 4000);
    EXPECT_EQ(served.send(kChat, ask(R"("max_tokens":2)")).status, 200);
  }
}

TEST(Reply, AClientThatLeavesTheQueueFreesItsPlace) {
  auto runner = endless();
  runner->step_delay_ms = 20;  // the running reply takes 20 s and more
  const Served served(runner);
  RawClient running(served.port());
  running.send(post(kCompletions, prompt(1, R"("stream":true)")));
  ASSERT_TRUE(wait_until([&] { return served.engine().status().running == 1; }));
  RawClient waiting(served.port());
  waiting.send(post(kCompletions, prompt(2)));
  ASSERT_TRUE(wait_until([&] { return served.engine().status().waiting == 1; }));
  waiting.close();
  EXPECT_TRUE(wait_until([&] { return served.engine().status().waiting == 0; }, seconds(10)));
  EXPECT_LT(served.engine().status().reply_tokens_total, 4000);
  EXPECT_EQ(served.engine().status().running, 1);
  EXPECT_EQ(runner->prompts_begun(), std::vector<int32_t>{1});
}

TEST(Reply, ManyClientsThatLeaveLeaveNothingBehind) {
  auto runner = endless();
  const Served served(runner);
  for (int i = 0; i < 50; ++i) {
    RawClient client(served.port());
    client.send(post(kCompletions, prompt(1, R"("stream":true)")));
    if (i % 3 != 0) {
      ASSERT_TRUE(client.read_until("data: "));
    }
  }
  EXPECT_TRUE(served.becomes_idle());
  EXPECT_EQ(served.send(kChat, ask(R"("max_tokens":2)")).status, 200);
}

TEST(Reply, AFailureInMidStreamIsAnEventAndTheServerGoesOn) {
  auto runner = endless();
  runner->fail_at_step = 3;
  const Served served(runner);
  const RawReply streamed = served.send(kCompletions, prompt(1, R"("stream":true)"));
  EXPECT_EQ(streamed.status, 200);
  EXPECT_TRUE(streamed.complete);
  const std::vector<std::string> events = sse_data(streamed.body);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(text_at(parsed(events[events.size() - 2]), "error/message"), "the script failed");
  EXPECT_EQ(text_at(parsed(events[events.size() - 2]), "error/type"), "server_error");
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(served.send(kChat, ask(R"("max_tokens":2)")).status, 200);
}

TEST(Reply, AFailureOfAWholeReplyIsA500) {
  auto runner = endless();
  runner->fail_at_step = 2;
  const Served served(runner);
  const RawReply reply = served.send(kCompletions, prompt(1));
  EXPECT_EQ(reply.status, 500);
  EXPECT_EQ(text_at(parsed(reply.body), "error/message"), "the script failed");
}

TEST(Reply, AFullQueueIsA503) {
  auto runner = endless();
  runner->hold = true;
  const Served served(runner, {.engine = {.scheduler = {}, .inbox = 1}});
  RawClient running(served.port());
  running.send(post(kCompletions, prompt(1, R"("max_tokens":2)")));
  ASSERT_TRUE(wait_until([&] { return served.engine().status().running == 1; }));
  RawClient waiting(served.port());
  waiting.send(post(kCompletions, prompt(2, R"("max_tokens":2)")));
  ASSERT_TRUE(wait_until([&] { return served.engine().status().waiting == 1; }));
  const RawReply refused = served.send(kCompletions, prompt(3, R"("stream":true)"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_EQ(text_at(parsed(refused.body), "error/type"), "overloaded_error");
  runner->hold = false;
  EXPECT_EQ(running.read_reply().status, 200);
  EXPECT_EQ(waiting.read_reply().status, 200);
}

TEST(Reply, StoppingEndsStreamsWithAnEvent) {
  auto runner = endless();
  runner->step_delay_ms = 5;
  Served served(runner, {.server = {.stop_grace = milliseconds(50)}});
  RawClient streaming(served.port());
  streaming.send(post(kCompletions, prompt(1, R"("stream":true)")));
  ASSERT_TRUE(streaming.read_until("data: "));
  RawClient whole(served.port());
  whole.send(post(kCompletions, prompt(2)));
  ASSERT_TRUE(wait_until([&] { return served.engine().status().waiting == 1; }));
  served.server().stop();
  served.server().wait();
  const RawReply reply = streaming.read_reply();
  EXPECT_TRUE(reply.complete);
  const std::vector<std::string> events = sse_data(reply.body);
  EXPECT_EQ(text_at(parsed(events[events.size() - 2]), "error/message"), "the server is stopping");
  EXPECT_EQ(events.back(), "[DONE]");
  EXPECT_EQ(whole.read_reply().status, 503);
  EXPECT_TRUE(served.becomes_idle());
}

}  // namespace
}  // namespace flashlane::server
