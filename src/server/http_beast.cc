// HTTP over Boost.Beast and Asio coroutines: the one file that sees them. One network thread owns
// all sockets; each request's handler runs on a pool thread and talks to its connection through an
// Exchange. A connection's place is given back only after its handler returned, so that the pool
// never has more jobs than threads.
#if defined(__SANITIZE_THREAD__)
// ThreadSanitizer knows no fences; Asio's mutexes order all that one network thread needs.
#define BOOST_ASIO_DISABLE_FENCED_BLOCK 1
#endif

#include <poll.h>

#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>
#include <utility>

#include "server/api_error.h"
#include "server/exchange.h"
#include "server/http.h"
#include "server/thread_pool.h"

namespace flashlane::server {

namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kWatchInterval{25};
constexpr milliseconds kLingerTime{1'000};  // for a client to read a refusal before the close
constexpr milliseconds kForceAfter{800};    // replies asked to end are cut off after this
constexpr size_t kMostRefusals = 64;        // connections over the limit that still get a 503

auto into(error_code& error) {
  return asio::redirect_error(asio::use_awaitable, error);
}

struct Connection : std::enable_shared_from_this<Connection> {
  explicit Connection(tcp::socket socket)
      : stream(std::move(socket)),
        wake(stream.get_executor(), steady_clock::time_point::max()),
        read_timer(stream.get_executor()) {}

  // Cancels what is being read after `limit`. The stream's own timeout would close the socket, and
  // the client would never read why.
  void limit_reading(milliseconds limit) {
    timed_out = false;
    stream.expires_never();
    read_timer.expires_after(limit);
    read_timer.async_wait([weak = weak_from_this(), number = ++limit_number](error_code error) {
      const auto self = weak.lock();
      // A later limit may have been set while this call was on its way.
      if (error || !self || self->limit_number != number) return;
      self->timed_out = true;
      self->stream.cancel();
    });
  }
  void end_reading() {
    ++limit_number;
    read_timer.cancel();
  }

  beast::tcp_stream stream;
  beast::flat_buffer buffer;
  asio::steady_timer wake;  // never expires: cancelled when there is something to do
  asio::steady_timer read_timer;
  uint64_t limit_number = 0;
  bool timed_out = false;
  std::shared_ptr<Exchange> exchange;  // while a handler runs
};

using ConnectionPtr = std::shared_ptr<Connection>;

// What a failed read means to the client; 0 = nothing to say.
int refusal_status(const error_code& error, bool timed_out) {
  if (timed_out) return 408;
  if (error == http::error::body_limit) return 413;
  if (error == http::error::header_limit || error == http::error::buffer_overflow) return 431;
  if (error == http::error::end_of_stream || error == http::error::partial_message) return 0;
  if (error.category() == make_error_code(http::error::bad_method).category()) return 400;
  return 0;
}

}  // namespace

struct HttpServer::State {
  State(HttpOptions http_options, HttpHandler http_handler)
      : options(std::move(http_options)),
        handler(std::move(http_handler)),
        acceptor(context),
        watch_timer(context),
        pool(options.max_connections) {}

  Status listen();
  asio::awaitable<void> accept_all();
  asio::awaitable<void> refuse_overload(ConnectionPtr connection);
  asio::awaitable<void> serve(ConnectionPtr connection);
  asio::awaitable<bool> read_request(Connection& connection, HttpRequest& request,
                                     Framing& framing);
  asio::awaitable<void> run_exchange(ConnectionPtr connection, HttpRequest request,
                                     Framing framing);
  asio::awaitable<void> refuse(Connection& connection, HttpResponse response);
  asio::awaitable<void> watch();
  std::string refusal_message(int status, const error_code& error) const;
  void wait_idle(milliseconds limit);

  const HttpOptions options;
  const HttpHandler handler;
  asio::io_context context{1};
  tcp::acceptor acceptor;
  asio::steady_timer watch_timer;
  int port = 0;

  // The network thread alone:
  std::unordered_set<ConnectionPtr> connections;
  size_t refusals = 0;
  size_t exchanges = 0;
  bool watching = false;
  bool draining = false;

  std::atomic<bool> stopping = false;
  std::mutex mutex;
  std::condition_variable idle;
  bool is_idle = true;  // no exchange; under mutex
  bool stopped = false;

