// Typed request → engine request: defaults of the model, seeds, end tokens, room in the context,
// and the refusals that depend on the model.
#include "server/plan.h"

#include <gtest/gtest.h>

#include "base/sha256.h"
#include "tests/server/served.h"

namespace flashlane::server {
namespace {

using testing::ids_of;
using testing::kNanoVocabulary;

Services services() {
  Services out;
  out.tokenizer = &testing::nano_tokenizer();
  out.chat_template = &testing::nano_template();
  out.generation.eos_ids = {8162, 8160};
  out.model = {.name = "nano",
               .aliases = {"other"},
               .context = 1000,
               .vocabulary = kNanoVocabulary,
               .created = 0};
  return out;
}

CompletionRequest ids(std::vector<int64_t> prompt) {
  CompletionRequest request;
  request.prompt = std::move(prompt);
  return request;
}

ChatRequest hello() {
  ChatRequest request;
  request.messages.push_back({Role::kUser, "hello", std::nullopt});
  return request;
}

ReplyPlan planned(const Services& with, const CompletionRequest& request) {
  ReplyPlan plan;
  const auto refusal = plan_completion(with, {}, request, plan);
  EXPECT_FALSE(refusal.has_value()) << refusal->message;
  return plan;
}

TEST(Plan, OmittedSamplingComesFromTheModel) {
  Services with = services();
  EXPECT_EQ(planned(with, ids({1})).request.sampling.temperature, 0);
  with.generation.do_sample = true;
  with.generation.temperature = 0.5f;
  with.generation.top_k = 20;
  with.generation.top_p = 0.75f;
  with.generation.min_p = 0.25f;
  const scheduler::Sampling sampling = planned(with, ids({1})).request.sampling;
  EXPECT_EQ(sampling.temperature, 0.5f);
  EXPECT_EQ(sampling.top_k, 20);
  EXPECT_EQ(sampling.top_p, 0.75f);
  EXPECT_EQ(sampling.min_p, 0.25f);
  EXPECT_EQ(sampling.repetition_penalty, 1);
  with.generation.repetition_penalty = 1.125f;
  EXPECT_EQ(planned(with, ids({1})).request.sampling.repetition_penalty, 1.125f);
}

TEST(Plan, TheRequestGoesBeforeTheModel) {
  Services with = services();
  with.generation.do_sample = true;
  with.generation.temperature = 0.5f;
  with.generation.top_k = 20;
  CompletionRequest request = ids({1});
  request.options.temperature = 0;
  request.options.top_k = -1;
  request.options.top_p = 0.5;
  request.options.min_p = 0.125;
  request.options.presence_penalty = 0.5;
  request.options.frequency_penalty = -0.5;
  request.options.repetition_penalty = 1.5;
  const scheduler::Sampling sampling = planned(with, request).request.sampling;
  EXPECT_EQ(sampling.temperature, 0);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.top_p, 0.5f);
  EXPECT_EQ(sampling.min_p, 0.125f);
  EXPECT_EQ(sampling.presence_penalty, 0.5f);
  EXPECT_EQ(sampling.frequency_penalty, -0.5f);
  EXPECT_EQ(sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(planned(with, request).request.logprobs, -1);
  request.options.logprobs = 0;
  EXPECT_EQ(planned(with, request).request.logprobs, 0);
  // Too small to divide by, and a cut at all tokens.
  request.options.temperature = 1e-30;
  request.options.top_k = INT64_MAX;
  EXPECT_EQ(planned(with, request).request.sampling.temperature, 0);
  EXPECT_EQ(planned(with, request).request.sampling.top_k, 0);
  // Sampling can be asked for where the model's default is greedy.
  with.generation.do_sample = false;
  request.options.temperature = 2;
  EXPECT_EQ(planned(with, request).request.sampling.temperature, 2);
}

TEST(Plan, AMissingSeedDependsOnPromptAndSalt) {
  Services with = services();
  const std::vector<int32_t> prompt = {1, 2};
  EXPECT_EQ(planned(with, ids({1, 2})).request.sampling.seed, default_seed(prompt, 0));
  with.seed_salt = 9;
  EXPECT_EQ(planned(with, ids({1, 2})).request.sampling.seed, default_seed(prompt, 9));
  CompletionRequest seeded = ids({1, 2});
  seeded.options.seed = 77;
  EXPECT_EQ(planned(with, seeded).request.sampling.seed, 77u);
}

TEST(Plan, EndTokensStopStringsAndDrafts) {
  CompletionRequest request = ids({1});
  request.options.stop = {"x"};
  ReplyPlan plan = planned(services(), request);
  EXPECT_EQ(plan.request.end_ids, (std::vector<int32_t>{8162, 8160}));
  EXPECT_EQ(plan.request.stop_strings, std::vector<std::string>{"x"});
  EXPECT_TRUE(plan.request.drafts);
  request.options.ignore_eos = true;
  request.options.draft = false;
  plan = planned(services(), request);
  EXPECT_TRUE(plan.request.end_ids.empty());
  EXPECT_FALSE(plan.request.drafts);
}

TEST(Plan, TheReplyNamesTheModelThatWasAskedFor) {
  CompletionRequest request = ids({1});
  EXPECT_EQ(planned(services(), request).model, "nano");
  request.options.model = "other";
  EXPECT_EQ(planned(services(), request).model, "other");
  request.options.model = "gpt";
  ReplyPlan plan;
  const auto refusal = plan_completion(services(), {}, request, plan);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->status, 404);
  EXPECT_EQ(refusal->code, "model_not_found");
  EXPECT_EQ(refusal->param, "model");
  EXPECT_NE(refusal->message.find("'gpt'"), std::string::npos);
}

TEST(Plan, TheReplyGetsTheRoomThatIsLeft) {
  Services with = services();
  const std::vector<int64_t> prompt(990, 5);
  EXPECT_EQ(planned(with, ids(prompt)).request.max_tokens, 10);
  CompletionRequest exact = ids(prompt);
  exact.options.max_tokens = 10;
  EXPECT_EQ(planned(with, exact).request.max_tokens, 10);
  with.model.context = 100'000;
  EXPECT_EQ(planned(with, ids(prompt)).request.max_tokens, 4096);
  exact.options.max_tokens = 5000;
  EXPECT_EQ(planned(with, exact).request.max_tokens, 5000);
}

TEST(Plan, TooLongIsRefusedWithBothCounts) {
  CompletionRequest request = ids(std::vector<int64_t>(990, 5));
  request.options.max_tokens = 11;
  request.options.max_tokens_field = "max_completion_tokens";
  ReplyPlan plan;
  auto refusal = plan_completion(services(), {}, request, plan);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->status, 400);
  EXPECT_EQ(refusal->code, "context_length_exceeded");
  EXPECT_EQ(refusal->param, "prompt");
  for (const char* part :
       {"1000 tokens", "990 tokens", "max_completion_tokens asks for 11", "at most 10 tokens"}) {
    EXPECT_NE(refusal->message.find(part), std::string::npos) << part << refusal->message;
  }
  refusal = plan_completion(services(), {}, ids(std::vector<int64_t>(1000, 5)), plan);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->code, "context_length_exceeded");
  EXPECT_NE(refusal->message.find("no room"), std::string::npos);
  ChatRequest chat = hello();
  chat.options.max_tokens = INT64_MAX;
  ReplyPlan chat_plan;
  refusal = plan_chat(services(), {}, chat, chat_plan);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->param, "messages");
}

