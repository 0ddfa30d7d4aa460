// HTTP as the rest of the server sees it: a request with its whole body, and a writer for one
// reply, whole or streamed. A handler runs on a thread of its own and may block; every request gets
// exactly one reply, whatever the handler does. Sockets, limits and timeouts live behind this
// (http_beast.cc).
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace flashlane::server {

struct HttpHeader {
  std::string name;
  std::string value;
};

struct HttpRequest {
  std::string method;  // as sent, e.g. "POST"
  std::string target;  // path and query, as sent
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  std::vector<HttpHeader> headers = {};
};

class ResponseWriter {
 public:
  virtual ~ResponseWriter() = default;

  // A whole reply. Once per request, and not after begin_stream.
  virtual void send(HttpResponse response) = 0;

  // A streamed reply: the headers go out at once, then each write, then the end. write blocks while
  // the client reads too slowly; false means that nobody reads any more.
  virtual void begin_stream(std::string_view content_type) = 0;
  virtual bool write(std::string_view bytes) = 0;
  virtual void end_stream() = 0;

  // The client closed the connection or its sending side. Kept up to date within 25 ms.
  virtual bool client_gone() const = 0;
  // The server wants this reply to end now.
  virtual bool stopping() const = 0;
};

using HttpHandler = std::function<void(const HttpRequest&, ResponseWriter&)>;

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0 = any free one
  size_t max_connections = 128;
  size_t max_body_bytes = 32u << 20;
  size_t max_header_bytes = 64u << 10;
  std::chrono::milliseconds read_timeout{30'000};   // first byte of a request → its headers
  std::chrono::milliseconds body_timeout{120'000};  // headers → the whole body
  std::chrono::milliseconds idle_timeout{75'000};   // between requests of one connection
  std::chrono::milliseconds write_timeout{30'000};  // a piece of a reply that nobody takes
  std::chrono::milliseconds stop_grace{1'000};      // running replies may end by themselves
};

class HttpServer {
 public:
  // Listens from here on; the error names the address.
  static Result<std::unique_ptr<HttpServer>> start(HttpOptions options, HttpHandler handler);
  ~HttpServer();

  int port() const;
  // Takes no more connections, lets running replies end for stop_grace, then asks them to end,
  // then closes what is left: at most 2 s with the default grace. Safe to call twice.
  void stop();

 private:
  struct State;
  explicit HttpServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace flashlane::server
