// Many clients at once, over sockets and at the engine's own door, with replies of every kind, who
// leave before, during or after them, while others read the figures and a step fails now and then.
// Every reply that ends well is the one that its request gets alone, every other says why, and
// when all are gone nothing is left (E1, E2, H1, H2, H3, H6). SOAK_SECONDS in the environment says
// for how long, 3 without it; it goes on until it has done enough, so a slow machine takes longer.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <optional>
#include <random>
#include <thread>

#include "base/sha256.h"
#include "model/load.h"
#include "runner/runner.h"
#include "tests/server/served.h"
#include "tests/support/tiny_model.h"

namespace flashlane::server {
namespace {

using engine::FinishReason;
using engine::ReplyEvent;
using flashlane::testing::kTinyContext;
using flashlane::testing::kTinyRows;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::exchange;
using testing::get;
using testing::joined;
using testing::parsed;
using testing::post;
using testing::RawClient;
using testing::RawReply;
using testing::Served;
using testing::text_at;
using Tokens = std::vector<int32_t>;
using Dice = std::minstd_rand;

constexpr std::string_view kCompletions = "/v1/completions";
constexpr std::string_view kFailure = "a step that fails on purpose";
constexpr int kTinyVocabulary = 512;
constexpr size_t kSocketClients = 24;
constexpr size_t kDirectClients = 8;
constexpr size_t kKinds = 16;    // of requests, each at either door
constexpr int kFailEvery = 199;  // steps
constexpr size_t kRoom = 1024;   // more than can come and leave during one step
constexpr int kAll = std::numeric_limits<int>::max();  // events of a reply
constexpr seconds kPatience{600};                      // for having done enough
constexpr milliseconds kEvent{60000};                  // for the next event of a reply that runs

// What was done, each with how often it must be in the short run.
enum class Did : uint8_t {
  kWhole,
  kStreamed,
  kLogprobs,
  kDirect,
  kLeftBefore,
  kLeftDuring,
  kLeftAfter,
  kHalfClosed,
  kCancelled,
  kCancelledTwice,
  kDropped,
  kFailed,
  kStatus,
  kMetrics,
  kCount,
};
struct Wanted {
  const char* name;
  int64_t least;
};
constexpr std::array<Wanted, static_cast<size_t>(Did::kCount)> kWanted = {{
    {"whole replies compared", 20},
    {"streamed replies compared", 20},
    {"log probabilities compared", 5},
    {"replies at the engine's door compared", 10},
    {"left before the reply", 5},
    {"left during the reply", 5},
    {"left after the reply", 5},
    {"closed half", 5},
    {"cancelled", 5},
    {"cancelled twice", 3},
    {"dropped", 5},
    {"failed with a step", 2},
    {"status read", 20},
    {"metrics read", 20},
}};

int soak_seconds() {
  const char* const text = std::getenv("SOAK_SECONDS");
  return text == nullptr ? 3 : std::max(1, std::atoi(text));
}

// Half of the tiny model's layers, a sparse one and the n-gram layer among them.
model::Model& small_model() {
  static const auto model = flashlane::testing::load_test_model(
      model::locate_model("synth:tiny,layers=4").value(), "cpu");
  return *model;
}

// One kind of request, as each door takes it, and what it gets alone.
struct Kind {
  std::string fields;  // of the body, without its braces
  std::string sha;
  std::string logprobs;  // of a whole reply; "null" where none are asked for
  engine::Request request;
  Tokens tokens;
};

class Soak : public ::testing::Test {
 protected:
  void SetUp() override {
    auto created = runner::Runner::create(
        small_model(), {.slots = 16, .context = kTinyContext, .max_rows = kTinyRows});
    ASSERT_TRUE(created.ok()) << created.error().message;
    std::shared_ptr<runner::Runner> runner = std::move(created).value();
    testing::ServedOptions options;
    options.context = kTinyContext;
    options.engine.scheduler.slots = 16;
    options.engine.inbox = kRoom;
    options.server.max_connections = kRoom;
    options.engine.scheduler.prefill_chunk = 32;
    options.generation.eos_ids = {3, 77, 500};
    options.engine = engine::with_pool_of(*runner, options.engine);
    served_ = std::make_unique<Served>(
        [this, runner](const scheduler::StepPlan& plan) -> Result<scheduler::StepResult> {
          if (failing_ && ++steps_ % kFailEvery == 0) return error(ErrorCode::kInternal, kFailure);
          return runner->run(plan);
        },
        options);
    for (size_t i = 0; i < kKinds; ++i) kinds_[i] = make_kind(i);
  }

