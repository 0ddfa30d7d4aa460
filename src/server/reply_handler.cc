// One reply, streamed or whole.
#include "server/reply_handler.h"

#include <chrono>
#include <utility>

#include "base/sha256.h"
#include "server/log.h"
#include "server/reply_format.h"
#include "server/reply_logprobs.h"
#include "server/reply_text.h"

namespace flashlane::server {

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// How often a waiting handler looks whether its client is still there.
constexpr milliseconds kPoll{20};
// A cancelled request ends within one step; a step that takes longer than this is not waited for.
constexpr milliseconds kCancelWait{5'000};

enum class Outcome { kFinished, kFailed, kClientGone, kStopping };

class ReplyRun {
 public:
  ReplyRun(const Services& services, const ServerOptions& server, const ReplyPlan& plan,
           const ReplyOptions& options, ResponseWriter& writer)
      : keep_alive_interval_(server.keep_alive_interval),
        stream_(options.stream),
        prompt_tokens_(plan.request.prompt.size()),
        writer_(writer),
        format_(plan, options),
        text_(services.tokenizer, plan),
        logprobs_(services.tokenizer, plan) {}

  void run(engine::Reply reply) {
    if (stream_) {
      writer_.begin_stream("text/event-stream; charset=utf-8");
      send_piece(format_.opening_event());
    }
    const Outcome outcome = follow(reply);
    finish(outcome);
    log_end(outcome);
  }

 private:
  // Until the terminal event, or until nobody wants it any more.
  Outcome follow(engine::Reply& reply) {
    for (;;) {
      if (std::optional<engine::ReplyEvent> event = reply.next(kPoll)) {
        if (event->kind == engine::ReplyEvent::Kind::kFinished) return take_end(*event);
        if (event->kind == engine::ReplyEvent::Kind::kTokens) take_tokens(*event);
      }
      if (writer_.client_gone()) return cancel(reply, Outcome::kClientGone);
      if (writer_.stopping()) return cancel(reply, Outcome::kStopping);
      if (stream_ && steady_clock::now() - last_sent_ >= keep_alive_interval_) {
        send_piece(std::string(ReplyFormat::keep_alive_comment()));
      }
    }
  }

  Outcome cancel(engine::Reply& reply, Outcome outcome) {
    reply.cancel();
    const auto deadline = steady_clock::now() + kCancelWait;
    while (steady_clock::now() < deadline) {
      const std::optional<engine::ReplyEvent> event = reply.next(kPoll);
      if (event && event->kind == engine::ReplyEvent::Kind::kFinished) break;
    }
    return outcome;
  }

  void take_tokens(const engine::ReplyEvent& event) {
    logprobs_.push(event.tokens, event.logprobs);
    deliver(text_.push(event.tokens));
  }

  Outcome take_end(const engine::ReplyEvent& event) {
    end_.reuse = event.reuse;
    end_.drafts = event.drafts;
    end_.repetition_period = event.repetition_period;
    end_.timings = event.timings;
    switch (event.reason) {
      case engine::FinishReason::kStop:
        end_.finish_reason = "stop";
        break;
      case engine::FinishReason::kLength:
        end_.finish_reason = "length";
        break;
      case engine::FinishReason::kCancelled:
        // Not by us: the event queue was full, or the engine stops.
        failure_ = to_api_error(error(ErrorCode::kCancelled,
                                      "the reply was cancelled: it was read too slowly, or the "
                                      "server is stopping"));
        return Outcome::kFailed;
      case engine::FinishReason::kError:
        failure_ = to_api_error(event.error);
        return Outcome::kFailed;
    }
    deliver(text_.finish());
    end_.prompt_tokens = static_cast<int64_t>(prompt_tokens_);
    end_.reasoning_tokens = text_.reasoning_tokens();
    end_.ids = text_.ids();
    return Outcome::kFinished;
  }

  void deliver(const TextDelta& delta) {
    if (stream_) {
      // Text that is held back keeps its tokens' log probabilities waiting with it.
      if (!delta.empty()) send_piece(format_.delta_events(delta, logprobs_.take()));
    } else {
      whole_.reasoning += delta.reasoning;
      whole_.content += delta.content;
    }
  }

  void send_piece(const std::string& bytes) {
    if (bytes.empty()) return;
    writer_.write(bytes);
    last_sent_ = steady_clock::now();
  }

  void finish(Outcome outcome) {
    if (outcome == Outcome::kFinished) {
      if (stream_) {
        send_piece(format_.end_events(end_, logprobs_.take()));
      } else {
        writer_.send({.status = 200, .body = format_.whole_body(whole_, end_, logprobs_.take())});
      }
    } else {
      if (outcome == Outcome::kStopping) failure_ = http_error(503, "the server is stopping");
      if (outcome == Outcome::kClientGone) {
        // It may have closed its sending side alone, and then reads why there is no reply.
        failure_ = http_error(400, "the client closed its side of the connection before the reply");
      }
      if (stream_) {
        send_piece(ReplyFormat::error_event(failure_));
      } else {
        writer_.send({.status = failure_.status, .body = error_body(failure_)});
      }
    }
    if (stream_) {
      send_piece(std::string(ReplyFormat::done_event()));
      writer_.end_stream();
    }
  }

  void log_end(Outcome outcome) const {
    const size_t tokens = text_.ids().size();
    switch (outcome) {
      case Outcome::kFinished:
        log("done {} prompt={} cached={} tokens={} finish={} sha={} rounds={} accepted={}/{} "
            "queue_ms={:.1f} "
            "first_token_ms={:.1f} decode_ms={:.1f}",
            format_.id(), prompt_tokens_, end_.reuse.cached, tokens, end_.finish_reason,
            token_sha(text_.ids()).substr(0, 12), end_.drafts.rounds, end_.drafts.accepted,
            end_.drafts.drafted, end_.timings.queue_ms, end_.timings.first_token_ms,
            end_.timings.decode_ms);
        return;
      case Outcome::kFailed:
      case Outcome::kStopping:
        log("failed {} prompt={} tokens={} reason={}", format_.id(), prompt_tokens_, tokens,
            printable(failure_.message, 400));
        return;
      case Outcome::kClientGone:
        log("ended {} prompt={} tokens={} reason=client gone", format_.id(), prompt_tokens_,
            tokens);
        return;
    }
  }

  const milliseconds keep_alive_interval_;
  const bool stream_;
  const size_t prompt_tokens_;
  ResponseWriter& writer_;
  const ReplyFormat format_;
  ReplyText text_;
  ReplyLogprobs logprobs_;
  TextDelta whole_;
  ReplyEnd end_;
  ApiError failure_;
  steady_clock::time_point last_sent_ = steady_clock::now();
};

}  // namespace

void refuse(const ApiError& error, std::string_view what, ResponseWriter& writer) {
  HttpResponse response{.status = error.status, .body = error_body(error)};
  if (error.status == 503) response.headers.push_back({"Retry-After", "1"});
  writer.send(std::move(response));
  log("refused {} {} {}", what, error.status, printable(error.message, 400));
}

void run_reply(const Services& services, const ServerOptions& server, ReplyPlan plan,
               const ReplyOptions& options, ResponseWriter& writer) {
  ReplyRun run(services, server, plan, options, writer);
  Result<engine::Reply> reply = services.engine->submit(std::move(plan.request));
  if (!reply) {
    refuse(to_api_error(reply.error()), plan.chat ? "chat" : "completion", writer);
    return;
  }
  run.run(std::move(reply).value());
}

}  // namespace flashlane::server
