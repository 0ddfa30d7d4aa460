// What a step costs beside the forward: plan, commit and delivery for up to 16 replies, through the
// engine with a runner that answers at once. The time is the engine thread's own, from one call of
// the runner to the next: once with nobody waiting for events, and once with a thread a reply that
// does, as the server's handlers do, so that every event wakes one.
//
//     build/release/engine_bench
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "engine/engine.h"

namespace flashlane::engine {
namespace {

using scheduler::Segment;
using scheduler::SegmentKind;
using scheduler::StepPlan;
using scheduler::StepResult;
using Micros = std::chrono::duration<double, std::micro>;

constexpr int kTokens = 4000;
constexpr int kMaxDraft = 3;

scheduler::StepCosts golden_costs() {
  const scheduler::MeasuredCost forward[] = {
      {1, 10.3}, {2, 12.1}, {4, 15.1}, {8, 21.0}, {16, 32.2}};
  const scheduler::MeasuredCost head[] = {{1, 0.43}, {16, 0.9}};
  return {.forward = scheduler::CostTable(forward, scheduler::kMostDecodeRows),
          .head_step = scheduler::CostTable(head, scheduler::kMostDecodeRows)};
}

// Every draft stands, and the time between two decode steps is noted.
class InstantRunner {
 public:
  explicit InstantRunner(int streams) : streams_(static_cast<size_t>(streams)) {}

  StepResult run(const StepPlan& plan) {
    const auto now = std::chrono::steady_clock::now();
    const bool decode = plan.segments.front().kind == SegmentKind::kVerify;
    if (decode && last_ != Time{} && plan.segments.size() == streams_) {
      between_us_.push_back(Micros(now - last_).count());
    }
    StepResult result;
    for (const Segment& segment : plan.segments) result.segments.push_back(answer(segment));
    last_ = decode ? std::chrono::steady_clock::now() : Time{};
    return result;
  }
  const std::vector<double>& between_us() const { return between_us_; }

 private:
  using Time = std::chrono::steady_clock::time_point;

  static int32_t token_at(int position) { return (position * 7919) % 8191; }
  static scheduler::SegmentResult answer(const Segment& segment) {
    scheduler::SegmentResult result;
    const int rows = static_cast<int>(segment.tokens.size());
    const int after = segment.start_position + rows;
    if (segment.kind == SegmentKind::kVerify) {
      result.tokens.assign(segment.tokens.begin() + 1, segment.tokens.end());
    }
    if (segment.kind == SegmentKind::kVerify || segment.next_token == -1) {
      result.tokens.push_back(token_at(after));
      for (int i = 1; i <= segment.draft_depth; ++i) result.drafts.push_back(token_at(after + i));
    }
    return result;
  }

  size_t streams_;
  Time last_ = {};
  std::vector<double> between_us_;
};

void read_all(Reply& reply) {
  while (true) {
    const auto event = reply.next(std::chrono::milliseconds(1000));
    if (event && event->kind == ReplyEvent::Kind::kFinished) return;
  }
}

void measure(int streams, bool readers_wait) {
  InstantRunner runner(streams);
  EngineOptions options;
  options.scheduler = {
      .context = kTokens + 64, .slots = streams, .max_draft = kMaxDraft, .costs = golden_costs()};
  options.events = kTokens + 64;
  {
    Engine engine([&](const StepPlan& plan) -> Result<StepResult> { return runner.run(plan); },
                  options);
    std::vector<Reply> replies;
    for (int stream = 0; stream < streams; ++stream) {
      Request request;
      request.prompt = {stream + 1, 2, 3, 4};
      request.max_tokens = kTokens;
      auto reply = engine.submit(std::move(request));
      CHECK(reply.ok());
      replies.push_back(std::move(reply).value());
    }
    std::vector<std::thread> readers;
    if (readers_wait) {
      for (Reply& reply : replies) readers.emplace_back([&reply] { read_all(reply); });
    }
    while (engine.status().running + engine.status().waiting > 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (std::thread& reader : readers) reader.join();
    if (!readers_wait) {
      for (Reply& reply : replies) read_all(reply);
    }
  }
  std::vector<double> us = runner.between_us();
  CHECK(!us.empty());
  std::sort(us.begin(), us.end());
  const auto at = [&](double share) {
    return us[static_cast<size_t>(share * static_cast<double>(us.size() - 1))];
  };
  fmt::print("{:>8}{:>10}{:>10}{:>12.1f}{:>12.1f}{:>12.1f}\n", streams, readers_wait ? "yes" : "no",
             us.size(), at(0.5), at(0.9), at(0.99));
}

}  // namespace
}  // namespace flashlane::engine

int main() {
  fmt::print("{:>8}{:>10}{:>10}{:>12}{:>12}{:>12}\n", "streams", "readers", "steps", "median us",
             "90 % us", "99 % us");
  for (const bool readers_wait : {false, true}) {
    for (const int streams : {1, 2, 4, 8, 16}) flashlane::engine::measure(streams, readers_wait);
  }
}