  ThreadPool pool;
  std::thread network;
};

Status HttpServer::State::listen() {
  error_code error;
  const std::string host = options.host == "localhost" ? "127.0.0.1" : options.host;
  const auto address = asio::ip::make_address(host, error);
  if (error) {
    return invalid("can't listen on {}: not an IP address such as 127.0.0.1, 0.0.0.0 or ::1",
                   in_quotes(host));
  }
  const tcp::endpoint endpoint(address, static_cast<uint16_t>(options.port));
  acceptor.open(endpoint.protocol(), error);
  if (!error) acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(asio::socket_base::max_listen_connections, error);
  if (error) {
    return flashlane::error(ErrorCode::kIo, "can't listen on {}:{}: {}", options.host, options.port,
                            error.message());
  }
  port = acceptor.local_endpoint().port();
  return {};
}

asio::awaitable<void> HttpServer::State::accept_all() {
  while (!draining) {
    error_code error;
    tcp::socket socket = co_await acceptor.async_accept(into(error));
    if (draining) co_return;
    if (error) {
      // Out of file descriptors or the like: wait rather than spin.
      asio::steady_timer pause(context, milliseconds(50));
      co_await pause.async_wait(into(error));
      continue;
    }
    socket.set_option(tcp::no_delay(true), error);
    auto connection = std::make_shared<Connection>(std::move(socket));
    if (connections.size() < options.max_connections) {
      connections.insert(connection);
      asio::co_spawn(context, serve(std::move(connection)), asio::detached);
    } else if (refusals < kMostRefusals) {
      asio::co_spawn(context, refuse_overload(std::move(connection)), asio::detached);
    }
  }
}

asio::awaitable<void> HttpServer::State::refuse_overload(ConnectionPtr connection) {
  ++refusals;
  co_await refuse(*connection,
                  error_response(503, fmt::format("all {} connections are in use; try again later",
                                                  options.max_connections)));
  --refusals;
}

asio::awaitable<void> HttpServer::State::serve(ConnectionPtr connection) {
  for (;;) {
    HttpRequest request;
    Framing framing;
    if (!co_await read_request(*connection, request, framing)) break;
    co_await run_exchange(connection, std::move(request), framing);
    const bool keep = connection->exchange->keep_alive();
    connection->exchange.reset();
    if (!keep || draining) break;
  }
  error_code ignored;
  connection->stream.socket().shutdown(tcp::socket::shutdown_both, ignored);
  connection->stream.close();
  connections.erase(connection);
}

// False when the connection is at its end, with or without a refusal sent.
asio::awaitable<bool> HttpServer::State::read_request(Connection& connection, HttpRequest& request,
                                                      Framing& framing) {
  error_code error;
  if (connection.buffer.size() == 0) {
    connection.limit_reading(options.idle_timeout);
    const size_t bytes =
        co_await connection.stream.async_read_some(connection.buffer.prepare(4096), into(error));
    if (error) co_return false;
    connection.buffer.commit(bytes);
  }
  http::request_parser<http::string_body> parser;
  parser.header_limit(static_cast<uint32_t>(options.max_header_bytes));
  parser.body_limit(options.max_body_bytes);
  connection.limit_reading(options.read_timeout);
  co_await http::async_read_header(connection.stream, connection.buffer, parser, into(error));
  if (!error && beast::iequals(parser.get()[http::field::expect], "100-continue")) {
    constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    co_await asio::async_write(connection.stream, asio::buffer(kContinue), into(error));
  }
  if (!error && !parser.is_done()) {
    connection.limit_reading(options.body_timeout);
    co_await http::async_read(connection.stream, connection.buffer, parser, into(error));
  }
  connection.end_reading();
  if (error) {
    if (const int status = refusal_status(error, connection.timed_out); status != 0) {
      co_await refuse(connection, error_response(status, refusal_message(status, error)));
    }
    co_return false;
  }
  auto message = parser.release();
  framing.http11 = message.version() >= 11;
  framing.keep_alive = message.keep_alive() && !draining;
  request.method = std::string(message.method_string());
  request.target = std::string(message.target());
  request.body = std::move(message.body());
  framing.head = request.method == "HEAD";
  co_return true;
}

asio::awaitable<void> HttpServer::State::run_exchange(ConnectionPtr connection, HttpRequest request,
                                                      Framing framing) {
  // Weak, so that a connection is never destroyed on a handler's thread.
  auto wake = [this, weak = std::weak_ptr<Connection>(connection)] {
    asio::post(context, [weak] {
      if (const ConnectionPtr alive = weak.lock()) alive->wake.cancel();
    });
  };
  auto exchange =
      std::make_shared<Exchange>(std::move(request), framing, stopping, std::move(wake));
  connection->exchange = exchange;
  if (exchanges++ == 0) {
    std::lock_guard lock(mutex);
    is_idle = false;
  }
  if (!watching) {
    watching = true;
    asio::co_spawn(context, watch(), asio::detached);
  }
  pool.run([this, exchange] { exchange->run(handler); });

  bool done = false;
  for (;;) {
    std::string bytes = exchange->take(done);
    error_code error;
    if (!bytes.empty()) {
      connection->stream.expires_after(options.write_timeout);
      co_await asio::async_write(connection->stream, asio::buffer(bytes), into(error));
      if (error) exchange->set_dead();
    } else if (done) {
      break;
    } else {
      co_await connection->wake.async_wait(into(error));
    }
  }
  if (--exchanges == 0) {
    std::lock_guard lock(mutex);
    is_idle = true;
    idle.notify_all();
  }
}

// Sends a reply to a request that was not read to its end. What the client still sends is read and
// dropped for a moment: closing at once would reset the connection and lose the reply.
asio::awaitable<void> HttpServer::State::refuse(Connection& connection, HttpResponse response) {
  error_code error;
  const std::string bytes = whole_reply({.http11 = true, .keep_alive = false}, response);
  connection.stream.expires_after(kLingerTime);
  co_await asio::async_write(connection.stream, asio::buffer(bytes), into(error));
  if (error) co_return;
  connection.stream.socket().shutdown(tcp::socket::shutdown_send, error);
  std::string dropped(16u << 10, '\0');
  connection.stream.expires_after(kLingerTime);
  while (!error) {
    co_await connection.stream.async_read_some(asio::buffer(dropped), into(error));
  }
}

// Asks the system which clients have left. Polling sees a close behind unread pipelined bytes,
// which waiting for a read does not, and one call asks about all of them.
asio::awaitable<void> HttpServer::State::watch() {
  std::vector<pollfd> sockets;
  std::vector<Exchange*> owners;
  while (exchanges > 0) {
    error_code ignored;
    watch_timer.expires_after(kWatchInterval);
    co_await watch_timer.async_wait(into(ignored));
    sockets.clear();
    owners.clear();
    for (const ConnectionPtr& connection : connections) {
      if (!connection->exchange || connection->exchange->client_gone()) continue;
      sockets.push_back({connection->stream.socket().native_handle(), POLLRDHUP, 0});
      owners.push_back(connection->exchange.get());
    }
    if (::poll(sockets.data(), sockets.size(), 0) <= 0) continue;
    for (size_t i = 0; i < sockets.size(); ++i) {
      if (sockets[i].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) owners[i]->set_gone();
    }
  }
  watching = false;
}

std::string HttpServer::State::refusal_message(int status, const error_code& error) const {
  switch (status) {
    case 408:
      return "the request did not arrive in time";
    case 413:
      return fmt::format("the request body is larger than {} bytes", options.max_body_bytes);
    case 431:
      return fmt::format("the request headers are larger than {} bytes", options.max_header_bytes);
    default:
      return fmt::format("not a valid HTTP request: {}", error.message());
  }
}

void HttpServer::State::wait_idle(milliseconds limit) {
  std::unique_lock lock(mutex);
  idle.wait_for(lock, limit, [&] { return is_idle; });
}

HttpServer::HttpServer(std::unique_ptr<State> state) : state_(std::move(state)) {}

HttpServer::~HttpServer() {
  stop();
}

Result<std::unique_ptr<HttpServer>> HttpServer::start(HttpOptions options, HttpHandler handler) {
  if (options.port < 0 || options.port > 65535) {
    return invalid("--port {}: must be 0 to 65535", options.port);
  }
  if (options.max_connections < 1) return invalid("at least one connection must be allowed");
  auto state = std::make_unique<State>(std::move(options), std::move(handler));
  RETURN_IF_ERROR(state->listen());
  State* raw = state.get();
  asio::co_spawn(raw->context, raw->accept_all(), asio::detached);
  raw->network = std::thread([raw] { raw->context.run(); });
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(state)));
}

int HttpServer::port() const {
  return state_->port;
}

void HttpServer::stop() {
  State& state = *state_;
  {
    std::lock_guard lock(state.mutex);
    if (std::exchange(state.stopped, true)) return;
  }
  asio::post(state.context, [&state] {
    state.draining = true;
    error_code ignored;
    state.acceptor.close(ignored);
    for (const ConnectionPtr& connection : state.connections) {
      if (!connection->exchange) connection->stream.cancel();
    }
  });
  state.wait_idle(state.options.stop_grace);
  state.stopping = true;
  state.wait_idle(kForceAfter);
  asio::post(state.context, [&state] {
    for (const ConnectionPtr& connection : state.connections) {
      if (connection->exchange) connection->exchange->set_dead();
      connection->stream.close();
      connection->wake.cancel();
    }
  });
  // Every coroutine ends by itself now: the sockets are closed, the handlers return.
  if (state.network.joinable()) state.network.join();
}

}  // namespace flashlane::server
