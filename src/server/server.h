// The HTTP server: OpenAI's chat completions and completions, models, health and status, over one
// engine. start() listens; stop() ends what runs within 2 s; both may be called from any thread.
#pragma once

#include <memory>

#include "base/result.h"
#include "server/services.h"

namespace flashlane::server {

class Server {
 public:
  // Listens and answers from here on. What services point to outlives the server.
  static Result<std::unique_ptr<Server>> start(ServerOptions options, Services services);
  ~Server();

  int port() const;
  // Takes no new connections, lets replies end for a moment, then ends them: at most 2 s.
  void stop();
  // Returns once stop() has ended, from whichever thread it was called.
  void wait();

 private:
  struct State;
  explicit Server(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace flashlane::server
