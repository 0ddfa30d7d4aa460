// What the server serves with: the engine, the text side of one model, and the names it goes by.
// Everything outlives the server; nothing here is changed while it runs.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "text/chat_template.h"
#include "text/generation_config.h"
#include "text/tokenizer.h"

namespace flashlane::server {

struct ModelInfo {
  std::string name;
  std::vector<std::string> aliases;
  int context = 0;      // most tokens of prompt and reply
  int vocabulary = 0;   // token ids are below this
  int64_t created = 0;  // seconds since 1970
};

struct Services {
  engine::Engine* engine = nullptr;
  const text::Tokenizer* tokenizer = nullptr;         // may be null: token ids only
  const text::ChatTemplate* chat_template = nullptr;  // may be null: no chat
  text::GenerationConfig generation;
  ModelInfo model;
  bool keeps_prompts = false;  // the engine keeps states of prompts
  uint64_t seed_salt = 0;
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  int port = 8080;  // 0 = any free one
  size_t max_connections = 128;
  size_t max_body_bytes = 32u << 20;
  int default_max_tokens = 4096;
  int thinking_budget = 0;        // of requests that bring none; 0 = no limit
  bool repetition_guard = false;  // closes a think block that goes round in circles
  std::chrono::milliseconds read_timeout{30'000};
  std::chrono::milliseconds idle_timeout{75'000};
  std::chrono::milliseconds write_timeout{30'000};
  std::chrono::milliseconds keep_alive_interval{5'000};  // of comment lines in a silent stream
  std::chrono::milliseconds stop_grace{1'000};
};

}  // namespace flashlane::server
