// GET /metrics and the usage in /status, over loopback: the text is what Prometheus reads, its
// numbers are what was served, and they never fall (A1, H6).
#include "server/metrics.h"

#include <gtest/gtest.h>

#include <charconv>
#include <map>
#include <sstream>
#include <thread>

#include "tests/server/served.h"

namespace flashlane::server {
namespace {

using testing::exchange;
using testing::get;
using testing::ids_of;
using testing::parsed;
using testing::RawClient;
using testing::RawReply;
using testing::ScriptRunner;
using testing::Served;
using testing::text_at;

constexpr std::string_view kCompletions = "/v1/completions";

struct Family {
  std::string help;
  std::string type;
  std::vector<std::pair<std::string, double>> samples;  // name with labels, in order
};
using Exposition = std::map<std::string, Family>;

bool is_name(std::string_view name) {
  return !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz_") == name.npos;
}

// Reads the format line by line as a scraper does; what does not parse is a failure.
Exposition parse(const std::string& text) {
  Exposition families;
  std::string current;
  std::istringstream lines(text);
  EXPECT_TRUE(text.ends_with('\n'));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first == "#") {
      std::string what;
      std::string name;
      words >> what >> name >> std::ws;
      std::string rest;
      std::getline(words, rest);
      EXPECT_TRUE(is_name(name)) << line;
      EXPECT_FALSE(rest.empty()) << line;
      Family& family = families[name];
      EXPECT_TRUE(what == "HELP" || what == "TYPE") << line;
      EXPECT_TRUE(family.samples.empty()) << "after its samples: " << line;
      std::string& field = what == "HELP" ? family.help : family.type;
      EXPECT_TRUE(field.empty()) << "twice: " << line;
      field = rest;
      current = name;
      continue;
    }
    const size_t space = line.rfind(' ');
    EXPECT_NE(space, line.npos) << line;
    if (space == line.npos) continue;
    const std::string sample = line.substr(0, space);
    const std::string name = sample.substr(0, sample.find('{'));
    EXPECT_TRUE(is_name(name)) << line;
    EXPECT_TRUE(name.starts_with(current)) << line << " in " << current;
    double value = -1;
    const char* end = line.data() + line.size();
    const auto [stop, failure] = std::from_chars(line.data() + space + 1, end, value);
    EXPECT_TRUE(failure == std::errc() && stop == end) << line;
    families[current].samples.emplace_back(sample, value);
  }
  return families;
}

