// Framing and hand-over of one reply.
#include "server/exchange.h"

#include <exception>
#include <utility>

#include "base/check.h"
#include "server/api_error.h"

namespace flashlane::server {

namespace {

constexpr size_t kOutboxBytes = 256u << 10;  // a writer waits above this

std::string_view reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Payload Too Large";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 503:
      return "Service Unavailable";
    default:
      return "Unknown";
  }
}

std::string head_text(const Framing& framing, int status, std::string_view content_type,
                      const std::vector<HttpHeader>& headers) {
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", status, reason_phrase(status));
  if (!content_type.empty()) out += fmt::format("Content-Type: {}\r\n", content_type);
  for (const HttpHeader& header : headers) {
    out += fmt::format("{}: {}\r\n", header.name, header.value);
  }
  if (!framing.keep_alive) {
    out += "Connection: close\r\n";
  } else if (!framing.http11) {
    out += "Connection: keep-alive\r\n";
  }
  return out;
}

}  // namespace

std::string whole_reply(const Framing& framing, const HttpResponse& response) {
  std::string out = head_text(framing, response.status, response.content_type, response.headers);
  if (response.status != 204) out += fmt::format("Content-Length: {}\r\n", response.body.size());
  out += "\r\n";
  if (!framing.head) out += response.body;
  return out;
}

HttpResponse error_response(int status, std::string message) {
  HttpResponse response{status, error_body(http_error(status, std::move(message)))};
  if (status == 503) response.headers.push_back({"Retry-After", "1"});
  return response;
}

Exchange::Exchange(HttpRequest request, Framing framing, const std::atomic<bool>& server_stopping,
                   std::function<void()> wake)
    : request_(std::move(request)),
      framing_(framing),
      server_stopping_(server_stopping),
      wake_(std::move(wake)) {}

void Exchange::run(const HttpHandler& handler) {
  try {
    handler(request_, *this);
  } catch (const std::exception& e) {
    // Ours never throw; memory can run out all the same, and one request must not end the server.
    if (phase_ == Phase::kNothing) send(error_response(500, e.what()));
  }
  if (phase_ == Phase::kNothing) send(error_response(500, "the request got no answer"));
  std::lock_guard lock(mutex_);
  if (phase_ == Phase::kStreaming) broken_ = true;  // the missing last chunk tells the client
  handler_done_ = true;
  wake_();
}

void Exchange::send(HttpResponse response) {
  CHECK(phase_ == Phase::kNothing);
  phase_ = Phase::kSent;
  append(whole_reply(framing_, response));
}

void Exchange::begin_stream(std::string_view content_type) {
  CHECK(phase_ == Phase::kNothing);
  phase_ = Phase::kStreaming;
  if (!framing_.http11) framing_.keep_alive = false;  // the close ends the body
  std::string head = head_text(framing_, 200, content_type,
                               {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}});
  if (framing_.http11) head += "Transfer-Encoding: chunked\r\n";
  append(head + "\r\n");
}

bool Exchange::write(std::string_view bytes) {
  CHECK(phase_ == Phase::kStreaming);
  if (bytes.empty() || framing_.head) return !client_gone();
  {
    std::unique_lock lock(mutex_);
    drained_.wait(lock, [&] { return outbox_.size() < kOutboxBytes || client_gone(); });
  }
  if (framing_.http11) {
    append(fmt::format("{:x}\r\n{}\r\n", bytes.size(), bytes));
  } else {
    append(bytes);
  }
  return !client_gone();
}

void Exchange::end_stream() {
  CHECK(phase_ == Phase::kStreaming);
  phase_ = Phase::kSent;
  if (framing_.http11 && !framing_.head) append("0\r\n\r\n");
}

void Exchange::set_gone() {
  std::lock_guard lock(mutex_);
  gone_.store(true, std::memory_order_relaxed);
  drained_.notify_all();
}

void Exchange::set_dead() {
  set_gone();
  std::lock_guard lock(mutex_);
  dead_ = true;
  outbox_.clear();
}

std::string Exchange::take(bool& done) {
  std::lock_guard lock(mutex_);
  done = handler_done_;
  drained_.notify_all();
  return std::exchange(outbox_, {});
}

bool Exchange::keep_alive() const {
  std::lock_guard lock(mutex_);
  return framing_.keep_alive && !broken_ && !dead_;
}

void Exchange::append(std::string_view bytes) {
  std::lock_guard lock(mutex_);
  if (dead_) return;
  outbox_ += bytes;
  wake_();
}

}  // namespace flashlane::server
