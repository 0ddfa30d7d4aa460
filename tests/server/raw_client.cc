// A bare TCP client for tests.
#include "tests/server/raw_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

namespace flashlane::testing {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

RawClient::RawClient(int port) {
  socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) close();
}

RawClient::~RawClient() {
  close();
}

void RawClient::close() {
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void RawClient::finish_sending() {
  ::shutdown(socket_, SHUT_WR);
}

bool RawClient::fill(Deadline deadline) {
  const auto left = std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
  pollfd waiting{socket_, POLLIN, 0};
  if (left.count() <= 0 || ::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) return false;
  char buffer[16384];
  const ssize_t count = ::recv(socket_, buffer, sizeof buffer, 0);
  if (count <= 0) return false;
  received_.append(buffer, static_cast<size_t>(count));
  return true;
}

bool RawClient::fill_to(size_t bytes, Deadline deadline) {
  while (received_.size() < bytes) {
    if (!fill(deadline)) return false;
  }
  return true;
}

bool RawClient::read_until(std::string_view text, milliseconds limit) {
  const Deadline deadline = steady_clock::now() + limit;
  while (received_.find(text) == std::string::npos) {
    if (!fill(deadline)) return false;
  }
  return true;
}

bool RawClient::closed_by_server(milliseconds limit) {
  const Deadline deadline = steady_clock::now() + limit;
  while (fill(deadline)) {
  }
  return steady_clock::now() < deadline;
}

bool RawClient::read_chunks(std::string& body, Deadline deadline) {
  for (;;) {
    size_t line = 0;
    while ((line = received_.find("\r\n")) == std::string::npos) {
      if (!fill(deadline)) return false;
    }
    const size_t size = std::strtoul(received_.c_str(), nullptr, 16);
    if (!fill_to(line + 2 + size + 2, deadline)) return false;
    body += received_.substr(line + 2, size);
    const bool framed = received_.compare(line + 2 + size, 2, "\r\n") == 0;
    received_.erase(0, line + 2 + size + 2);
    if (!framed) return false;
    if (size == 0) return true;
  }
}

RawReply RawClient::read_reply(milliseconds limit) {
  const Deadline deadline = steady_clock::now() + limit;
  RawReply reply;
  if (!read_until("\r\n\r\n", limit)) return reply;
  const size_t head_size = received_.find("\r\n\r\n") + 4;
  std::string head = received_.substr(0, head_size);
  received_.erase(0, head_size);
  if (head.rfind("HTTP/1.1 ", 0) != 0) return reply;
  reply.status = std::atoi(head.c_str() + 9);
  if (reply.status == 100) return read_reply(limit);
  for (size_t at = head.find("\r\n") + 2; at + 2 < head.size();) {
    const size_t end = head.find("\r\n", at);
    const size_t colon = head.find(": ", at);
    std::string name = head.substr(at, colon - at);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    reply.headers[name] = head.substr(colon + 2, end - colon - 2);
    at = end + 2;
  }
  if (reply.headers.count("transfer-encoding") != 0) {
    reply.complete = read_chunks(reply.body, deadline);
  } else if (reply.headers.count("content-length") != 0) {
    const size_t size = std::strtoul(reply.headers["content-length"].c_str(), nullptr, 10);
    reply.complete = fill_to(size, deadline);
    reply.body = received_.substr(0, size);
    received_.erase(0, reply.body.size());
  } else if (reply.status == 204) {
    reply.complete = true;
  } else {
    while (fill(deadline)) {
    }
    reply.complete = steady_clock::now() < deadline;
    reply.body.swap(received_);
  }
  return reply;
}

std::string post(std::string_view path, std::string_view body) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: {}\r\n\r\n{}",
      path, body.size(), body);
}

std::string get(std::string_view path) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n\r\n", path);
}

RawReply exchange(int port, std::string_view request) {
  RawClient client(port);
  client.send(request);
  return client.read_reply();
}

std::vector<std::string> sse_data(std::string_view body) {
  std::vector<std::string> out;
  while (!body.empty()) {
    const size_t end = body.find("\n\n");
    const std::string_view event = body.substr(0, end);
    if (event.substr(0, 6) == "data: ") out.emplace_back(event.substr(6));
    body.remove_prefix(end == std::string_view::npos ? body.size() : end + 2);
  }
  return out;
}

}  // namespace flashlane::testing
