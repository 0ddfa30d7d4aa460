// The API over loopback: routes, reply bodies, stream events, error bodies; the tokens are
// scripted.
#include <gtest/gtest.h>

#include "base/sha256.h"
#include "tests/server/served.h"

namespace flashlane::server {
namespace {

using testing::exchange;
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

constexpr std::string_view kChat = "/v1/chat/completions";
constexpr std::string_view kCompletions = "/v1/completions";

std::shared_ptr<ScriptRunner> script(std::string_view text) {
  auto runner = std::make_shared<ScriptRunner>();
  runner->script = ids_of(text);
  return runner;
}

std::string ask(std::string_view more = "") {
  return fmt::format(R"({{"messages":[{{"role":"user","content":"hi"}}]{}{}}})",
                     more.empty() ? "" : ",", more);
}

void expect_error(const RawReply& reply, int status, std::string_view param, std::string_view code,
                  std::string_view message) {
  EXPECT_EQ(reply.status, status) << reply.body;
  EXPECT_TRUE(reply.complete);
  const auto body = parsed(reply.body);
  EXPECT_EQ(text_at(body, "error/param"), param) << reply.body;
  EXPECT_EQ(text_at(body, "error/code"), code) << reply.body;
  EXPECT_NE(text_at(body, "error/message").find(message), std::string::npos) << reply.body;
  EXPECT_NE(text_at(body, "error/type"), "(none)");
}

TEST(Api, SmallRoutes) {
  const Served served(script(""));
  EXPECT_EQ(exchange(served.port(), get("/health")).body, R"({"status":"ok"})");
  const RawReply root = exchange(served.port(), get("/"));
  EXPECT_EQ(root.headers.at("content-type"), "text/plain; charset=utf-8");
  EXPECT_NE(root.body.find("flash-next-nano"), std::string::npos);
  const auto status = parsed(exchange(served.port(), get("/status?x=1")).body);
  EXPECT_EQ(text_at(status, "running"), "0");
  EXPECT_EQ(text_at(status, "waiting"), "0");
  EXPECT_EQ(text_at(status, "requests_total"), "0");
}

TEST(Api, Models) {
  const Served served(script(""));
  const auto list = parsed(exchange(served.port(), get("/v1/models")).body);
  EXPECT_EQ(text_at(list, "object"), "list");
  EXPECT_EQ(text_at(list, "data/0/id"), "flash-next-nano");
  EXPECT_EQ(text_at(list, "data/0/object"), "model");
  EXPECT_EQ(text_at(list, "data/0/created"), "1234567890");
  EXPECT_EQ(text_at(list, "data/2/id"), "org/nano:6bit");
  const auto one = parsed(exchange(served.port(), get("/v1/models/org%2Fnano%3a6bit")).body);
  EXPECT_EQ(text_at(one, "id"), "org/nano:6bit");
  EXPECT_EQ(exchange(served.port(), get("/v1/models/org/nano:6bit")).status, 200);
  expect_error(exchange(served.port(), get("/v1/models/gpt-9")), 404, "model", "model_not_found",
               "'gpt-9'");
}

TEST(Api, UnknownRoutesAndMethods) {
  const Served served(script(""));
  expect_error(exchange(served.port(), get("/v2/chat")), 404, "null", "null", "GET /v2/chat");
  // A reply is UTF-8 whatever the path holds; `parsed` takes nothing else.
  expect_error(exchange(served.port(), get("/a\xFF\xC3")), 404, "null", "null",
               "GET /a\xEF\xBF\xBD");
  expect_error(exchange(served.port(), get("/v1/models/%ff")), 404, "model", "model_not_found",
               "'\xEF\xBF\xBD'");
  expect_error(served.send("/v1/embeddings", "{}"), 404, "null", "null", "/v1/embeddings");
  const RawReply wrong = exchange(served.port(), get(kChat));
  expect_error(wrong, 405, "null", "null", "use POST");
  EXPECT_EQ(wrong.headers.at("allow"), "POST, OPTIONS");
  expect_error(served.send("/health", ""), 405, "null", "null", "use GET");
  const RawReply options = exchange(served.port(), "OPTIONS /health HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(options.status, 204);
  EXPECT_EQ(options.headers.at("allow"), "GET, HEAD, OPTIONS");
  RawClient head(served.port());
  head.send("HEAD /health HTTP/1.1\r\nHost: a\r\n\r\n" + get("/health"));
  ASSERT_TRUE(head.read_until("{\"status\""));
  EXPECT_NE(head.received().find("Content-Length: 15\r\n"), std::string::npos);
}

TEST(Api, AWholeChatReply) {
  const Served served(script("The capital is Paris.<|im_end|>"));
  const RawReply reply =
      served.send(kChat, ask(R"("model":"nano","enable_thinking":false,"return_token_ids":true)"));
  ASSERT_EQ(reply.status, 200) << reply.body;
  EXPECT_EQ(reply.headers.at("content-type"), "application/json");
  const auto body = parsed(reply.body);
  const auto ids = ids_of("The capital is Paris.<|im_end|>");
  const auto prompt =
      ids_of("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
  EXPECT_EQ(text_at(body, "id").substr(0, 9), "chatcmpl-");
  EXPECT_EQ(text_at(body, "object"), "chat.completion");
  EXPECT_EQ(text_at(body, "model"), "nano");
  EXPECT_EQ(text_at(body, "choices/0/index"), "0");
  EXPECT_EQ(text_at(body, "choices/0/message/role"), "assistant");
  EXPECT_EQ(text_at(body, "choices/0/message/content"), "The capital is Paris.");
  EXPECT_EQ(text_at(body, "choices/0/message/reasoning_content"), "(none)");
  EXPECT_EQ(text_at(body, "choices/0/finish_reason"), "stop");
  EXPECT_EQ(text_at(body, "usage/prompt_tokens"), std::to_string(prompt.size()));
  EXPECT_EQ(text_at(body, "usage/completion_tokens"), std::to_string(ids.size()));
  EXPECT_EQ(text_at(body, "usage/total_tokens"), std::to_string(prompt.size() + ids.size()));
  EXPECT_EQ(text_at(body, "usage/prompt_tokens_details/cached_tokens"), "0");
  EXPECT_EQ(text_at(body, "usage/completion_tokens_details/reasoning_tokens"), "0");
  EXPECT_EQ(text_at(body, "flashlane/token_sha"), token_sha(ids));
  EXPECT_EQ(text_at(body, "flashlane/token_ids"),
            boost::json::serialize(boost::json::array(ids.begin(), ids.end())));
  EXPECT_EQ(text_at(body, "flashlane/prompt_tokens"), std::to_string(prompt.size()));
  EXPECT_EQ(text_at(body, "flashlane/cached_tokens"), "0");
  for (const char* name : {"queue_ms", "prefill_ms", "first_token_ms", "decode_ms"}) {
    EXPECT_NE(text_at(body, fmt::format("flashlane/timings/{}", name)), "(none)") << name;
  }
  for (const char* name : {"rounds", "drafted", "accepted", "head/drafted", "head/accepted",
                           "copied/drafted", "copied/accepted"}) {
    EXPECT_NE(text_at(body, fmt::format("flashlane/drafts/{}", name)), "(none)") << name;
  }
}

TEST(Api, ReasoningIsSplitFromContent) {
  const Served served(script("I add them.\n</think>\n\nIt is 15.<|im_end|>"));
  const auto body = parsed(served.send(kChat, ask()).body);
  EXPECT_EQ(text_at(body, "choices/0/message/reasoning_content"), "I add them.\n");
  EXPECT_EQ(text_at(body, "choices/0/message/content"), "It is 15.");
  EXPECT_EQ(text_at(body, "usage/completion_tokens_details/reasoning_tokens"),
            std::to_string(ids_of("I add them.\n</think>").size()));
  EXPECT_EQ(text_at(body, "flashlane/token_ids"), "(none)");
  const auto streamed = joined(served.send(kChat, ask(R"("stream":true)")));
  EXPECT_EQ(streamed.reasoning, "I add them.\n");
  EXPECT_EQ(streamed.content, "It is 15.");
}

TEST(Api, ACompletionIsRawText) {
  const Served served(script("a <think> b</think><|im_end|>"));
  const auto body = parsed(served.send(kCompletions, R"({"prompt":[1,2,3],"max_tokens":50})").body);
  EXPECT_EQ(text_at(body, "id").substr(0, 5), "cmpl-");
  EXPECT_EQ(text_at(body, "object"), "text_completion");
  EXPECT_EQ(text_at(body, "model"), "flash-next-nano");
  EXPECT_EQ(text_at(body, "choices/0/text"), "a <think> b</think>");
  EXPECT_EQ(text_at(body, "choices/0/finish_reason"), "stop");
  EXPECT_EQ(text_at(body, "usage/prompt_tokens"), "3");
}

TEST(Api, LengthEndsAReply) {
  const Served served(script("one two three four five six<|im_end|>"));
  const auto body = parsed(served.send(kCompletions, R"({"prompt":[1],"max_tokens":2})").body);
  EXPECT_EQ(text_at(body, "choices/0/finish_reason"), "length");
  EXPECT_EQ(text_at(body, "usage/completion_tokens"), "2");
}

TEST(Api, IgnoredEndTokensAreNoText) {
  const Served served(script("a<|im_end|>b<|endoftext|>c"));
  const auto body =
      parsed(served.send(kCompletions, R"({"prompt":[1],"max_tokens":5,"ignore_eos":true})").body);
  EXPECT_EQ(text_at(body, "choices/0/text"), "abc");
  EXPECT_EQ(text_at(body, "choices/0/finish_reason"), "length");
}

TEST(Api, StreamEventsInOrder) {
  const Served served(script("Hello there.<|im_end|>"));
  const RawReply reply = served.send(
      kChat,
      ask(R"("stream":true,"enable_thinking":false,"stream_options":{"include_usage":true})"));
  EXPECT_EQ(reply.headers.at("content-type"), "text/event-stream; charset=utf-8");
  const std::vector<std::string> events = sse_data(reply.body);
  ASSERT_GE(events.size(), 5u);
  const auto first = parsed(events[0]);
  EXPECT_EQ(text_at(first, "object"), "chat.completion.chunk");
  EXPECT_EQ(text_at(first, "choices/0/delta/role"), "assistant");
  EXPECT_EQ(text_at(first, "choices/0/finish_reason"), "null");
  EXPECT_EQ(text_at(first, "usage"), "null");
  const auto last_choice = parsed(events[events.size() - 3]);
  EXPECT_EQ(text_at(last_choice, "choices/0/finish_reason"), "stop");
  EXPECT_EQ(text_at(last_choice, "usage"), "null");
  EXPECT_EQ(text_at(last_choice, "flashlane/token_sha"),
            token_sha(ids_of("Hello there.<|im_end|>")));
  const auto usage = parsed(events[events.size() - 2]);
  EXPECT_EQ(text_at(usage, "choices"), "[]");
  EXPECT_NE(text_at(usage, "usage/total_tokens"), "(none)");
  EXPECT_EQ(events.back(), "[DONE]");
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    EXPECT_EQ(text_at(parsed(events[i]), "id"), text_at(first, "id"));
  }
}

TEST(Api, UsageComesWithTheFinishWhenNotAskedFor) {
  const Served served(script("Hello.<|im_end|>"));
  const std::vector<std::string> events =
      sse_data(served.send(kCompletions, R"({"prompt":[1],"stream":true})").body);
  ASSERT_GE(events.size(), 3u);
  EXPECT_EQ(text_at(parsed(events[0]), "usage"), "(none)");
  const auto last = parsed(events[events.size() - 2]);
  EXPECT_EQ(text_at(last, "choices/0/finish_reason"), "stop");
  EXPECT_EQ(text_at(last, "usage/prompt_tokens"), "1");
}

// Every stop string of the text, however the tokens cut it, ends it just before.
TEST(Api, StopStringsAreNotDelivered) {
  const std::string text = "one, two, three; four and five";
  const Served served(script(text + "<|im_end|>"));
  for (size_t begin = 1; begin + 4 <= text.size(); begin += 3) {
    for (const size_t size : {1u, 2u, 4u}) {
      const std::string stop = text.substr(begin, size);
      const std::string fields =
          fmt::format(R"("stop":["never", "{}"],"enable_thinking":false)", stop);
      const auto body = parsed(served.send(kChat, ask(fields)).body);
      EXPECT_EQ(text_at(body, "choices/0/message/content"), text.substr(0, text.find(stop)));
      EXPECT_EQ(text_at(body, "choices/0/finish_reason"), "stop");
      const auto streamed = joined(served.send(kChat, ask(fields + R"(,"stream":true)")));
      EXPECT_EQ(streamed.content, text.substr(0, text.find(stop)));
      EXPECT_EQ(streamed.token_sha, text_at(body, "flashlane/token_sha"));
    }
  }
}

TEST(Api, WhatLooksLikeAStopButIsNoneIsDelivered) {
  const Served served(script("ends with ab<|im_end|>"));
  const std::string fields = R"("stop":"abc","enable_thinking":false)";
  EXPECT_EQ(text_at(parsed(served.send(kChat, ask(fields)).body), "choices/0/message/content"),
            "ends with ab");
  EXPECT_EQ(joined(served.send(kChat, ask(fields + R"(,"stream":true)"))).content, "ends with ab");
}

TEST(Api, AStopInsideTheReasoningEndsAll) {
  const Served served(script("think of it and more</think>answer<|im_end|>"));
  const auto body = parsed(served.send(kChat, ask(R"("stop":" and")")).body);
  EXPECT_EQ(text_at(body, "choices/0/message/reasoning_content"), "think of it");
  EXPECT_EQ(text_at(body, "choices/0/message/content"), "");
}

TEST(Api, RefusalsOverTheWire) {
  const Served served(script(""));
  expect_error(served.send(kChat, "{"), 400, "null", "null", "not JSON");
  expect_error(served.send(kChat, "{\"a\":\"\xFF\"}"), 400, "null", "null", "UTF-8");
  expect_error(served.send(kChat, ask(R"("temperature":3)")), 400, "temperature", "null", "is 3");
  expect_error(served.send(kChat, ask(R"("tools":[1])")), 400, "tools", "unsupported_parameter",
               "not supported yet");
  expect_error(served.send(kChat, ask(R"("model":"gpt")")), 404, "model", "model_not_found",
               "'gpt'");
  expect_error(served.send(kChat, ask(R"("max_tokens":4096,"stream":true)")), 400, "messages",
               "context_length_exceeded", "asks for 4096");
  expect_error(served.send(kCompletions, R"({"prompt":[8192]})"), 400, "prompt[0]", "null", "8192");
  expect_error(served.send(kChat, R"({"messages":[{"role":"user","content":"a"},
                                                  {"role":"system","content":"b"}]})"),
               400, "messages", "null", "A system message must be the first one.");
}

TEST(Api, ARefusalLeavesTheConnectionUsable) {
  const Served served(script("ok<|im_end|>"));
  RawClient client(served.port());
  client.send(post(kChat, "{]") + post(kChat, ask(R"("enable_thinking":false)")) + get("/health"));
  EXPECT_EQ(client.read_reply().status, 400);
  const RawReply reply = client.read_reply();
  EXPECT_EQ(text_at(parsed(reply.body), "choices/0/message/content"), "ok");
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST(Api, ChunkedRequestBodies) {
  const Served served(script("ok<|im_end|>"));
  const std::string body = ask(R"("enable_thinking":false)");
  std::string request =
      fmt::format("POST {} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", kChat);
  for (size_t at = 0; at < body.size(); at += 10) {
    const std::string piece = body.substr(at, 10);
    request += fmt::format("{:x}\r\n{}\r\n", piece.size(), piece);
  }
  const RawReply reply = exchange(served.port(), request + "0\r\n\r\n");
  EXPECT_EQ(text_at(parsed(reply.body), "choices/0/message/content"), "ok");
}

TEST(Api, AModelWithoutTextServesIds) {
  auto runner = std::make_shared<ScriptRunner>();
  runner->script = {5, 6, 7, 8162};
  const Served served(runner, {.tokenizer = false});
  const auto body =
      parsed(served.send(kCompletions, R"({"prompt":[1],"return_token_ids":true})").body);
  EXPECT_EQ(text_at(body, "choices/0/text"), "");
  EXPECT_EQ(text_at(body, "flashlane/token_ids"), "[5,6,7,8162]");
  expect_error(served.send(kChat, ask()), 400, "messages", "null", "no tokenizer");
  expect_error(served.send(kCompletions, R"({"prompt":"hi"})"), 400, "prompt", "null",
               "no tokenizer");
}

}  // namespace
}  // namespace flashlane::server