  Kind make_kind(size_t index) {
    Kind kind;
    Dice dice(static_cast<unsigned>(index + 1));
    const size_t length = 1 + index * 5 % 40;
    // Few ids in short rounds, so that copies of the context are tried as well as the head.
    Tokens prompt;
    for (size_t i = 0; i < length; ++i) {
      prompt.push_back(i > 12 && index % 2 == 0 ? prompt[i - 9] : pick(dice, kTinyVocabulary));
    }
    kind.fields =
        fmt::format(R"("prompt":[{}],"max_tokens":{},"temperature":{},"seed":{})",
                    fmt::join(prompt, ","), 3 + index % 5 * 3, index % 2 == 0 ? "0" : "0.9", index);
    if (index % 4 >= 2) {
      kind.fields += R"(,"presence_penalty":0.5,"frequency_penalty":0.2,"repetition_penalty":1.1)";
    }
    if (index % 3 == 0) kind.fields += R"(,"logprobs":2)";
    if (index % 5 == 1) kind.fields += R"(,"stop":["e","t"])";
    const auto alone = parsed(
        served_->send(kCompletions, fmt::format(R"({{{},"draft":false}})", kind.fields)).body);
    kind.sha = text_at(alone, "flashlane/token_sha");
    kind.logprobs = text_at(alone, "choices/0/logprobs");
    EXPECT_EQ(kind.sha.size(), 64u) << boost::json::serialize(alone);
    kind.request = {.prompt = prompt, .max_tokens = static_cast<int>(5 + index % 4 * 4)};
    if (index % 2 == 1) {
      kind.request.sampling = {.temperature = 0.9F, .top_k = 40, .seed = index};
    }
    kind.request.thinking.budget = index % 4 >= 2 ? 3 : 0;
    kind.request.thinking.end_token = 9;
    kind.request.thinking.close_tokens = {8, 9, 10};
    kind.request.drafts = false;
    engine::Reply reply = served_->engine().submit(kind.request).value();
    EXPECT_EQ(read(reply, kind.tokens, kAll), FinishReason::kLength);
    return kind;
  }

  static int pick(Dice& dice, int count) {
    return static_cast<int>(dice() % static_cast<unsigned>(count));
  }
  void did(Did what) { ++counts_[static_cast<size_t>(what)]; }
  bool goes_on() const {
    const auto now = steady_clock::now();
    return now < end_ || (now < end_ + kPatience && !enough());
  }
  // Longer runs have to do more, though not in proportion where the build is slow.
  int64_t least(size_t what) const {
    return kWanted[what].least * std::clamp(soak_seconds() / 3, 1, 4);
  }
  bool enough() const {
    for (size_t what = 0; what < counts_.size(); ++what) {
      if (counts_[what] < least(what)) return false;
    }
    return true;
  }

  void ask_over_sockets(unsigned seed);
  void take_whole(const Kind& kind, const RawReply& reply);
  void take_stream(const Kind& kind, const RawReply& reply);
  void leave(const Kind& kind, const std::string& fields, Dice& dice);
  void ask_the_engine(unsigned seed);
  static std::optional<FinishReason> read(engine::Reply& reply, Tokens& tokens, int most);
  void read_figures();

