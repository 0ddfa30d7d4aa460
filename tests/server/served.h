// A running server for tests: the bundled model's tokenizer and template, a real engine, and a
// runner that the test scripts (or any step function), so that every token and every delay is
// known.
#pragma once

#include <atomic>
#include <boost/json.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/server.h"
#include "tests/server/raw_client.h"

namespace flashlane::testing {

// Replies with the script, whatever was asked, then with the filler; drafts are right.
class ScriptRunner {
 public:
  std::vector<int32_t> script;
  int32_t filler = 0;
  std::atomic<bool> hold = false;  // steps wait while set
  std::atomic<int> step_delay_ms = 0;
  std::atomic<int> steps = 0;
  int fail_at_step = -1;

  Result<scheduler::StepResult> run(const scheduler::StepPlan& plan);
  // First tokens of the prompts in the order in which they were begun.
  std::vector<int32_t> prompts_begun() const;
  scheduler::Segment last_segment() const;

 private:
  scheduler::SegmentResult run_segment(const scheduler::Segment& segment);
  int32_t token_at(int position) const;

  mutable std::mutex mutex_;
  int prompt_end_ = 0;
  std::vector<int32_t> begun_;
  scheduler::Segment last_;
};

struct ServedOptions {
  server::ServerOptions server = {};
  engine::EngineOptions engine = {};
  text::GenerationConfig generation = {};  // eos_ids: those of the bundled model when empty
  bool tokenizer = true;
  int context = 4096;
};

class Served {
 public:
  using Options = ServedOptions;
  explicit Served(engine::StepFunction run, Options options = {});
  explicit Served(const std::shared_ptr<ScriptRunner>& runner, Options options = {});
  ~Served();

  int port() const { return server_->port(); }
  server::Server& server() { return *server_; }
  engine::Engine& engine() { return *engine_; }
  const engine::Engine& engine() const { return *engine_; }
  RawReply send(std::string_view path, std::string_view body) const;
  bool becomes_idle(std::chrono::milliseconds limit = std::chrono::seconds(60)) const;

 private:
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<server::Server> server_;
};

// Of the bundled model, loaded once.
const text::Tokenizer& nano_tokenizer();
const text::ChatTemplate& nano_template();
inline constexpr int kNanoVocabulary = 8192;
inline constexpr int32_t kNanoImEnd = 8162;
inline constexpr int32_t kNanoEndOfText = 8160;

std::vector<int32_t> ids_of(std::string_view text);
boost::json::value parsed(std::string_view text);
// The text at a path such as "choices/0/message/content"; "(none)" when there is none.
std::string text_at(const boost::json::value& value, std::string_view path);
bool wait_until(const std::function<bool()>& condition,
                std::chrono::milliseconds limit = std::chrono::seconds(120));

// All deltas of a stream joined.
struct StreamedText {
  std::string reasoning;
  std::string content;
  std::string finish_reason;
  std::string token_sha;
  bool done = false;  // [DONE] came, and nothing after it
};
StreamedText joined(const RawReply& reply);

}  // namespace flashlane::testing
