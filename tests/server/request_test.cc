// Request bodies: what is accepted and with which meaning, what is refused, and that every refusal
// names the field.
#include <gtest/gtest.h>

#include "server/json_reader.h"
#include "server/openai_types.h"

namespace flashlane::server {
namespace {

std::string with_message(std::string_view fields) {
  return fmt::format(R"({{"messages":[{{"role":"user","content":"hi"}}]{}{}}})",
                     fields.empty() ? "" : ",", fields);
}

std::string with_prompt(std::string_view fields) {
  return fmt::format(R"({{"prompt":"hi"{}{}}})", fields.empty() ? "" : ",", fields);
}

ChatRequest chat(std::string_view fields) {
  const Result<ChatRequest> request = parse_chat_request(with_message(fields));
  EXPECT_TRUE(request.ok()) << fields << ": " << (request.ok() ? "" : request.error().message);
  return request.ok() ? request.value() : ChatRequest{};
}

struct Refusal {
  std::string_view fields;
  std::string_view field;    // Error::field
  std::string_view message;  // part of it
};

void expect_refused(const Error& error, const Refusal& refusal) {
  EXPECT_EQ(error.field, refusal.field) << refusal.fields;
  EXPECT_NE(error.message.find(refusal.message), std::string::npos)
      << refusal.fields << ": " << error.message;
}

TEST(Request, DefaultsAskForNothing) {
  const ReplyOptions options = chat("").options;
  EXPECT_EQ(options.model, "");
  EXPECT_FALSE(options.max_tokens || options.temperature || options.top_p || options.min_p ||
               options.top_k || options.seed || options.stream || options.include_usage ||
               options.return_token_ids || options.ignore_eos);
  EXPECT_TRUE(options.draft);
  EXPECT_TRUE(options.stop.empty());
}

TEST(Request, NullIsAbsent) {
  const ChatRequest request = chat(
      R"("model":null,"max_tokens":null,"temperature":null,"top_p":null,"top_k":null,"min_p":null,
         "seed":null,"stop":null,"stream":null,"stream_options":null,"draft":null,"tools":null,
         "logprobs":null,"n":null,"unheard_of":null,"enable_thinking":null,
         "chat_template_kwargs":null,"reasoning_effort":null,"response_format":null)");
  EXPECT_FALSE(request.options.temperature || request.options.max_tokens ||
               request.enable_thinking);
}

TEST(Request, FieldsAreRead) {
  const ReplyOptions options =
      chat(R"("model":"nano","max_tokens":5,"temperature":0.5,"top_p":0.25,"min_p":0.125,"top_k":7,
              "seed":-1,"stop":["a","b"],"stream":true,"stream_options":{"include_usage":true},
              "draft":false,"return_token_ids":true,"ignore_eos":true,"user":"u","metadata":{})")
          .options;
  EXPECT_EQ(options.model, "nano");
  EXPECT_EQ(options.max_tokens, 5);
  EXPECT_EQ(options.temperature, 0.5);
  EXPECT_EQ(options.top_p, 0.25);
  EXPECT_EQ(options.min_p, 0.125);
  EXPECT_EQ(options.top_k, 7);
  EXPECT_EQ(options.seed, UINT64_MAX);
  EXPECT_EQ(options.stop, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE(options.stream && options.include_usage && options.return_token_ids &&
              options.ignore_eos);
  EXPECT_FALSE(options.draft);
}

TEST(Request, MaxTokensHasTwoNamesAndZeroIsTheDefault) {
  EXPECT_FALSE(chat(R"("max_tokens":0)").options.max_tokens);
  EXPECT_EQ(chat(R"("max_completion_tokens":8)").options.max_tokens, 8);
  EXPECT_EQ(chat(R"("max_completion_tokens":8)").options.max_tokens_field, "max_completion_tokens");
  EXPECT_EQ(chat(R"("max_completion_tokens":8,"max_tokens":0)").options.max_tokens, 8);
  EXPECT_EQ(chat(R"("max_completion_tokens":8,"max_tokens":9)").options.max_tokens, 9);
  EXPECT_EQ(chat(R"("max_tokens":16.0)").options.max_tokens, 16);
}

TEST(Request, SeedsOfSixtyFourBits) {
  EXPECT_EQ(chat(R"("seed":18446744073709551615)").options.seed, UINT64_MAX);
  EXPECT_EQ(chat(R"("seed":9223372036854775808)").options.seed, uint64_t{1} << 63);
  EXPECT_EQ(chat(R"("seed":0)").options.seed, 0u);
}

TEST(Request, TextPartsAreJoined) {
  const auto request = parse_chat_request(
      R"({"messages":[{"role":"developer","content":[{"type":"text","text":"a"},
         {"type":"text","text":"b"}]},{"role":"user","content":""},
         {"role":"assistant","content":null,"reasoning":"r","tool_calls":null},
         {"role":"assistant","reasoning_content":"s","reasoning":"t"},
         {"role":"tool","content":"1","tool_call_id":"x","name":"f"}]})");
  ASSERT_TRUE(request.ok()) << request.error().message;
  const auto& messages = request.value().messages;
  EXPECT_EQ(messages[0].role, Role::kSystem);
  EXPECT_EQ(messages[0].content, "ab");
  EXPECT_EQ(messages[2].content, "");
  EXPECT_EQ(messages[2].reasoning, "r");
  EXPECT_EQ(messages[3].reasoning, "s");
  EXPECT_EQ(messages[4].role, Role::kTool);
}