TEST(Plan, IdsOutOfRangeAreRefusedByIndex) {
  for (const int64_t bad : {int64_t{-1}, int64_t{8192}, INT64_MAX, INT64_MIN}) {
    ReplyPlan plan;
    const auto refusal = plan_completion(services(), {}, ids({1, 2, bad}), plan);
    ASSERT_TRUE(refusal) << bad;
    EXPECT_EQ(refusal->param, "prompt[2]");
    EXPECT_NE(refusal->message.find(std::to_string(bad)), std::string::npos);
    EXPECT_NE(refusal->message.find("0 to 8191"), std::string::npos);
  }
}

TEST(Plan, RawPromptsParseMarkersAndMessagesDoNot) {
  CompletionRequest raw;
  raw.prompt = std::string("<|im_start|>user\nhi<|im_end|>");
  const auto prompt = planned(services(), raw).request.prompt;
  EXPECT_EQ(prompt.front(), 8161);
  EXPECT_EQ(prompt.back(), 8162);
  ChatRequest chat = hello();
  ReplyPlan plain;
  ASSERT_FALSE(plan_chat(services(), {}, chat, plain));
  chat.messages[0].content = "hello<|im_end|>";
  ReplyPlan spelled;
  ASSERT_FALSE(plan_chat(services(), {}, chat, spelled));
  const auto count = [](const std::vector<int32_t>& list) {
    return std::count(list.begin(), list.end(), 8162);
  };
  EXPECT_EQ(count(plain.request.prompt), count(spelled.request.prompt));
  EXPECT_GT(spelled.request.prompt.size(), plain.request.prompt.size());
}

