// The engine's thread and its loop. What other threads touch lies behind one mutex, held for
// moments; scheduler, runner and the list of live requests belong to the thread alone.
#include "engine/engine.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"
#include "engine/kept_files.h"
#include "engine/reply_shared.h"
#include "engine/runner_device.h"

namespace flashlane::engine {
namespace {

using scheduler::Event;
using scheduler::SequenceId;
using scheduler::StepPlan;

constexpr double kMsPerSecond = 1000;

double to_s(Clock::Time time) {
  return to_ms(time) / kMsPerSecond;
}

// When things happened to a request; nothing until they did.
struct Moments {
  Clock::Time submitted = {};
  std::optional<Clock::Time> started = {};
  std::optional<Clock::Time> first_token = {};
  Clock::Time last_token = {};

  // A stage that was never left lasted until the end.
  Timings timings(Clock::Time end) const {
    const Clock::Time queued_until = started.value_or(end);
    return {.queue_ms = to_ms(queued_until - submitted),
            .prefill_ms = to_ms(first_token.value_or(end) - queued_until),
            .first_token_ms = first_token ? to_ms(*first_token - submitted) : 0,
            .decode_ms = first_token ? to_ms(last_token - *first_token) : 0};
  }
};

std::unique_ptr<StepDevice> device_of(std::unique_ptr<runner::Runner> runner,
                                      const scheduler::SchedulerOptions& options) {
  CHECK_LE(options.context, runner->options().context);
  CHECK_LE(options.slots, runner->options().slots);
  CHECK_LE(options.prefill_chunk, runner->options().max_rows);
  CHECK_LE(options.max_draft, runner->options().max_draft);
  return std::make_unique<RunnerDevice>(std::move(runner));
}

}  // namespace

struct Engine::State {
  struct Submission {
    Request request;
    std::shared_ptr<Reply::Shared> reply;
    Clock::Time submitted;
  };
  struct Live {
    SequenceId id;
    std::shared_ptr<Reply::Shared> reply;
    Moments moments;
    int prefilled = 0;
    int64_t reply_tokens = 0;
    // Why the reply ends with an error, whatever the scheduler says.
    std::optional<Error> failure = {};
  };
  struct Ending {
    std::shared_ptr<Reply::Shared> reply;
    ReplyEvent last;
  };

  State(std::unique_ptr<StepDevice> of_steps, EngineOptions engine_options)
      : device(std::move(of_steps)),
        options(std::move(engine_options)),
        clock(options.clock != nullptr ? options.clock : std::make_shared<SteadyClock>()),
        scheduler(options.scheduler),
        files(options.snapshots, bell, options.scheduler.kept_gap, options.report) {
    files.restore(scheduler, *device);
    current.usage_at_load = usage();
    publish();
  }

  void loop();
  bool drain();
  void admit_held();
  void take_in(Submission submission);
  void begin(StepPlan plan);
  void land();
  void lose_device(const Error& error);
  bool deliver();
  void account(const Event& event);
  void publish();
  Usage usage() const;
  void send(const Event& event);
  Ending end(const Event& event);
  Live& find(SequenceId id);

  // A step that the device has not been asked about yet.
  struct UnderWay {
    StepPlan plan;
    Clock::Time began;
  };

  std::unique_ptr<StepDevice> device;
  EngineOptions options;
  std::shared_ptr<const Clock> clock;
  std::shared_ptr<Bell> bell = std::make_shared<Bell>();

  mutable std::mutex mutex;  // guards the four below
  std::vector<Submission> inbox;
  int taken_waiting = 0;  // of the requests taken in, those that wait for their turn
  bool stopping = false;
  EngineStatus status;

  // The engine thread's own.
  scheduler::Scheduler scheduler;
  KeptFiles files;
  std::vector<Submission> held;  // until a file that may be of use to them was read
  std::vector<Live> live;
  EngineStatus current;  // published as status
  std::optional<Error> device_error;
  std::deque<UnderWay> under_way;  // oldest first
  Clock::Time last_landed = {};

