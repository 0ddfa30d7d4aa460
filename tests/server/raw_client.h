// A bare TCP client for tests: sends exactly the bytes it is told to and reads replies with a
// deadline, so that half requests, pipelines and early closes can be made. No HTTP library, so that
// a mistake in the server's framing is seen.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flashlane::testing {

struct RawReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // chunks joined
  bool complete = false;                       // the framing's end was seen
};

class RawClient {
 public:
  explicit RawClient(int port);
  ~RawClient();
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  bool connected() const { return socket_ >= 0; }
  // False when the server no longer takes bytes.
  bool send(std::string_view bytes);
  void finish_sending();  // FIN, still reading
  void close();

  // The next reply with its whole body; status 0 when none comes in time.
  RawReply read_reply(std::chrono::milliseconds limit = std::chrono::seconds(120));
  // Reads until `text` has come; false at the deadline or the end of the connection.
  bool read_until(std::string_view text,
                  std::chrono::milliseconds limit = std::chrono::seconds(120));
  // True when the server closes the connection in time, whatever else it sends.
  bool closed_by_server(std::chrono::milliseconds limit = std::chrono::seconds(120));
  const std::string& received() const { return received_; }

 private:
  using Deadline = std::chrono::steady_clock::time_point;
  bool fill(Deadline deadline);  // one read into received_
  bool fill_to(size_t bytes, Deadline deadline);
  bool read_chunks(std::string& body, Deadline deadline);

  int socket_ = -1;
  std::string received_;  // not yet parsed
};

// A request with a JSON body.
std::string post(std::string_view path, std::string_view body);
std::string get(std::string_view path);

// One request on a connection of its own.
RawReply exchange(int port, std::string_view request);

// The data of each event of a stream body, comments left out.
std::vector<std::string> sse_data(std::string_view body);

}  // namespace flashlane::testing