  std::array<Kind, kKinds> kinds_;
  std::array<std::atomic<int64_t>, static_cast<size_t>(Did::kCount)> counts_ = {};
  std::atomic<bool> failing_ = false;
  int steps_ = 0;  // the engine thread's
  steady_clock::time_point end_;
  std::unique_ptr<Served> served_;
};

// One connection, kept for the requests that are read to their end.
void Soak::ask_over_sockets(unsigned seed) {
  Dice dice(seed);
  auto client = std::make_unique<RawClient>(served_->port());
  while (goes_on()) {
    const Kind& kind = kinds_[static_cast<size_t>(pick(dice, kKinds))];
    std::string fields = kind.fields;
    if (pick(dice, 2) == 0) fields += R"(,"draft":false)";
    const int way = pick(dice, 4);
    if (way == 3) {
      leave(kind, fields, dice);
      continue;
    }
    const bool stream = way == 2;
    if (stream) fields += R"(,"stream":true)";
    ASSERT_TRUE(client->send(post(kCompletions, fmt::format("{{{}}}", fields))));
    const RawReply reply = client->read_reply();
    ASSERT_TRUE(reply.complete) << fields;
    stream ? take_stream(kind, reply) : take_whole(kind, reply);
    // A connection after the reply, which the server still waits on.
    if (pick(dice, 4) == 0) {
      client = std::make_unique<RawClient>(served_->port());
      did(Did::kLeftAfter);
    }
  }
}

void Soak::take_whole(const Kind& kind, const RawReply& reply) {
  if (reply.status != 200) {
    EXPECT_EQ(reply.status, 500) << reply.body;
    EXPECT_NE(reply.body.find(kFailure), std::string::npos) << reply.body;
    return did(Did::kFailed);
  }
  const auto value = parsed(reply.body);
  EXPECT_EQ(text_at(value, "flashlane/token_sha"), kind.sha) << kind.fields;
  EXPECT_EQ(text_at(value, "choices/0/logprobs"), kind.logprobs) << kind.fields;
  did(Did::kWhole);
  if (kind.logprobs != "null") did(Did::kLogprobs);
}

void Soak::take_stream(const Kind& kind, const RawReply& reply) {
  EXPECT_EQ(reply.status, 200);
  const testing::StreamedText text = joined(reply);
  EXPECT_TRUE(text.done);
  if (text.token_sha.empty()) {
    EXPECT_NE(reply.body.find(kFailure), std::string::npos) << reply.body;
    return did(Did::kFailed);
  }
  EXPECT_EQ(text.token_sha, kind.sha) << kind.fields;
  did(Did::kStreamed);
}

// A client that hangs up somewhere, or closes its sending side alone and waits.
void Soak::leave(const Kind& kind, const std::string& fields, Dice& dice) {
  RawClient client(served_->port());
  const std::string request = post(kCompletions, fmt::format("{{{}}}", fields));
  switch (pick(dice, 5)) {
    case 0:  // in the middle of its own request
      client.send(std::string_view(request).substr(
          0, static_cast<size_t>(pick(dice, static_cast<int>(request.size())))));
      return did(Did::kLeftBefore);
    case 1:
      client.send(request);
      std::this_thread::sleep_for(milliseconds(pick(dice, 30)));
      return did(Did::kLeftBefore);
    case 2:
    case 3:
      client.send(post(kCompletions, fmt::format(R"({{{},"stream":true}})", fields)));
      if (client.read_until("data: ")) did(Did::kLeftDuring);
      return;
    default:
      break;
  }
  client.send(request);
  client.finish_sending();
  const RawReply reply = client.read_reply();
  did(Did::kHalfClosed);
  if (reply.status == 200) return take_whole(kind, reply);
  EXPECT_TRUE(reply.status == 400 || reply.status == 500) << reply.status << reply.body;
}

// At most so many events; the reason once the end was among them.
std::optional<FinishReason> Soak::read(engine::Reply& reply, Tokens& tokens, int most) {
  for (; most > 0; --most) {
    const auto event = reply.next(kEvent);
    if (!event) {
      ADD_FAILURE() << "a reply without an end";
      return FinishReason::kError;
    }
    tokens.insert(tokens.end(), event->tokens.begin(), event->tokens.end());
    if (event->kind != ReplyEvent::Kind::kFinished) continue;
    EXPECT_FALSE(reply.next(milliseconds(0)).has_value()) << "an event after the last";
    if (event->reason == FinishReason::kError) {
      EXPECT_EQ(event->error.message, kFailure);
    }
    return event->reason;
  }
  return std::nullopt;
}

void Soak::ask_the_engine(unsigned seed) {
  Dice dice(seed);
  while (goes_on()) {
    const Kind& kind = kinds_[static_cast<size_t>(pick(dice, kKinds))];
    engine::Request request = kind.request;
    request.drafts = pick(dice, 2) == 0;
    auto submitted = served_->engine().submit(std::move(request));
    ASSERT_TRUE(submitted.ok()) << submitted.error().message;
    engine::Reply reply = std::move(submitted).value();
    Tokens tokens;
    const int way = pick(dice, 4);
    std::optional<FinishReason> reason = read(reply, tokens, way == 0 ? kAll : pick(dice, 4));
    if (!reason && way == 1) {  // drops it
      did(Did::kDropped);
      continue;
    }
    if (!reason) {
      reply.cancel();
      if (way == 3) reply.cancel();
      reason = read(reply, tokens, kAll);
    }
    ASSERT_LE(tokens.size(), kind.tokens.size());
    EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), kind.tokens.begin()));
    if (reason == FinishReason::kError) did(Did::kFailed);
    if (reason == FinishReason::kCancelled) did(way == 3 ? Did::kCancelledTwice : Did::kCancelled);
    if (reason != FinishReason::kLength) continue;
    EXPECT_EQ(tokens, kind.tokens);
    did(Did::kDirect);
  }
}