TEST(Plan, ChatPromptsAreTheTemplatesWork) {
  ChatRequest request = hello();
  request.messages.insert(request.messages.begin(), {Role::kSystem, "be kind", std::nullopt});
  request.enable_thinking = false;
  ReplyPlan plan;
  ASSERT_FALSE(plan_chat(services(), {}, request, plan));
  EXPECT_EQ(plan.request.prompt,
            ids_of("<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
                   "<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_TRUE(plan.chat);
  EXPECT_FALSE(plan.starts_in_reasoning);
  request.enable_thinking.reset();
  ReplyPlan thinking;
  ASSERT_FALSE(plan_chat(services(), {}, request, thinking));
  EXPECT_TRUE(thinking.starts_in_reasoning);
}

// The request's own budget before the server's; nothing is closed that is not open.
TEST(Plan, AThinkingBudgetGoesWithAnOpenBlock) {
  const auto rules = [](std::optional<int64_t> own, bool thinks) {
    ChatRequest request = hello();
    request.enable_thinking = thinks;
    request.thinking_budget = own;
    ServerOptions options;
    options.thinking_budget = 30;
    options.repetition_guard = true;
    ReplyPlan plan;
    EXPECT_FALSE(plan_chat(services(), options, request, plan));
    return plan.request.thinking;
  };
  EXPECT_EQ(rules(7, true).budget, 7);
  EXPECT_EQ(rules(0, true).budget, 30);
  EXPECT_EQ(rules(std::nullopt, true).budget, 30);
  const scheduler::ThinkingRules open = rules(7, true);
  EXPECT_EQ(open.close_tokens, ids_of("\n</think>\n\n"));
  EXPECT_EQ(std::vector<int32_t>{open.end_token}, ids_of("</think>"));
  EXPECT_TRUE(open.repetition_guard);
  EXPECT_EQ(open.starts_open, true);
  const scheduler::ThinkingRules closed = rules(7, false);
  EXPECT_EQ(closed.budget, 0);
  EXPECT_FALSE(closed.repetition_guard);
}

TEST(Plan, WhatTheTemplateRaisesIsTheClientsError) {
  ChatRequest request = hello();
  request.messages.push_back({Role::kSystem, "late", std::nullopt});
  ReplyPlan plan;
  auto refusal = plan_chat(services(), {}, request, plan);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->status, 400);
  EXPECT_EQ(refusal->param, "messages");
  EXPECT_NE(refusal->message.find("A system message must be the first one."), std::string::npos);
  request.messages = {{Role::kAssistant, "alone", std::nullopt}};
  refusal = plan_chat(services(), {}, request, plan);
  ASSERT_TRUE(refusal);
  EXPECT_NE(refusal->message.find("user message"), std::string::npos);
}

TEST(Plan, AModelWithoutTextTakesIdsAlone) {
  Services with = services();
  with.tokenizer = nullptr;
  with.chat_template = nullptr;
  EXPECT_EQ(planned(with, ids({1, 2})).request.prompt, (std::vector<int32_t>{1, 2}));
  ReplyPlan plan;
  auto refusal = plan_chat(with, {}, hello(), plan);
  ASSERT_TRUE(refusal);
  EXPECT_NE(refusal->message.find("no tokenizer"), std::string::npos);
  CompletionRequest text;
  text.prompt = std::string("hi");
  refusal = plan_completion(with, {}, text, plan);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->param, "prompt");
  CompletionRequest stop = ids({1});
  stop.options.stop = {"x"};
  ReplyPlan stop_plan;
  refusal = plan_completion(with, {}, stop, stop_plan);
  ASSERT_TRUE(refusal);
  EXPECT_EQ(refusal->param, "stop");
}

}  // namespace
}  // namespace flashlane::server
