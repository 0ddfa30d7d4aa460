// The engine with the real runner on the tiny model: what a client reads is what the model gives
// plain, and its thread can be stopped at any time.
#include <gtest/gtest.h>

#include <thread>

#include "engine/engine.h"
#include "tests/support/tiny_model.h"

namespace flashlane::engine {
namespace {

using flashlane::testing::kTinyContext;
using flashlane::testing::kTinyRows;
using Tokens = std::vector<int32_t>;

std::unique_ptr<Engine> make_engine() {
  auto runner = runner::Runner::create(
      flashlane::testing::tiny_model(),
      {.slots = 1, .context = kTinyContext, .max_rows = kTinyRows, .page_rows = 16});
  EngineOptions options{
      .scheduler = {
          .context = kTinyContext, .prefill_chunk = 16, .max_draft = 3, .vocabulary = 512}};
  return std::make_unique<Engine>(std::move(runner).value(), options);
}

Tokens read(Reply& reply, FinishReason expected) {
  Tokens tokens;
  bool finished = false;
  while (auto event = reply.next(std::chrono::seconds(60))) {
    tokens.insert(tokens.end(), event->tokens.begin(), event->tokens.end());
    if (event->kind != ReplyEvent::Kind::kFinished) continue;
    finished = true;
    EXPECT_EQ(event->reason, expected) << event->error.message;
  }
  EXPECT_TRUE(finished);
  return tokens;
}

TEST(RealEngine, ConcurrentClientsGetWhatEachGetsAlone) {
  const auto engine = make_engine();
  std::vector<Request> requests;
  for (int32_t i = 0; i < 4; ++i) {
    Request request{.prompt = Tokens(static_cast<size_t>(5 + 9 * i), i + 1), .max_tokens = 8};
    if (i % 2 == 1) request.sampling = {.temperature = 1, .seed = 3};
    request.drafts = false;
    requests.push_back(request);
  }
  std::vector<Tokens> alone;
  for (const Request& request : requests) {
    Reply reply = engine->submit(request).value();
    alone.push_back(read(reply, FinishReason::kLength));
    EXPECT_EQ(alone.back().size(), 8U);
  }
  std::vector<std::thread> clients;
  for (size_t i = 0; i < requests.size(); ++i) {
    clients.emplace_back([&, i] {
      Request drafted = requests[i];
      drafted.drafts = true;
      Reply reply = engine->submit(drafted).value();
      EXPECT_EQ(read(reply, FinishReason::kLength), alone[i]);
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(engine->status().drafts.drafted, 0);
}

TEST(RealEngine, AnEndTokenInsideAnAcceptedRunLeavesTheSlotUsable) {
  const auto engine = make_engine();
  const Request whole{.prompt = {4, 5, 6}, .max_tokens = 12};
  Reply first = engine->submit(whole).value();
  const Tokens tokens = read(first, FinishReason::kLength);
  Request cut = whole;
  cut.end_ids = {tokens[5]};
  Reply second = engine->submit(cut).value();
  const Tokens stopped = read(second, FinishReason::kStop);
  EXPECT_LE(stopped.size(), 6U);
  EXPECT_TRUE(std::equal(stopped.begin(), stopped.end(), tokens.begin()));
  Reply third = engine->submit(whole).value();
  EXPECT_EQ(read(third, FinishReason::kLength), tokens);
}

TEST(RealEngine, StopsInTheMiddleOfAReply) {
  const auto engine = make_engine();
  Reply reply = engine->submit({.prompt = {1, 2, 3}, .max_tokens = 200}).value();
  ASSERT_TRUE(reply.next(std::chrono::seconds(60)).has_value());
  engine->stop();
  read(reply, FinishReason::kCancelled);
}

}  // namespace
}  // namespace flashlane::engine