TEST(Request, ThinkingHasManySpellings) {
  EXPECT_FALSE(chat("").enable_thinking);
  EXPECT_EQ(chat(R"("enable_thinking":false)").enable_thinking, false);
  EXPECT_EQ(chat(R"("chat_template_kwargs":{"enable_thinking":true})").enable_thinking, true);
  EXPECT_EQ(chat(R"("chat_template_kwargs":{"preserve_thinking":false})").preserve_thinking, false);
  const ChatRequest none = chat(R"("reasoning_effort":"none")");
  EXPECT_EQ(none.enable_thinking, false);
  EXPECT_EQ(none.reasoning_effort, "");
  const std::pair<const char*, const char*> levels[] = {{"minimal", "low"},   {"low", "low"},
                                                        {"medium", "medium"}, {"high", "xhigh"},
                                                        {"xhigh", "xhigh"},   {"max", "xhigh"}};
  for (const auto& [name, level] : levels) {
    const ChatRequest request = chat(fmt::format(R"("reasoning_effort":"{}")", name));
    EXPECT_EQ(request.enable_thinking, true) << name;
    EXPECT_EQ(request.reasoning_effort, level) << name;
  }
  // Thinking that is off stays off, whatever the level would be.
  const ChatRequest off = chat(R"("reasoning_effort":"high","enable_thinking":false)");
  EXPECT_EQ(off.enable_thinking, false);
  EXPECT_EQ(off.reasoning_effort, "");
}

TEST(Request, ValuesThatAskForNothingAreAccepted) {
  for (const char* fields :
       {R"("n":1)", R"("n":1.0)", R"("logprobs":false)", R"("top_logprobs":0)",
        R"("logit_bias":{})", R"("presence_penalty":0)", R"("frequency_penalty":0.0)",
        R"("repetition_penalty":1)", R"("response_format":{"type":"text"})", R"("tools":[])",
        R"("tool_choice":"none")", R"("store":false)", R"("service_tier":"auto")",
        R"("modalities":["text"])", R"("metadata":{"a":"b"})"}) {
    chat(fields);
  }
  for (const char* fields : {R"("echo":false)", R"("best_of":1)", R"("suffix":"")",
                             R"("suffix":null)", R"("logprobs":null)"}) {
    EXPECT_TRUE(parse_completion_request(with_prompt(fields)).ok()) << fields;
  }
}

TEST(Request, LogProbabilitiesAndPenaltiesAreRead) {
  EXPECT_EQ(chat(R"("logprobs":false,"top_logprobs":0)").options.logprobs, std::nullopt);
  EXPECT_EQ(chat(R"("logprobs":true)").options.logprobs, 0);
  EXPECT_EQ(chat(R"("logprobs":true,"top_logprobs":20)").options.logprobs, 20);
  const auto completion = parse_completion_request(with_prompt(R"("logprobs":3)"));
  ASSERT_TRUE(completion.ok());
  EXPECT_EQ(completion->options.logprobs, 3);
  const ReplyOptions options =
      chat(R"("presence_penalty":-2,"frequency_penalty":0.5,"repetition_penalty":1.25)").options;
  EXPECT_EQ(options.presence_penalty, -2);
  EXPECT_EQ(options.frequency_penalty, 0.5);
  EXPECT_EQ(options.repetition_penalty, 1.25);
}