// What others read meanwhile makes sense at every moment, and totals never fall.
void Soak::read_figures() {
  int64_t total = 0;
  while (goes_on()) {
    const auto now = parsed(exchange(served_->port(), get("/status")).body);
    const auto number = [&](std::string_view path) {
      return std::strtoll(text_at(now, path).c_str(), nullptr, 10);
    };
    EXPECT_EQ(number("usage/slots"), 16);
    EXPECT_TRUE(number("running") >= 0 && number("running") <= 16);
    // Those that were given up wait too, until the step that runs is back.
    EXPECT_TRUE(number("waiting") >= 0 && number("waiting") <= int64_t{kRoom});
    EXPECT_EQ(number("usage/slots_in_use"), number("running"));
    EXPECT_GE(number("requests_total"), total);
    total = number("requests_total");
    did(Did::kStatus);
    const RawReply metrics = exchange(served_->port(), get("/metrics"));
    EXPECT_EQ(metrics.status, 200);
    EXPECT_TRUE(metrics.complete && metrics.body.ends_with('\n'));
    did(Did::kMetrics);
    std::this_thread::sleep_for(milliseconds(20));
  }
}

TEST_F(Soak, ManyClientsComeAndLeave) {
  ASSERT_FALSE(HasFailure());
  failing_ = true;
  end_ = steady_clock::now() + seconds(soak_seconds());
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < kSocketClients; ++i) {
    threads.emplace_back([this, i] { ask_over_sockets(100 + i); });
  }
  for (unsigned i = 0; i < kDirectClients; ++i) {
    threads.emplace_back([this, i] { ask_the_engine(200 + i); });
  }
  for (int i = 0; i < 2; ++i) threads.emplace_back([this] { read_figures(); });
  for (std::thread& thread : threads) thread.join();
  for (size_t what = 0; what < counts_.size(); ++what) {
    fmt::print("{:>10}  {}\n", counts_[what].load(), kWanted[what].name);
    EXPECT_GE(counts_[what], least(what)) << kWanted[what].name;
  }
  ASSERT_TRUE(served_->becomes_idle());
  const engine::EngineStatus status = served_->engine().status();
  EXPECT_EQ(status.usage, status.usage_at_load);
  EXPECT_EQ(status.running + status.waiting, 0);
  int64_t ended = 0;
  for (const int64_t count : status.counters.finished) ended += count;
  EXPECT_EQ(ended, status.requests_total);
  EXPECT_GT(status.counters.finished[static_cast<size_t>(FinishReason::kCancelled)], 0);
  EXPECT_GT(status.drafts.accepted, 0);
  // And each is still answered as it was at first.
  failing_ = false;
  for (const Kind& kind : kinds_) {
    take_whole(kind, served_->send(kCompletions, fmt::format("{{{}}}", kind.fields)));
  }
}

}  // namespace
}  // namespace flashlane::server
