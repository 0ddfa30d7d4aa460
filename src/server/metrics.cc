// One family per metric, filled from the snapshot and written by prometheus-cpp. Every label value
// is there from the start, so that a rate has a zero to begin at. Names are documented contracts:
// add to them, don't rename.
#include "server/metrics.h"

#include <prometheus/text_serializer.h>

#include <utility>
#include <vector>

#include "base/check.h"

namespace flashlane::server {

namespace {

using engine::FinishReason;
using engine::StepCounts;
using engine::TimeHistogram;
using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;

constexpr double kMsPerSecond = 1000;

struct Labelled {
  std::string label;
  double value = 0;
};

class Families {
 public:
  void gauge(std::string name, std::string help, int64_t value) {
    ClientMetric& metric = add(std::move(name), std::move(help), MetricType::Gauge);
    metric.gauge.value = static_cast<double>(value);
  }

  void counter(std::string name, std::string help, int64_t value) {
    ClientMetric& metric = add(std::move(name), std::move(help), MetricType::Counter);
    metric.counter.value = static_cast<double>(value);
  }

  void counters(std::string name, std::string help, const std::string& label,
                const std::vector<Labelled>& values) {
    MetricFamily family{std::move(name), std::move(help), MetricType::Counter, {}};
    for (const Labelled& value : values) {
      ClientMetric metric;
      metric.label = {{label, value.label}};
      metric.counter.value = value.value;
      family.metric.push_back(std::move(metric));
    }
    families_.push_back(std::move(family));
  }

  void histogram(std::string name, std::string help, const TimeHistogram& times) {
    ClientMetric& metric = add(std::move(name), std::move(help), MetricType::Histogram);
    uint64_t total = 0;
    for (size_t i = 0; i < TimeHistogram::kBoundsSeconds.size(); ++i) {
      total += static_cast<uint64_t>(times.buckets[i]);
      metric.histogram.bucket.push_back(
          {.cumulative_count = total, .upper_bound = TimeHistogram::kBoundsSeconds[i]});
    }
    // The serializer adds the bucket without a bound.
    metric.histogram.sample_count = total + static_cast<uint64_t>(times.buckets.back());
    metric.histogram.sample_sum = times.sum_s;
  }

  std::string text() const { return prometheus::TextSerializer().Serialize(families_); }

 private:
  ClientMetric& add(std::string name, std::string help, MetricType type) {
    families_.push_back({std::move(name), std::move(help), type, {ClientMetric()}});
    return families_.back().metric.front();
  }