TEST(Request, ChatFieldsAreRefusedByName) {
  const Refusal refusals[] = {
      {R"("model":1)", "model", "must be a string, not a number"},
      {R"("max_tokens":-1)", "max_tokens", "is -1"},
      {R"("max_tokens":1e300)", "max_tokens", "integer of 0 or more"},
      {R"("max_tokens":99999999999999999999)", "max_tokens", "integer"},
      {R"("max_completion_tokens":"5")", "max_completion_tokens", "not a string"},
      {R"("temperature":true)", "temperature", "must be a number, not a boolean"},
      {R"("temperature":-0.1)", "temperature", "from 0 to 2"},
      {R"("temperature":2.1)", "temperature", "is 2.1"},
      {R"("temperature":1e999)", "temperature", "not finite"},
      {R"("temperature":2.5)", "temperature", "is 2.5;"},
      {R"("max_tokens":1.5)", "max_tokens", "is 1.5;"},
      {R"("top_p":0)", "top_p", "above 0 and at most 1"},
      {R"("top_p":1.01)", "top_p", "at most 1"},
      {R"("min_p":-1)", "min_p", "from 0 to 1"},
      {R"("top_k":2.5)", "top_k", "integer"},
      {R"("top_k":18446744073709551616)", "top_k", "2147483647"},
      {R"("seed":"1")", "seed", "must be an integer, not a string"},
      {R"("seed":1.5)", "seed", "64 bits"},
      {R"("seed":1e30)", "seed", "64 bits"},
      {R"("stop":5)", "stop", "a string or a list of strings"},
      {R"("stop":[""])", "stop", "empty"},
      {R"("stop":["a",1])", "stop[1]", "must be a string"},
      {R"("stop":["1","2","3","4","5","6","7","8","9","10","11","12","13","14","15","16","17"])",
       "stop", "has 17 entries; at most 16"},
      {R"("stream":1)", "stream", "true or false"},
      {R"("stream_options":{})", "stream_options", "only allowed with stream"},
      {R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage",
       "true or false"},
      {R"("stream":true,"stream_options":{"x":1})", "stream_options.x", "not a field"},
      {R"("draft":"no")", "draft", "true or false"},
      {R"("enable_thinking":"false")", "enable_thinking", "true or false"},
      {R"("chat_template_kwargs":{"enable_thinking":0})", "chat_template_kwargs.enable_thinking",
       "true or false"},
      {R"("chat_template_kwargs":{"tools":1})", "chat_template_kwargs.tools", "not a field"},
      {R"("enable_thinking":true,"chat_template_kwargs":{"enable_thinking":false})",
       "chat_template_kwargs.enable_thinking", "differs"},
      {R"("enable_thinking":true,"reasoning_effort":"none")", "reasoning_effort", "'none'"},
      {R"("reasoning_effort":"extreme")", "reasoning_effort", "'extreme'"},
      {R"("tools":[{"type":"function"}])", "tools", "not supported yet"},
      {R"("tool_choice":"auto")", "tool_choice", "not supported yet"},
      {R"("functions":[{}])", "functions", "not supported yet"},
      {R"("response_format":{"type":"json_object"})", "response_format", "not supported yet"},
      {R"("logprobs":5)", "logprobs", "true or false"},
      {R"("top_logprobs":2)", "top_logprobs", "only allowed with logprobs true"},
      {R"("logprobs":true,"top_logprobs":21)", "top_logprobs", "is 21"},
      {R"("logprobs":true,"top_logprobs":-1)", "top_logprobs", "from 0 to 20"},
      {R"("n":2)", "n", "leave it out or send 1"},
      {R"("logit_bias":{"5":1})", "logit_bias", "not supported yet"},
      {R"("presence_penalty":2.5)", "presence_penalty", "from -2 to 2"},
      {R"("frequency_penalty":-3)", "frequency_penalty", "is -3"},
      {R"("repetition_penalty":0)", "repetition_penalty", "from 0.01 to 100"},
      {R"("repetition_penalty":"1.1")", "repetition_penalty", "not a string"},
      {R"("audio":{"voice":"x"})", "audio", "not supported yet"},
      {R"("store":true)", "store", "not supported yet"},
      {R"("prompt":"x")", "prompt", "not a field"},
      {R"("no_such_field":1)", "no_such_field", "not a field"},
      {R"("thinking_budget":-1)", "thinking_budget", "it must be an integer"},
      {R"("thinking_budget":"5")", "thinking_budget", "must be an integer"},
      {R"("thinking_token_budget":5)", "thinking_token_budget", "not a field"},
      {R"("user":5)", "user", "must be a string"},
  };
  for (const Refusal& refusal : refusals) {
    const auto request = parse_chat_request(with_message(refusal.fields));
    ASSERT_FALSE(request.ok()) << refusal.fields;
    expect_refused(request.error(), refusal);
  }
}

