// One request's reply between its handler (a pool thread) and its connection (the network thread):
// framed bytes go one way, "gone" and "stopping" the other. A handler that leaves a reply unsent or
// throws still gives the client an answer, or a stream that is seen to be cut.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "server/http.h"

namespace flashlane::server {

// How a reply is framed, decided by the request alone.
struct Framing {
  bool http11 = true;
  bool keep_alive = true;
  bool head = false;  // headers only
};

// Status line, headers and body.
std::string whole_reply(const Framing& framing, const HttpResponse& response);
// An error of the HTTP layer in OpenAI's shape.
HttpResponse error_response(int status, std::string message);

class Exchange final : public ResponseWriter {
 public:
  // `wake` tells the network thread to take(); it may be called from any thread.
  Exchange(HttpRequest request, Framing framing, const std::atomic<bool>& server_stopping,
           std::function<void()> wake);

  // ---- the handler's thread ----
  void run(const HttpHandler& handler);
  void send(HttpResponse response) override;
  void begin_stream(std::string_view content_type) override;
  bool write(std::string_view bytes) override;
  void end_stream() override;
  bool client_gone() const override { return gone_.load(std::memory_order_relaxed); }
  bool stopping() const override { return server_stopping_.load(std::memory_order_relaxed); }

  // ---- the network thread ----
  void set_gone();
  // Nothing can be sent any more: what is written from now on is dropped.
  void set_dead();
  // Everything written since the last call; `done` once the handler returned.
  std::string take(bool& done);
  // Whether the connection may serve another request; after `done`.
  bool keep_alive() const;

 private:
  enum class Phase { kNothing, kStreaming, kSent };

  void append(std::string_view bytes);

  const HttpRequest request_;
  Framing framing_;
  const std::atomic<bool>& server_stopping_;
  const std::function<void()> wake_;
  std::atomic<bool> gone_ = false;
  Phase phase_ = Phase::kNothing;  // the handler's thread alone

  mutable std::mutex mutex_;
  std::condition_variable drained_;
  std::string outbox_;
  bool handler_done_ = false;
  bool broken_ = false;
  bool dead_ = false;
};

}  // namespace flashlane::server