  std::vector<MetricFamily> families_;
};

std::string reason_label(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kError:
      return "error";
  }
  UNREACHABLE();
}

void add_requests(Families& families, const engine::EngineStatus& status) {
  std::vector<Labelled> finished;
  for (size_t i = 0; i < engine::kFinishReasons; ++i) {
    finished.push_back({reason_label(static_cast<FinishReason>(i)),
                        static_cast<double>(status.counters.finished[i])});
  }
  families.counters("flashlane_requests_total", "Requests that ended, by how they ended.", "reason",
                    finished);
  families.counter("flashlane_requests_refused_total",
                   "Requests refused because too many were waiting.", status.refused_total);
  families.gauge("flashlane_running", "Requests that have a slot.", status.running);
  families.gauge("flashlane_waiting", "Requests that wait for a slot.", status.waiting);
  families.gauge("flashlane_slots", "Requests that can run at once.", status.usage.slots);
  families.gauge("flashlane_pool_pages", "Pages of the pool.", status.usage.pool.pages);
  families.gauge("flashlane_pool_pages_free", "Pages that hold nothing.", status.usage.pool.free);
  families.gauge("flashlane_pool_pages_promised",
                 "Free pages that running requests have been promised.",
                 status.usage.pool.promised);
  families.gauge("flashlane_device_lost", "1 once the device is lost and nothing runs any more.",
                 status.failed ? 1 : 0);
  families.counter("flashlane_prompt_tokens_total", "Prompt tokens taken in.",
                   status.prompt_tokens_total);
  families.counter("flashlane_reply_tokens_total", "Reply tokens made, end tokens included.",
                   status.reply_tokens_total);
}

void add_drafts(Families& families, const engine::DraftStats& drafts) {
  families.counters("flashlane_drafts_total",
                    "Draft tokens checked, by whether they stood; counted when a request ends.",
                    "result",
                    {{"accepted", static_cast<double>(drafts.accepted)},
                     {"rejected", static_cast<double>(drafts.drafted - drafts.accepted)}});
  const auto by_result = [](const std::vector<engine::DraftCounts>& places) {
    const engine::DraftCounts total = sum(places);
    return std::vector<Labelled>{{"accepted", static_cast<double>(total.accepted)},
                                 {"rejected", static_cast<double>(total.drafted - total.accepted)}};
  };
  families.counters("flashlane_head_drafts_total",
                    "Drafts of the model's MTP head, by whether they stood.", "result",
                    by_result(drafts.head));
  families.counters("flashlane_copied_drafts_total",
                    "Drafts copied from the context, by whether they stood.", "result",
                    by_result(drafts.copied));
  families.counter("flashlane_draft_rounds_total",
                   "Decode windows of all requests, with drafts or without; counted when a request "
                   "ends.",
                   drafts.rounds);
}

void add_prompt_cache(Families& families, const engine::EngineStatus& status) {
  const auto& cache = status.prompt_cache;
  families.counter("flashlane_cached_tokens_total",
                   "Prompt tokens restored from kept states instead of being taken in.",
                   status.cached_tokens_total);
  families.counters(
      "flashlane_prompt_lookups_total", "Prompts, by whether a kept state was used.", "result",
      {{"hit", static_cast<double>(cache.hits)}, {"miss", static_cast<double>(cache.misses)}});
  families.counters("flashlane_prompt_states_total", "States of prompts, by what became of them.",
                    "what",
                    {{"kept", static_cast<double>(cache.kept)},
                     {"evicted", static_cast<double>(cache.evicted)},
                     {"refused", static_cast<double>(cache.refused)},
                     {"failed", static_cast<double>(cache.failed)}});
  families.counters("flashlane_prompt_snapshots_total",
                    "States of prompts carried over by files, by direction.", "what",
                    {{"restored", static_cast<double>(status.snapshots_restored)},
                     {"read_back", static_cast<double>(status.snapshots_read_back)},
                     {"saved", static_cast<double>(status.snapshots_saved)}});
  families.gauge("flashlane_prompt_states", "States of prompts that are kept now.", cache.entries);
  families.gauge("flashlane_prompt_cache_pages", "Pages for kept states.", cache.pages);
  families.gauge("flashlane_prompt_cache_pages_used", "Of them, those in use.", cache.used_pages);
}

void add_sessions(Families& families, const engine::EngineStatus& status) {
  families.gauge("flashlane_sessions", "Sized sessions; 0 where the pool serves.",
                 status.usage.sessions.sessions);
  families.gauge("flashlane_sessions_free", "Of them, those that nobody has.",
                 status.usage.sessions.free);
  families.counter("flashlane_session_moves_total", "Replies that moved to a larger session.",
                   status.moves_total);
  families.counter("flashlane_session_waits_total", "Replies that waited for a larger session.",
                   status.pauses_total);
}

void add_lone(Families& families, const engine::LoneUsage& lone) {
  families.counter("flashlane_lone_runs_total",
                   "Times that a reply which ran alone was taken by the lone driver.", lone.runs);
  families.counter("flashlane_lone_steps_total", "Steps that it drove.", lone.steps);
  families.counter("flashlane_lone_steps_ahead_total",
                   "Of them, those that began while the one before was under way.", lone.ahead);
  families.counter("flashlane_lone_handoffs_total", "Replies that it handed over to shared steps.",
                   lone.handoffs);
}

void add_steps(Families& families, const engine::Counters& counters) {
  const auto by_kind = [&](auto value) {
    return std::vector<Labelled>{
        {"prompt", static_cast<double>(value(counters.prompt_steps))},
        {"decode", static_cast<double>(value(counters.decode_steps))},
        {"restore", static_cast<double>(value(counters.restore_steps))},
    };
  };
  families.counters("flashlane_steps_total", "Steps that ran, by kind.", "kind",
                    by_kind([](const StepCounts& counts) { return counts.steps; }));
  families.counters("flashlane_step_rows_total",
                    "Rows of these steps: prompt tokens, pending tokens and drafts, or "
                    "restored prompt tokens.",
                    "kind", by_kind([](const StepCounts& counts) { return counts.rows; }));
  families.counters("flashlane_step_seconds_total", "Time that these steps ran.", "kind",
                    by_kind([](const StepCounts& counts) { return counts.run_ms / kMsPerSecond; }));
  families.counter("flashlane_failed_steps_total", "Steps that failed.", counters.failed_steps);
}

void add_times(Families& families, const engine::Counters& counters) {
  families.histogram("flashlane_queue_seconds",
                     "From a request's arrival to its first prompt step.", counters.queue);
  families.histogram("flashlane_time_to_first_token_seconds",
                     "From a request's arrival to its first reply token.", counters.first_token);
  families.histogram("flashlane_time_per_reply_token_seconds",
                     "Mean time of a reply token after the first, one value per reply of two or "
                     "more.",
                     counters.per_reply_token);
  families.histogram("flashlane_request_seconds",
                     "From a request's arrival to its end, however it ended.", counters.request);
}

}  // namespace

std::string metrics_text(const engine::EngineStatus& status) {
  Families families;
  add_requests(families, status);
  add_drafts(families, status.drafts);
  add_prompt_cache(families, status);
  add_sessions(families, status);
  add_lone(families, status.lone);
  add_steps(families, status.counters);
  add_times(families, status.counters);
  return families.text();
}

}  // namespace flashlane::server