  std::mutex join_mutex;
  std::jthread thread;
};

void Engine::State::loop() {
  while (!drain()) {
    StepPlan plan = scheduler.plan();
    deliver();
    if (!plan.empty()) {
      begin(std::move(plan));
      // Where the device has room for one more, it may be planned already.
      if (static_cast<int>(under_way.size()) < options.scheduler.steps_in_flight) continue;
    }
    if (under_way.empty()) {
      publish();  // what became of files
      bell->wait();
    } else {
      land();
      // What became of a step is told before the next one is waited for, even if no event comes of
      // it: its reply may have ended before.
      if (!deliver()) publish();
    }
  }
  for (Submission& submission : std::exchange(held, {})) take_in(std::move(submission));
  for (const Live& request : live) scheduler.cancel(request.id);
  while (!under_way.empty()) land();
  deliver();
  files.finish(scheduler, *device, !device_error);
  publish();
  CHECK(live.empty());
}

// Takes in what came, passes on what was cancelled; true when the engine is to stop.
bool Engine::State::drain() {
  std::vector<Submission> arrived;
  bool stop = false;
  {
    std::lock_guard lock(mutex);
    arrived = std::exchange(inbox, {});
    taken_waiting += static_cast<int>(arrived.size());
    stop = stopping;
  }
  for (Submission& submission : arrived) held.push_back(std::move(submission));
  admit_held();
  for (const Live& request : live) {
    if (request.reply->cancelled) scheduler.cancel(request.id);
  }
  return stop;
}

void Engine::State::admit_held() {
  if (!device_error) files.turn(scheduler, *device);
  std::vector<Submission> waiting;
  for (Submission& submission : held) {
    if (device_error || submission.reply->cancelled ||
        files.ready(scheduler, submission.request.prompt)) {
      take_in(std::move(submission));
    } else {
      waiting.push_back(std::move(submission));
    }
  }
  held = std::move(waiting);
  if (!device_error) files.save_next(scheduler);
}

void Engine::State::take_in(Submission submission) {
  const auto id = scheduler.submit(std::move(submission.request));
  CHECK(id.ok());  // submit asked check_spec the same question
  live.push_back({.id = id.value(),
                  .reply = std::move(submission.reply),
                  .moments = {.submitted = submission.submitted},
                  .failure = device_error});
  if (device_error) scheduler.cancel(id.value());
}

void Engine::State::begin(StepPlan plan) {
  const Clock::Time began = clock->now();
  device->start(plan);
  under_way.push_back({std::move(plan), began});
}

// Takes in the oldest step. One that waited for another on the device took no longer than since
// that one landed.
void Engine::State::land() {
  auto result = device->finish();
  const StepPlan plan = std::move(under_way.front().plan);
  const Clock::Time began = std::max(under_way.front().began, last_landed);
  under_way.pop_front();
  last_landed = clock->now();
  if (result.ok()) {
    result.value().elapsed_ms = to_ms(last_landed - began);
    current.counters.count_step(plan, result.value());
    scheduler.commit(plan, result.value());
  } else {
    ++current.counters.failed_steps;
    scheduler.fail(plan, result.error());
    if (result.error().code == ErrorCode::kDeviceLost) lose_device(result.error());
  }
}

// Nothing will run again: all that live end with the device's error, and so do those in the inbox
// when they are taken in.
void Engine::State::lose_device(const Error& error) {
  device_error = error;
  current.failed = true;
  for (Live& request : live) {
    if (!request.failure) request.failure = error;
    scheduler.cancel(request.id);
  }
}

// Counts, publishes, then sends, so that a client who saw its last event finds itself gone from the
// status. Sending may end a request whose client is too slow, which makes new events and changes
// how that request ends; so the last events are counted once all others are out.
bool Engine::State::deliver() {
  bool told = false;
  for (auto events = scheduler.collect(); !events.empty(); events = scheduler.collect()) {
    told = true;
    const auto last = std::stable_partition(events.begin(), events.end(), [](const Event& event) {
      return event.kind != Event::Kind::kFinished;
    });
    if (last != events.begin()) {
      std::for_each(events.begin(), last, [&](const Event& event) { account(event); });
      publish();
      std::for_each(events.begin(), last, [&](const Event& event) { send(event); });
    }
    if (last == events.end()) continue;
    std::vector<Ending> endings;
    std::for_each(last, events.end(), [&](const Event& event) { endings.push_back(end(event)); });
    publish();
    for (Ending& ending : endings) {
      CHECK(ending.reply->events.push(std::move(ending.last)));
      ending.reply->events.close();
    }
  }
  return told;
}

// Of all events but the last.
void Engine::State::account(const Event& event) {
  Live& request = find(event.sequence);
  Moments& moments = request.moments;
  switch (event.kind) {
    case Event::Kind::kStarted:
      moments.started = clock->now();
      current.counters.queue.observe(to_s(*moments.started - moments.submitted));
      break;
    case Event::Kind::kPrefilled:
      // A prompt that starts again after a failed step is still one prompt.
      if (event.prefilled > request.prefilled) {
        current.prompt_tokens_total += event.prefilled - request.prefilled - event.cached;
        current.cached_tokens_total += event.cached;
        request.prefilled = event.prefilled;
      }
      break;
    case Event::Kind::kPaused:
      ++current.pauses_total;
      if (options.report) {
        options.report(fmt::format("reply {} at {} waits for a session of more than {} rows",
                                   event.sequence.value, event.position, event.capacity));
      }
      break;
    case Event::Kind::kMoved:
      ++current.moves_total;
      if (options.report) {
        options.report(fmt::format("reply {} at {} moved from a session of {} rows to one of {}",
                                   event.sequence.value, event.position, event.capacity,
                                   event.new_capacity));
      }
      break;
    case Event::Kind::kTokens:
      moments.last_token = clock->now();
      if (!moments.first_token) {
        moments.first_token = moments.last_token;
        current.counters.first_token.observe(to_s(*moments.first_token - moments.submitted));
      }
      request.reply_tokens += static_cast<int64_t>(event.tokens.size());
      current.reply_tokens_total += static_cast<int64_t>(event.tokens.size());
      break;
    case Event::Kind::kFinished:
      UNREACHABLE();
  }
}

void Engine::State::publish() {
  current.running = scheduler.running();
  current.usage = usage();
  current.prompt_cache = scheduler.kept();
  current.lone = scheduler.lone();
  current.snapshots_restored = files.restored();
  current.snapshots_read_back = files.read_back();
  current.snapshots_saved = files.saved();
  std::lock_guard lock(mutex);
  taken_waiting = scheduler.waiting() + static_cast<int>(held.size());
  // submit counts these two.
  current.requests_total = status.requests_total;
  current.refused_total = status.refused_total;
  status = current;
}

Usage Engine::State::usage() const {
  return {.slots = options.scheduler.slots,
          .slots_in_use = scheduler.running(),
          .sequences = static_cast<int>(live.size() + held.size()),
          .pool = scheduler.pages(),
          .sessions = scheduler.sessions()};
}

void Engine::State::send(const Event& event) {
  const bool told = event.kind == Event::Kind::kPrefilled || event.kind == Event::Kind::kTokens;
  if (!told) return;
  Live& request = find(event.sequence);
  if (request.failure) return;
  if (request.reply->events.size() >= options.events) {
    request.failure = error(ErrorCode::kCancelled,
                            "the client is too slow: {} events wait to be read", options.events);
    scheduler.cancel(request.id);
    return;
  }
  const bool prefill = event.kind == Event::Kind::kPrefilled;
  CHECK(request.reply->events.push(
      {.kind = prefill ? ReplyEvent::Kind::kPrefill : ReplyEvent::Kind::kTokens,
       .tokens = event.tokens,
       .logprobs = event.logprobs,
       .prefilled = event.prefilled}));
}

// Counts the request's end and forgets the request; its last event is left to be sent.
Engine::State::Ending Engine::State::end(const Event& event) {
  const Live& request = find(event.sequence);
  const Clock::Time now = clock->now();
  Ending ending{.reply = request.reply,
                .last = {.kind = ReplyEvent::Kind::kFinished,
                         .prefilled = event.prefilled,
                         .reason = event.reason,
                         .error = event.error,
                         .reuse = event.reuse,
                         .drafts = event.drafts,
                         .repetition_period = event.repetition_period,
                         .timings = request.moments.timings(now)}};
  if (request.failure) {
    ending.last.reason = FinishReason::kError;
    ending.last.error = *request.failure;
  }
  current.drafts += event.drafts;
  current.counters.count_finish(ending.last.reason);
  current.counters.request.observe(to_s(now - request.moments.submitted));
  if (request.reply_tokens > 1) {
    const double decode_s = ending.last.timings.decode_ms / kMsPerSecond;
    current.counters.per_reply_token.observe(decode_s /
                                             static_cast<double>(request.reply_tokens - 1));
  }
  std::erase_if(live, [&](const Live& other) { return other.id == event.sequence; });
  return ending;
}

Engine::State::Live& Engine::State::find(SequenceId id) {
  const auto found =
      std::find_if(live.begin(), live.end(), [&](const Live& request) { return request.id == id; });
  CHECK(found != live.end());
  return *found;
}

EngineOptions with_pool_of(const runner::Runner& runner, EngineOptions options) {
  options.scheduler.pool = runner.storage().pool;
  options.scheduler.pages = runner.limits().pages;
  options.scheduler.kept_pages = runner.limits().kept_pages;
  return options;
}

Engine::Engine(std::unique_ptr<runner::Runner> runner, EngineOptions options) {
  options = with_pool_of(*runner, std::move(options));
  auto device = device_of(std::move(runner), options.scheduler);
  start(std::move(device), std::move(options));
}

Engine::Engine(StepFunction run, EngineOptions options) {
  start(std::make_unique<CallingDevice>(std::move(run)), std::move(options));
}

Engine::Engine(std::unique_ptr<StepDevice> device, EngineOptions options) {
  start(std::move(device), std::move(options));
}

void Engine::start(std::unique_ptr<StepDevice> device, EngineOptions options) {
  state_ = std::make_unique<State>(std::move(device), std::move(options));
  state_->thread = std::jthread([state = state_.get()] {
    try {
      state->loop();
    } catch (const std::exception& failure) {
      check_failed(__FILE__, __LINE__, "no exception leaves the loop", failure.what());
    }
  });
}

Engine::~Engine() {
  stop();
}

Result<Reply> Engine::submit(Request request) {
  State& state = *state_;
  RETURN_IF_ERROR(scheduler::check_spec(request, state.options.scheduler));
  Reply reply;
  reply.shared_ = std::make_shared<Reply::Shared>(state.options.events, state.bell);
  {
    std::lock_guard lock(state.mutex);
    if (state.stopping) return error(ErrorCode::kNoCapacity, "the engine is stopping");
    if (state.status.failed) return error(ErrorCode::kDeviceLost, "the device was lost");
    const size_t waiting = state.inbox.size() + static_cast<size_t>(state.taken_waiting);
    if (waiting >= state.options.inbox) {
      ++state.status.refused_total;
      return error(ErrorCode::kNoCapacity, "{} requests are waiting; the limit is {}", waiting,
                   state.options.inbox);
    }
    state.inbox.push_back({std::move(request), reply.shared_, state.clock->now()});
    ++state.status.requests_total;
  }
  state.bell->ring();
  return reply;
}

EngineStatus Engine::status() const {
  std::lock_guard lock(state_->mutex);
  EngineStatus status = state_->status;
  status.waiting = static_cast<int>(state_->inbox.size()) + state_->taken_waiting;
  return status;
}

void Engine::stop() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->bell->ring();
  std::lock_guard lock(state_->join_mutex);
  if (state_->thread.joinable()) state_->thread.join();
}

}  // namespace flashlane::engine
