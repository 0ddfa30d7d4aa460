// A running server for tests.
#include "tests/server/served.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <thread>

namespace flashlane::testing {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

namespace {

std::string model_file(std::string_view name) {
  std::ifstream stream(fmt::format("{}/models/flash-next-nano-6bit/{}", FLASHLANE_SOURCE_DIR, name),
                       std::ios::binary);
  EXPECT_TRUE(stream.good()) << name;
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::shared_ptr<const scheduler::TokenBytes> token_bytes() {
  std::vector<std::string> bytes;
  bytes.reserve(static_cast<size_t>(nano_tokenizer().vocabulary()));
  for (int32_t id = 0; id < nano_tokenizer().vocabulary(); ++id) {
    bytes.emplace_back(nano_tokenizer().is_special(id) ? std::string_view()
                                                       : nano_tokenizer().token_bytes(id));
  }
  return std::make_shared<const scheduler::TokenBytes>(bytes);
}

}  // namespace

const text::Tokenizer& nano_tokenizer() {
  static const auto tokenizer = text::Tokenizer::parse(model_file("tokenizer.json"));
  return **tokenizer;
}

const text::ChatTemplate& nano_template() {
  static const auto chat_template = text::ChatTemplate::parse(model_file("chat_template.jinja"));
  return **chat_template;
}

std::vector<int32_t> ids_of(std::string_view text) {
  return nano_tokenizer().encode(text, {.parse_special = true}).value();
}

boost::json::value parsed(std::string_view text) {
  boost::system::error_code failure;
  auto value = boost::json::parse(boost::json::string_view(text.data(), text.size()), failure);
  EXPECT_FALSE(failure) << text;
  return value;
}

std::string text_at(const boost::json::value& value, std::string_view path) {
  boost::system::error_code failure;
  const std::string pointer = fmt::format("/{}", path);
  const boost::json::value* found = value.find_pointer(pointer, failure);
  if (found == nullptr) return "(none)";
  return found->is_string() ? std::string(found->get_string()) : boost::json::serialize(*found);
}

bool wait_until(const std::function<bool()>& condition, milliseconds limit) {
  const auto deadline = steady_clock::now() + limit;
  while (!condition()) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(1));
  }
  return true;
}

StreamedText joined(const RawReply& reply) {
  StreamedText out;
  for (const std::string& data : sse_data(reply.body)) {
    EXPECT_FALSE(out.done) << data;
    if (data == "[DONE]") {
      out.done = true;
      continue;
    }
    const boost::json::value chunk = parsed(data);
    const auto add = [&](std::string_view path, std::string& text) {
      const std::string found = text_at(chunk, path);
      if (found != "(none)" && found != "null") text += found;
    };
    add("choices/0/delta/reasoning_content", out.reasoning);
    add("choices/0/delta/content", out.content);
    add("choices/0/text", out.content);
    add("choices/0/finish_reason", out.finish_reason);
    add("flashlane/token_sha", out.token_sha);
  }
  return out;
}

Result<scheduler::StepResult> ScriptRunner::run(const scheduler::StepPlan& plan) {
  while (hold) std::this_thread::sleep_for(milliseconds(1));
  std::this_thread::sleep_for(milliseconds(step_delay_ms));
  if (steps++ == fail_at_step) return error(ErrorCode::kInternal, "the script failed");
  scheduler::StepResult result;
  for (const scheduler::Segment& segment : plan.segments) {
    result.segments.push_back(run_segment(segment));
  }
  return result;
}

scheduler::SegmentResult ScriptRunner::run_segment(const scheduler::Segment& segment) {
  std::lock_guard lock(mutex_);
  last_ = segment;
  scheduler::SegmentResult result;
  int next = segment.start_position + static_cast<int>(segment.tokens.size());
  if (segment.kind == scheduler::SegmentKind::kPrefill) {
    if (segment.start_position == 0) begun_.push_back(segment.tokens.front());
    if (segment.next_token >= 0) return result;
    prompt_end_ = next;
    result.tokens = {token_at(next)};
  } else {
    for (size_t row = 0; row < segment.tokens.size(); ++row) {
      next = segment.start_position + static_cast<int>(row) + 1;
      result.tokens.push_back(token_at(next));
      if (row + 1 < segment.tokens.size() && segment.tokens[row + 1] != token_at(next)) break;
    }
  }
  for (int i = 1; i <= segment.draft_depth; ++i) result.drafts.push_back(token_at(next + i));
  return result;
}

int32_t ScriptRunner::token_at(int position) const {
  const auto at = static_cast<size_t>(position - prompt_end_);
  return at < script.size() ? script[at] : filler;
}

std::vector<int32_t> ScriptRunner::prompts_begun() const {
  std::lock_guard lock(mutex_);
  return begun_;
}

scheduler::Segment ScriptRunner::last_segment() const {
  std::lock_guard lock(mutex_);
  return last_;
}

Served::Served(const std::shared_ptr<ScriptRunner>& runner, Options options)
    : Served([runner](const scheduler::StepPlan& plan) { return runner->run(plan); },
             std::move(options)) {}

Served::Served(engine::StepFunction run, Options options) {
  options.engine.scheduler.context = options.context;
  options.engine.scheduler.token_bytes = token_bytes();
  engine_ = std::make_unique<engine::Engine>(std::move(run), options.engine);
  server::Services services;
  services.engine = engine_.get();
  if (options.tokenizer) {
    services.tokenizer = &nano_tokenizer();
    services.chat_template = &nano_template();
  }
  services.generation = options.generation;
  if (services.generation.eos_ids.empty()) {
    services.generation.eos_ids = {kNanoImEnd, kNanoEndOfText};
  }
  services.model = {.name = "flash-next-nano",
                    .aliases = {"nano", "org/nano:6bit"},
                    .context = options.context,
                    .vocabulary = kNanoVocabulary,
                    .created = 1234567890};
  options.server.port = 0;
  auto started = server::Server::start(options.server, services);
  EXPECT_TRUE(started.ok());
  server_ = std::move(started).value();
}

Served::~Served() {
  server_->stop();
}

RawReply Served::send(std::string_view path, std::string_view body) const {
  return exchange(port(), post(path, body));
}

bool Served::becomes_idle(milliseconds limit) const {
  return wait_until(
      [&] {
        const engine::EngineStatus status = engine_->status();
        return status.running == 0 && status.waiting == 0;
      },
      limit);
}

}  // namespace flashlane::testing