TEST(Request, MessagesAreRefusedByPlace) {
  const Refusal refusals[] = {
      {R"({})", "messages", "is missing"},
      {R"({"messages":null})", "messages", "is missing"},
      {R"({"messages":{}})", "messages", "must be a list, not an object"},
      {R"({"messages":[]})", "messages", "is empty"},
      {R"({"messages":["x"]})", "messages[0]", "must be an object"},
      {R"({"messages":[{"content":"x"}]})", "messages[0].role", "is missing"},
      {R"({"messages":[{"role":"bot","content":"x"}]})", "messages[0].role", "'bot'"},
      {R"({"messages":[{"role":"user"}]})", "messages[0].content", "is missing"},
      {R"({"messages":[{"role":"user","content":5}]})", "messages[0].content", "a number"},
      {R"({"messages":[{"role":"user","content":["x"]}]})", "messages[0].content[0]",
       "must be an object"},
      {R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{}}]}]})",
       "messages[0].content[0].type", "'image_url'"},
      {R"({"messages":[{"role":"user","content":[{"text":"x"}]}]})", "messages[0].content[0].type",
       "is missing"},
      {R"({"messages":[{"role":"user","content":[{"type":"text"}]}]})",
       "messages[0].content[0].text", "is missing"},
      {R"({"messages":[{"role":"user","content":"x"},{"role":"user","content":"x","name":"a"}]})",
       "messages[1].name", "not a field"},
      {R"({"messages":[{"role":"assistant","tool_calls":[{}]}]})", "messages[0].tool_calls",
       "not supported yet"},
      {R"({"messages":[{"role":"user","content":"x","reasoning_content":"y"}]})",
       "messages[0].reasoning_content", "not a field"},
  };
  for (const Refusal& refusal : refusals) {
    const auto request = parse_chat_request(refusal.fields);
    ASSERT_FALSE(request.ok()) << refusal.fields;
    expect_refused(request.error(), refusal);
  }
}