Exposition scrape(const Served& served) {
  const RawReply reply = exchange(served.port(), get("/metrics"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("content-type"), "text/plain; version=0.0.4; charset=utf-8");
  return parse(reply.body);
}

// The value of a sample by its name with labels.
double at(const Exposition& families, const std::string& sample) {
  for (const auto& [name, family] : families) {
    for (const auto& [found, value] : family.samples) {
      if (found == sample) return value;
    }
  }
  ADD_FAILURE() << "no sample " << sample;
  return -1;
}

std::shared_ptr<ScriptRunner> script(std::string_view text) {
  auto runner = std::make_shared<ScriptRunner>();
  runner->script = ids_of(text);
  return runner;
}

void expect_histogram(const std::string& name, const Family& family) {
  ASSERT_GE(family.samples.size(), 4U) << name;
  double before = 0;
  std::string last_bound;
  double sum = -1;
  double count = -1;
  for (const auto& [sample, value] : family.samples) {
    if (sample == name + "_sum") {
      sum = value;
    } else if (sample == name + "_count") {
      count = value;
    } else {
      EXPECT_TRUE(sample.starts_with(name + "_bucket{le=\"")) << sample;
      EXPECT_GE(value, before) << sample;
      before = value;
      last_bound = sample.substr(name.size());
    }
  }
  EXPECT_EQ(last_bound, "_bucket{le=\"+Inf\"}");
  EXPECT_EQ(before, count) << name;
  EXPECT_GE(sum, 0) << name;
}

TEST(Metrics, TheTextIsWhatPrometheusReads) {
  const Served served(script("one two<|im_end|>"));
  served.send(kCompletions, R"({"prompt":[1,2]})");
  const Exposition families = scrape(served);
  EXPECT_GE(families.size(), 15U);
  for (const auto& [name, family] : families) {
    EXPECT_TRUE(name.starts_with("flashlane_")) << name;
    EXPECT_TRUE(family.help.ends_with('.')) << name;
    EXPECT_FALSE(family.samples.empty()) << name;
    EXPECT_EQ(family.type == "counter", name.ends_with("_total")) << name;
    if (family.type == "histogram") {
      EXPECT_TRUE(name.ends_with("_seconds")) << name;
      expect_histogram(name, family);
    } else {
      EXPECT_TRUE(family.type == "counter" || family.type == "gauge") << name;
      for (const auto& [sample, value] : family.samples) {
        EXPECT_EQ(sample.substr(0, sample.find('{')), name);
      }
    }
  }
}

// A snapshot made by hand: each number comes out where it belongs, large ones to the last digit.
TEST(Metrics, EveryNumberOfASnapshotIsWritten) {
  engine::EngineStatus status;
  status.running = 3;
  status.waiting = 5;
  status.refused_total = 7;
  status.prompt_tokens_total = 1234567890123;
  status.reply_tokens_total = 11;
  status.drafts = {.rounds = 13,
                   .drafted = 30,
                   .accepted = 17,
                   .head = {{12, 9}, {8, 4}},
                   .copied = {{5, 3}, {5, 1}}};
  status.usage.slots = 8;
  status.failed = true;
  status.counters.finished = {19, 23, 29, 31};
  status.counters.prompt_steps = {.steps = 37, .rows = 41, .run_ms = 1500};
  status.counters.decode_steps = {.steps = 43, .rows = 47, .run_ms = 250};
  status.counters.failed_steps = 53;
  status.counters.queue.observe(0.0004);
  status.counters.queue.observe(0.004);
  status.counters.queue.observe(2000);
  status.counters.first_token.observe(0.25);
  status.counters.per_reply_token.observe(0.01);
  status.counters.request.observe(16);
  const Exposition families = parse(metrics_text(status));
  const std::map<std::string, double> wanted = {
      {"flashlane_running", 3},
      {"flashlane_waiting", 5},
      {"flashlane_slots", 8},
      {"flashlane_device_lost", 1},
      {"flashlane_requests_refused_total", 7},
      {"flashlane_prompt_tokens_total", 1234567890123},
      {"flashlane_reply_tokens_total", 11},
      {"flashlane_draft_rounds_total", 13},
      {"flashlane_drafts_total{result=\"accepted\"}", 17},
      {"flashlane_drafts_total{result=\"rejected\"}", 13},
      {"flashlane_head_drafts_total{result=\"accepted\"}", 13},
      {"flashlane_head_drafts_total{result=\"rejected\"}", 7},
      {"flashlane_copied_drafts_total{result=\"accepted\"}", 4},
      {"flashlane_copied_drafts_total{result=\"rejected\"}", 6},
      {"flashlane_requests_total{reason=\"stop\"}", 19},
      {"flashlane_requests_total{reason=\"length\"}", 23},
      {"flashlane_requests_total{reason=\"cancelled\"}", 29},
      {"flashlane_requests_total{reason=\"error\"}", 31},
      {"flashlane_steps_total{kind=\"prompt\"}", 37},
      {"flashlane_steps_total{kind=\"decode\"}", 43},
      {"flashlane_step_rows_total{kind=\"prompt\"}", 41},
      {"flashlane_step_rows_total{kind=\"decode\"}", 47},
      {"flashlane_step_seconds_total{kind=\"prompt\"}", 1.5},
      {"flashlane_step_seconds_total{kind=\"decode\"}", 0.25},
      {"flashlane_failed_steps_total", 53},
      {"flashlane_queue_seconds_bucket{le=\"0.0005\"}", 1},
      {"flashlane_queue_seconds_bucket{le=\"0.002\"}", 1},
      {"flashlane_queue_seconds_bucket{le=\"0.005\"}", 2},
      {"flashlane_queue_seconds_bucket{le=\"1000\"}", 2},
      {"flashlane_queue_seconds_bucket{le=\"+Inf\"}", 3},
      {"flashlane_queue_seconds_sum", 2000.0044},
      {"flashlane_queue_seconds_count", 3},
      {"flashlane_time_to_first_token_seconds_sum", 0.25},
      {"flashlane_time_per_reply_token_seconds_sum", 0.01},
      {"flashlane_request_seconds_sum", 16},
  };
  for (const auto& [sample, value] : wanted) EXPECT_DOUBLE_EQ(at(families, sample), value);
}

// What replies said of themselves, added up.
TEST(Metrics, CountersEqualWhatWasServed) {
  const Served served(script("one two three four five six seven<|im_end|>"));
  int64_t prompt_tokens = 0;
  int64_t reply_tokens = 0;
  int64_t drafted = 0;
  int64_t accepted = 0;
  std::map<std::string, int> reasons;
  for (const char* body :
       {R"({"prompt":[1,2,3]})", R"({"prompt":[1],"max_tokens":2})",
        R"({"prompt":"some words","max_tokens":3})", R"({"prompt":[7],"draft":false})"}) {
    const auto reply = parsed(served.send(kCompletions, body).body);
    const auto number = [&](std::string_view path) { return std::stoll(text_at(reply, path)); };
    prompt_tokens += number("usage/prompt_tokens");
    reply_tokens += number("usage/completion_tokens");
    drafted += number("flashlane/drafts/drafted");
    accepted += number("flashlane/drafts/accepted");
    ++reasons[text_at(reply, "choices/0/finish_reason")];
    const Exposition now = scrape(served);
    EXPECT_EQ(at(now, "flashlane_prompt_tokens_total"), static_cast<double>(prompt_tokens));
    EXPECT_EQ(at(now, "flashlane_reply_tokens_total"), static_cast<double>(reply_tokens));
    EXPECT_EQ(at(now, "flashlane_drafts_total{result=\"accepted\"}"),
              static_cast<double>(accepted));
    EXPECT_EQ(at(now, "flashlane_drafts_total{result=\"rejected\"}"),
              static_cast<double>(drafted - accepted));
    EXPECT_EQ(at(now, "flashlane_requests_total{reason=\"stop\"}"), reasons["stop"]);
    EXPECT_EQ(at(now, "flashlane_requests_total{reason=\"length\"}"), reasons["length"]);
    EXPECT_EQ(at(now, "flashlane_request_seconds_count"), reasons["stop"] + reasons["length"]);
    EXPECT_EQ(at(now, "flashlane_step_rows_total{kind=\"prompt\"}"),
              static_cast<double>(prompt_tokens));
    EXPECT_EQ(at(now, "flashlane_running"), 0);
  }
  EXPECT_EQ(reasons["stop"], 2);
  EXPECT_EQ(reasons["length"], 2);
  EXPECT_GT(accepted, 0);
}

TEST(Metrics, StatusAndMetricsWhileRequestsRunAndWait) {
  const auto runner = script("one two three<|im_end|>");
  runner->hold = true;
  testing::ServedOptions options;
  options.engine.scheduler.slots = 1;
  const Served served(runner, options);
  const auto status = [&] { return parsed(exchange(served.port(), get("/status")).body); };
  const std::string idle = text_at(status(), "usage_at_load");
  EXPECT_EQ(
      idle.rfind(
          R"({"slots":1,"slots_in_use":0,"sequences":0,"sessions":0,"sessions_free":0,"pages":)",
          0),
      0U)
      << idle;
  EXPECT_EQ(text_at(status(), "usage/pages_free"), text_at(status(), "usage/pages"));
  EXPECT_EQ(text_at(status(), "usage"), idle);
  EXPECT_EQ(text_at(status(), "usage_at_load"), idle);
  std::vector<std::thread> clients;
  for (int i = 0; i < 3; ++i) {
    clients.emplace_back(
        [&] { EXPECT_EQ(served.send(kCompletions, R"({"prompt":[1,2]})").status, 200); });
  }
  EXPECT_TRUE(testing::wait_until([&] {
    const auto now = served.engine().status();
    return now.running == 1 && now.waiting == 2;
  }));
  // The engine's thread stands in a step; neither route waits for it.
  const Exposition busy = scrape(served);
  EXPECT_EQ(at(busy, "flashlane_running"), 1);
  EXPECT_EQ(at(busy, "flashlane_waiting"), 2);
  EXPECT_EQ(at(busy, "flashlane_slots"), 1);
  EXPECT_EQ(text_at(status(), "usage/slots_in_use"), "1");
  EXPECT_EQ(text_at(status(), "usage/pages_of_rows"), "1");
  EXPECT_NE(text_at(status(), "usage/pages_promised"), "(none)");
  EXPECT_EQ(text_at(status(), "usage_at_load"), idle);
  runner->hold = false;
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(at(scrape(served), "flashlane_requests_total{reason=\"stop\"}"), 3);
  EXPECT_EQ(text_at(status(), "usage"), idle);
}

// Scraped again and again while requests come, end, fail and are dropped. All prompts are of one
// length, by which the script knows where a reply begins.
TEST(Metrics, CountersNeverFall) {
  const auto runner = script("one two three four<|im_end|>");
  runner->fail_at_step = 20;
  testing::ServedOptions options;
  options.engine.scheduler.slots = 4;
  const Served served(runner, options);
  std::vector<std::thread> clients;
  for (int number = 0; number < 4; ++number) {
    clients.emplace_back([&served, number] {
      for (int i = 0; i < 15; ++i) {
        if (number == 0) {
          RawClient leaving(served.port());
          leaving.send(testing::post(kCompletions, R"({"prompt":[1,2,3],"ignore_eos":true})"));
        } else {
          served.send(kCompletions, R"({"prompt":[1,2,3],"max_tokens":30})");
        }
      }
    });
  }
  std::map<std::string, double> before;
  const auto look = [&] {
    for (const auto& [name, family] : scrape(served)) {
      if (family.type == "gauge") continue;
      for (const auto& [sample, value] : family.samples) {
        EXPECT_GE(value, before[sample]) << sample;
        before[sample] = value;
      }
    }
  };
  for (int i = 0; i < 40; ++i) look();
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(served.becomes_idle());
  look();
  EXPECT_EQ(before["flashlane_failed_steps_total"], 1);
  EXPECT_GE(before["flashlane_requests_total{reason=\"stop\"}"], 30);
}

TEST(Metrics, TheRouteIsLikeTheOthers) {
  const Served served(script(""));
  EXPECT_EQ(served.send("/metrics", "").status, 405);
  EXPECT_EQ(exchange(served.port(), get("/metrics?x=1")).status, 200);
  EXPECT_NE(exchange(served.port(), get("/")).body.find("GET /metrics"), std::string::npos);
}

}  // namespace
}  // namespace flashlane::server
