// The HTTP layer over loopback with handlers of the test's own: framing, limits, timeouts, order on
// one connection, clients that leave, and stopping.
#include "server/http.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "tests/server/raw_client.h"

namespace flashlane::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::exchange;
using testing::get;
using testing::post;
using testing::RawClient;
using testing::RawReply;

// Answers with the request as it was seen.
void echo(const HttpRequest& request, ResponseWriter& writer) {
  writer.send({.body = fmt::format("{} {} {}", request.method, request.target, request.body)});
}

std::unique_ptr<HttpServer> start(HttpOptions options, HttpHandler handler) {
  auto server = HttpServer::start(std::move(options), std::move(handler));
  EXPECT_TRUE(server.ok()) << server.error().message;
  return std::move(server).value();
}

bool becomes_true(const std::function<bool()>& condition, milliseconds limit = seconds(10)) {
  const auto deadline = steady_clock::now() + limit;
  while (!condition()) {
    if (steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

TEST(Http, AnswersRequestsInOrderOnOneConnection) {
  const auto server = start({}, echo);
  RawClient client(server->port());
  client.send(post("/a", "one") + get("/b") + post("/c", ""));
  EXPECT_EQ(client.read_reply().body, "POST /a one");
  EXPECT_EQ(client.read_reply().body, "GET /b ");
  const RawReply last = client.read_reply();
  EXPECT_EQ(last.body, "POST /c ");
  EXPECT_EQ(last.headers.at("content-type"), "application/json");
  EXPECT_EQ(last.headers.count("connection"), 0u);
}

TEST(Http, TakesAnyCutOfARequest) {
  const auto server = start({}, echo);
  const std::string request = post("/x", R"({"a":1})");
  for (size_t cut = 1; cut < request.size(); cut += 7) {
    RawClient client(server->port());
    client.send(request.substr(0, cut));
    std::this_thread::sleep_for(milliseconds(1));
    client.send(request.substr(cut));
    EXPECT_EQ(client.read_reply().body, R"(POST /x {"a":1})") << cut;
  }
}

TEST(Http, TakesChunkedBodies) {
  const auto server = start({}, echo);
  RawClient client(server->port());
  const std::string head = "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  client.send(head + "3\r\nabc\r\n");
  std::this_thread::sleep_for(milliseconds(5));
  client.send("2;note=x\r\nde\r\n0\r\n\r\n" + get("/next"));
  EXPECT_EQ(client.read_reply().body, "POST /x abcde");
  EXPECT_EQ(client.read_reply().body, "GET /next ");
}

TEST(Http, AsksForTheBodyWhenTheClientWaits) {
  const auto server = start({}, echo);
  RawClient client(server->port());
  client.send("POST /x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  ASSERT_TRUE(client.read_until("HTTP/1.1 100 Continue\r\n\r\n"));
  client.send("ok");
  EXPECT_EQ(client.read_reply().body, "POST /x ok");
}

TEST(Http, KeepsOldClientsFraming) {
  const auto server = start({}, [](const HttpRequest& request, ResponseWriter& writer) {
    if (request.target == "/whole") return echo(request, writer);
    writer.begin_stream("text/plain");
    writer.write("piece");
    writer.end_stream();
  });
  RawClient whole(server->port());
  whole.send("GET /whole HTTP/1.0\r\n\r\n");
  const RawReply reply = whole.read_reply();
  EXPECT_EQ(reply.headers.at("connection"), "close");
  EXPECT_TRUE(whole.closed_by_server());
  // A stream without chunks ends with the connection.
  const RawReply streamed = exchange(server->port(), "GET /s HTTP/1.0\r\n\r\n");
  EXPECT_EQ(streamed.headers.count("transfer-encoding"), 0u);
  EXPECT_EQ(streamed.body, "piece");
  EXPECT_TRUE(streamed.complete);
}

TEST(Http, HeadHasTheHeadersAlone) {
  const auto server = start({}, echo);
  RawClient client(server->port());
  client.send("HEAD /x HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(client.read_until("\r\n\r\n"));
  EXPECT_NE(client.received().find("Content-Length: 8\r\n"), std::string::npos);
  client.send(get("/y"));
  ASSERT_TRUE(client.read_until("GET /y "));
  EXPECT_EQ(client.received().find("HEAD /x "), std::string::npos);
}

TEST(Http, RefusesBodiesOverTheLimit) {
  const auto server = start({.max_body_bytes = 100}, echo);
  EXPECT_EQ(exchange(server->port(), post("/x", std::string(100, 'a'))).status, 200);
  const RawReply refused = exchange(server->port(), post("/x", std::string(101, 'a')));
  EXPECT_EQ(refused.status, 413);
  EXPECT_EQ(refused.headers.at("connection"), "close");
  EXPECT_NE(refused.body.find("larger than 100 bytes"), std::string::npos) << refused.body;
  // A chunked body has no length to refuse at once.
  const RawReply chunked = exchange(
      server->port(), "POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" +
                          fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", 200, std::string(200, 'b')));
  EXPECT_EQ(chunked.status, 413);
  // The client is told before it sends a body that is too large.
  RawClient waiting(server->port());
  waiting.send("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 101\r\n\r\n");
  EXPECT_EQ(waiting.read_reply().status, 413);
}

TEST(Http, ALargeRefusedBodyDoesNotHideTheReply) {
  const auto server = start({.max_body_bytes = 1000}, echo);
  RawClient client(server->port());
  client.send(post("/x", std::string(4u << 20, 'a')));
  EXPECT_EQ(client.read_reply().status, 413);
}

TEST(Http, RefusesWhatIsNotHttp) {
  const auto server = start({.max_header_bytes = 1000}, echo);
  EXPECT_EQ(exchange(server->port(), "hello\r\n\r\n").status, 400);
  EXPECT_EQ(exchange(server->port(), "GET / HTTP/1.1\r\nbad header\r\n\r\n").status, 400);
  EXPECT_EQ(exchange(server->port(), "POST / HTTP/1.1\r\nContent-Length: -5\r\n\r\n").status, 400);
  const RawReply large =
      exchange(server->port(), "GET / HTTP/1.1\r\nX: " + std::string(2000, 'x') + "\r\n\r\n");
  EXPECT_EQ(large.status, 431);
  EXPECT_NE(large.body.find("\"error\""), std::string::npos);
  EXPECT_EQ(exchange(server->port(), get("/still")).status, 200);
}

TEST(Http, GivesUpOnSlowRequests) {
  const auto server =
      start({.read_timeout = milliseconds(150), .body_timeout = milliseconds(150)}, echo);
  RawClient header(server->port());
  header.send("GET / HTTP/1.1\r\nHost:");
  RawClient body(server->port());
  body.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc");
  EXPECT_EQ(header.read_reply().status, 408);
  EXPECT_EQ(body.read_reply().status, 408);
}

TEST(Http, ClosesIdleConnectionsQuietly) {
  const auto server = start({.idle_timeout = milliseconds(100)}, echo);
  RawClient client(server->port());
  EXPECT_TRUE(client.closed_by_server());
  EXPECT_EQ(client.received(), "");
}

TEST(Http, ConnectionsOverTheLimitGetA503) {
  const auto server = start({.max_connections = 2}, echo);
  auto first = std::make_unique<RawClient>(server->port());
  RawClient second(server->port());
  first->send(get("/1"));
  second.send(get("/2"));
  EXPECT_EQ(first->read_reply().status, 200);
  EXPECT_EQ(second.read_reply().status, 200);
  const RawReply refused = exchange(server->port(), get("/3"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(refused.headers.at("retry-after"), "1");
  EXPECT_NE(refused.body.find("all 2 connections"), std::string::npos) << refused.body;
  first.reset();
  EXPECT_TRUE(becomes_true([&] { return exchange(server->port(), get("/4")).status == 200; }));
}

TEST(Http, HandlersThatBlockDoNotHoldUpOthers) {
  std::atomic<bool> go = false;
  const auto server =
      start({.max_connections = 16}, [&](const HttpRequest& request, ResponseWriter& writer) {
        while (request.target == "/wait" && !go) std::this_thread::sleep_for(milliseconds(1));
        echo(request, writer);
      });
  std::vector<std::unique_ptr<RawClient>> waiting;
  for (int i = 0; i < 15; ++i) {
    waiting.push_back(std::make_unique<RawClient>(server->port()));
    waiting.back()->send(get("/wait"));
  }
  EXPECT_EQ(exchange(server->port(), get("/health")).status, 200);
  go = true;
  for (auto& client : waiting) EXPECT_EQ(client->read_reply().status, 200);
}

TEST(Http, StreamsInChunksAndKeepsTheConnection) {
  const auto server = start({}, [](const HttpRequest&, ResponseWriter& writer) {
    writer.begin_stream("text/event-stream");
    for (int i = 0; i < 100; ++i) writer.write(fmt::format("data: {}\n\n", i));
    writer.end_stream();
  });
  RawClient client(server->port());
  for (int round = 0; round < 3; ++round) {
    client.send(get("/"));
    const RawReply reply = client.read_reply();
    EXPECT_TRUE(reply.complete);
    EXPECT_EQ(testing::sse_data(reply.body).size(), 100u);
    EXPECT_EQ(reply.headers.at("cache-control"), "no-cache");
  }
}

TEST(Http, AWriterWaitsForASlowReaderAndLosesNothing) {
  const std::string piece(64u << 10, 'p');
  const auto server = start({}, [&](const HttpRequest&, ResponseWriter& writer) {
    writer.begin_stream("text/plain");
    for (int i = 0; i < 200; ++i) writer.write(piece);
    writer.end_stream();
  });
  RawClient client(server->port());
  client.send(get("/"));
  std::this_thread::sleep_for(milliseconds(200));
  const RawReply reply = client.read_reply();
  EXPECT_TRUE(reply.complete);
  EXPECT_EQ(reply.body.size(), 200 * piece.size());
}

TEST(Http, AReaderThatStopsIsGivenUp) {
  std::atomic<bool> told = false;
  const std::string piece(1u << 20, 'p');
  const auto server =
      start({.write_timeout = milliseconds(200)}, [&](const HttpRequest&, ResponseWriter& writer) {
        writer.begin_stream("text/plain");
        for (int i = 0; i < 1000 && writer.write(piece); ++i) {
        }
        told = writer.client_gone();
        writer.end_stream();
      });
  RawClient client(server->port());
  client.send(get("/"));
  EXPECT_TRUE(becomes_true([&] { return told.load(); }));
}

// How a client leaves × whether anything was pipelined behind its request.
TEST(Http, HandlersSeeTheClientLeave) {
  for (const bool streaming : {false, true}) {
    for (const bool half : {false, true}) {
      for (const bool pipelined : {false, true}) {
        std::atomic<bool> started = false;
        std::atomic<bool> seen = false;
        const auto server = start({}, [&](const HttpRequest&, ResponseWriter& writer) {
          if (streaming) writer.begin_stream("text/plain");
          started = true;
          seen = becomes_true([&] { return writer.client_gone(); }, seconds(5));
          if (streaming) {
            writer.end_stream();
          } else {
            writer.send({.status = 400, .body = "gone"});
          }
        });
        RawClient client(server->port());
        client.send(get("/") + (pipelined ? get("/behind") : std::string()));
        ASSERT_TRUE(becomes_true([&] { return started.load(); }));
        const auto left = steady_clock::now();
        half ? client.finish_sending() : client.close();
        EXPECT_TRUE(becomes_true([&] { return seen.load(); })) << half << pipelined << streaming;
        EXPECT_LT(steady_clock::now() - left, seconds(3));
        // Who closed its sending side alone still reads the answer.
        if (half && !streaming) {
          EXPECT_EQ(client.read_reply().status, 400);
        }
      }
    }
  }
}

TEST(Http, AHalfClosedClientStillGetsAQuickAnswer) {
  const auto server = start({}, echo);
  RawClient client(server->port());
  client.send(get("/quick"));
  client.finish_sending();
  EXPECT_EQ(client.read_reply().body, "GET /quick ");
  EXPECT_TRUE(client.closed_by_server());
}

TEST(Http, AHandlerThatThrowsOrForgetsIsA500) {
  const auto server = start({}, [](const HttpRequest& request, ResponseWriter&) {
    if (request.target == "/throw") throw std::bad_alloc();
  });
  EXPECT_EQ(exchange(server->port(), get("/throw")).status, 500);
  EXPECT_EQ(exchange(server->port(), get("/forget")).status, 500);
}

TEST(Http, ACutStreamIsSeenAsCut) {
  const auto server = start({}, [](const HttpRequest&, ResponseWriter& writer) {
    writer.begin_stream("text/plain");
    writer.write("half");
    throw std::bad_alloc();
  });
  const RawReply reply = exchange(server->port(), get("/"));
  EXPECT_EQ(reply.body, "half");
  EXPECT_FALSE(reply.complete);
}

TEST(Http, StopEndsHandlersWithinTwoSeconds) {
  std::atomic<bool> started = false;
  auto server = start({}, [&](const HttpRequest&, ResponseWriter& writer) {
    started = true;
    while (!writer.stopping()) std::this_thread::sleep_for(milliseconds(1));
    writer.send({.status = 503, .body = "stopping"});
  });
  RawClient idle(server->port());
  RawClient busy(server->port());
  busy.send(get("/"));
  ASSERT_TRUE(becomes_true([&] { return started.load(); }));
  const auto begin = steady_clock::now();
  server->stop();
  EXPECT_LT(steady_clock::now() - begin, seconds(4));  // 1 s of grace on an idle machine
  EXPECT_EQ(busy.read_reply().status, 503);
  EXPECT_TRUE(idle.closed_by_server());
  EXPECT_FALSE(RawClient(server->port()).connected());
}

TEST(Http, StopLetsQuickRepliesEnd) {
  std::atomic<bool> started = false;
  auto server =
      start({.stop_grace = seconds(20)}, [&](const HttpRequest& request, ResponseWriter& writer) {
        started = true;
        std::this_thread::sleep_for(milliseconds(100));
        echo(request, writer);
      });
  RawClient client(server->port());
  client.send(get("/last"));
  ASSERT_TRUE(becomes_true([&] { return started.load(); }));
  server->stop();
  EXPECT_EQ(client.read_reply().body, "GET /last ");
}

TEST(Http, StopDoesNotWaitForAReaderThatStopped) {
  std::atomic<bool> started = false;
  auto server =
      start({.stop_grace = milliseconds(50)}, [&](const HttpRequest&, ResponseWriter& writer) {
        writer.begin_stream("text/plain");
        started = true;
        const std::string piece(1u << 20, 'p');
        while (writer.write(piece) && !writer.stopping()) {
        }
        writer.end_stream();
      });
  RawClient client(server->port());
  client.send(get("/"));
  ASSERT_TRUE(becomes_true([&] { return started.load(); }));
  std::this_thread::sleep_for(milliseconds(100));
  server->stop();
}

TEST(Http, ATakenPortIsRefusedByName) {
  const auto server = start({}, echo);
  const auto second = HttpServer::start({.port = server->port()}, echo);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find(std::to_string(server->port())), std::string::npos);
  const auto host = HttpServer::start({.host = "not an address"}, echo);
  ASSERT_FALSE(host.ok());
  EXPECT_NE(host.error().message.find("not an address"), std::string::npos);
  EXPECT_FALSE(HttpServer::start({.port = 70000}, echo).ok());
}

}  // namespace
}  // namespace flashlane::server