TEST(Request, PromptsOfEveryShape) {
  const auto text = [](std::string_view body) {
    const auto request = parse_completion_request(body);
    EXPECT_TRUE(request.ok()) << body;
    return std::get<std::string>(request.value().prompt);
  };
  const auto ids = [](std::string_view body) {
    const auto request = parse_completion_request(body);
    EXPECT_TRUE(request.ok()) << body;
    return std::get<std::vector<int64_t>>(request.value().prompt);
  };
  EXPECT_EQ(text(R"({"prompt":"a"})"), "a");
  EXPECT_EQ(text(R"({"prompt":["a"]})"), "a");
  EXPECT_EQ(ids(R"({"prompt":[1,2]})"), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(ids(R"({"prompt":[[3]]})"), (std::vector<int64_t>{3}));
  const Refusal refusals[] = {
      {R"({})", "prompt", "is missing"},
      {R"({"prompt":""})", "prompt", "is empty"},
      {R"({"prompt":[]})", "prompt", "is empty"},
      {R"({"prompt":[[]]})", "prompt", "is empty"},
      {R"({"prompt":[""]})", "prompt", "is empty"},
      {R"({"prompt":5})", "prompt", "not a number"},
      {R"({"prompt":["a","b"]})", "prompt", "has 2 prompts"},
      {R"({"prompt":[[1],[2]]})", "prompt", "has 2 prompts"},
      {R"({"prompt":[1,"a"]})", "prompt[1]", "not a string"},
      {R"({"prompt":[1,2.5]})", "prompt[1]", "an integer"},
      {R"({"prompt":[[[1]]]})", "prompt[0]", "a list"},
      {R"({"prompt":"a","echo":true})", "echo", "not supported yet"},
      {R"({"prompt":"a","logprobs":21})", "logprobs", "is 21"},
      {R"({"prompt":"a","logprobs":true})", "logprobs", "not a boolean"},
      {R"({"prompt":"a","top_logprobs":1})", "top_logprobs", "not a field"},
      {R"({"prompt":"a","best_of":2})", "best_of", "not supported yet"},
      {R"({"prompt":"a","suffix":"b"})", "suffix", "not supported yet"},
      {R"({"prompt":"a","messages":[]})", "messages", "not a field"},
      {R"({"prompt":"a","enable_thinking":true})", "enable_thinking", "not a field"},
  };
  for (const Refusal& refusal : refusals) {
    const auto request = parse_completion_request(refusal.fields);
    ASSERT_FALSE(request.ok()) << refusal.fields;
    expect_refused(request.error(), refusal);
  }
}

std::string parse_error(std::string_view body) {
  const auto value = parse_json(body);
  return value.ok() ? "" : value.error().message;
}

TEST(Request, WhatIsNotJsonIsRefusedWithThePlace) {
  EXPECT_NE(parse_error("").find("is empty"), std::string::npos);
  EXPECT_NE(parse_error("{\"a\":tru}").find("at byte 5"), std::string::npos)
      << parse_error("{\"a\":tru}");
  EXPECT_NE(parse_error("{\"a\":1} x").find("byte 8"), std::string::npos)
      << parse_error("{\"a\":1} x");
  EXPECT_NE(parse_error("{\"a\":").find("not JSON"), std::string::npos);
  EXPECT_NE(parse_error("[1]").find("is a list"), std::string::npos);
  EXPECT_NE(parse_error("{\"a\":NaN}").find("not JSON"), std::string::npos);
  EXPECT_EQ(parse_error(" {\"a\":1} \n"), "");
}

TEST(Request, InvalidUtf8IsRefusedWithThePlace) {
  EXPECT_NE(parse_error("{\"a\":\"\xFF\"}").find("UTF-8 (byte 6)"), std::string::npos);
  EXPECT_NE(parse_error("{\"a\":\"\xC0\x80\"}").find("UTF-8 (byte 6)"), std::string::npos);
  EXPECT_NE(parse_error("{\"a\":\"\xED\xA0\x80\"}").find("UTF-8 (byte 6)"), std::string::npos);
  EXPECT_NE(parse_error("{\"a\":\"\xE2\x82\"}").find("UTF-8 (byte 6)"), std::string::npos);
  // Half a surrogate pair would become invalid text.
  EXPECT_NE(parse_error("{\"a\":\"\\ud800\"}").find("not JSON"), std::string::npos);
  EXPECT_EQ(parse_error("{\"a\":\"\\ud83d\\ude00 \xF0\x9F\x98\x80\"}"), "");
}

TEST(Request, DepthAndMemoryAreBounded) {
  const auto nested = [](size_t depth) {
    return "{\"a\":" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_EQ(parse_error(nested(kMaxJsonDepth - 2)), "");
  EXPECT_NE(parse_error(nested(1000)).find("deeper than 32"), std::string::npos)
      << parse_error(nested(1000));
  std::string wide = "{\"a\":[";
  while (wide.size() < (30u << 20)) wide += "[],[],[],[],[],[],[],[],";
  EXPECT_NE(parse_error(wide + "1]}").find("MiB once parsed"), std::string::npos)
      << parse_error(wide + "1]}");
}

TEST(Request, HostileNamesAreShownShortAndClean) {
  const std::string name(100'000, 'x');
  const auto request = parse_chat_request(with_message(fmt::format("\"{}\":1", name)));
  ASSERT_FALSE(request.ok());
  EXPECT_LT(request.error().message.size(), 300u);
  const auto control = parse_chat_request(with_message("\"a\\nb\\u001b\":1"));
  ASSERT_FALSE(control.ok());
  EXPECT_EQ(control.error().field, "a?b?");
}

}  // namespace
}  // namespace flashlane::server
