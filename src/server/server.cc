// Routes: which handler answers which path, and the small replies that need no engine work.
#include "server/server.h"

#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "server/http.h"
#include "server/metrics.h"
#include "server/openai_types.h"
#include "server/plan.h"
#include "server/reply_format.h"
#include "server/reply_handler.h"

namespace flashlane::server {

namespace json = boost::json;

namespace {

constexpr std::string_view kModels = "/v1/models";
constexpr std::string_view kChat = "/v1/chat/completions";
constexpr std::string_view kCompletions = "/v1/completions";

// "%3A" → ":"; anything malformed stays as it is and then matches nothing.
std::string percent_decoded(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && digit(text[i + 1]) >= 0 &&
        digit(text[i + 2]) >= 0) {
      out += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

HttpResponse json_response(const json::object& body) {
  return {.status = 200, .body = json::serialize(body)};
}

json::object model_object(const ModelInfo& model, std::string_view id) {
  json::object out;
  out["id"] = json::string(id);
  out["object"] = "model";
  out["created"] = model.created;
  out["owned_by"] = "flashlane";
  out["max_model_len"] = model.context;
  return out;
}

json::object usage_object(const engine::Usage& usage) {
  return {{"slots", usage.slots},
          {"slots_in_use", usage.slots_in_use},
          {"sequences", usage.sequences},
          {"sessions", usage.sessions.sessions},
          {"sessions_free", usage.sessions.free},
          {"pages", usage.pool.pages},
          {"pages_free", usage.pool.free},
          {"pages_promised", usage.pool.promised},
          {"pages_of_rows", usage.pool.table},
          {"pages_of_states", usage.pool.state}};
}

json::object prompt_cache_object(const engine::EngineStatus& status) {
  const auto& cache = status.prompt_cache;
  return {{"pages", cache.pages},
          {"pages_used", cache.used_pages},
          {"states", cache.entries},
          {"hits", cache.hits},
          {"misses", cache.misses},
          {"kept", cache.kept},
          {"evicted", cache.evicted},
          {"refused", cache.refused},
          {"failed", cache.failed},
          {"cached_tokens_total", status.cached_tokens_total},
          {"snapshots_restored", status.snapshots_restored},
          {"snapshots_read_back", status.snapshots_read_back},
          {"snapshots_saved", status.snapshots_saved}};
}

json::object lone_object(const engine::LoneUsage& lone) {
  return {{"on", lone.on},
          {"steps_in_flight", lone.steps_in_flight},
          {"active", lone.active},
          {"runs", lone.runs},
          {"steps", lone.steps},
          {"ahead", lone.ahead},
          {"handoffs", lone.handoffs}};
}

}  // namespace

struct Server::State {
  State(ServerOptions server_options, Services server_services)
      : options(std::move(server_options)), services(std::move(server_services)) {}

  void handle(const HttpRequest& request, ResponseWriter& writer) const;
  bool handle_get(std::string_view path, ResponseWriter& writer) const;
  void handle_chat(const HttpRequest& request, ResponseWriter& writer) const;
  void handle_completion(const HttpRequest& request, ResponseWriter& writer) const;
  HttpResponse status() const;
  HttpResponse health() const;
  HttpResponse models() const;

  const ServerOptions options;
  const Services services;
  std::unique_ptr<HttpServer> http;
  std::mutex mutex;
  std::condition_variable changed;
  bool stopped = false;
};

void Server::State::handle(const HttpRequest& request, ResponseWriter& writer) const {
  const std::string_view path =
      std::string_view(request.target)
          .substr(0, std::min(request.target.find('?'), request.target.size()));
  const bool posts = path == kChat || path == kCompletions;
  const std::string_view allowed = posts ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
  if (request.method == "GET" || request.method == "HEAD") {
    if (!posts && handle_get(path, writer)) return;
  } else if (request.method == "POST" && posts) {
    return path == kChat ? handle_chat(request, writer) : handle_completion(request, writer);
  } else if (request.method == "OPTIONS") {
    return writer.send({.status = 204,
                        .body = {},
                        .content_type = {},
                        .headers = {{"Allow", std::string(allowed)}}});
  }
  const std::string what = printable(request.method, 16) + " " + printable(path, 128);
  const bool known = posts || path == "/" || path == "/health" || path == "/status" ||
                     path == "/metrics" || path == kModels || path.starts_with("/v1/models/");
  if (!known) return refuse(http_error(404, fmt::format("no such route: {}", what)), what, writer);
  const ApiError error =
      http_error(405, fmt::format("{} is not allowed here; use {}", what, allowed));
  writer.send(
      {.status = 405, .body = error_body(error), .headers = {{"Allow", std::string(allowed)}}});
}

// False when the path is not one of ours.
bool Server::State::handle_get(std::string_view path, ResponseWriter& writer) const {
  const std::string prefix = std::string(kModels) + "/";
  if (path == "/health") {
    writer.send(health());
  } else if (path == "/status") {
    writer.send(status());
  } else if (path == "/metrics") {
    writer.send({.status = 200,
                 .body = metrics_text(services.engine->status()),
                 .content_type = std::string(kMetricsContentType)});
  } else if (path == kModels) {
    writer.send(models());
  } else if (path.starts_with(prefix)) {
    const std::string id = percent_decoded(path.substr(prefix.size()));
    if (is_served(services.model, id)) {
      writer.send(json_response(model_object(services.model, id)));
    } else {
      refuse(unknown_model(services.model, id), "GET /v1/models/", writer);
    }
  } else if (path == "/") {
    writer.send({.status = 200,
                 .body = fmt::format("Flashlane serves {}.\n"
                                     "POST /v1/chat/completions, POST /v1/completions, "
                                     "GET /v1/models, GET /health, GET /status, GET /metrics\n",
                                     services.model.name),
                 .content_type = "text/plain; charset=utf-8"});
  } else {
    return false;
  }
  return true;
}

void Server::State::handle_chat(const HttpRequest& request, ResponseWriter& writer) const {
  const Result<ChatRequest> chat = parse_chat_request(request.body);
  if (!chat) return refuse(to_api_error(chat.error()), kChat, writer);
  ReplyPlan plan;
  if (const auto refusal = plan_chat(services, options, *chat, plan)) {
    return refuse(*refusal, kChat, writer);
  }
  run_reply(services, options, std::move(plan), chat.value().options, writer);
}

void Server::State::handle_completion(const HttpRequest& request, ResponseWriter& writer) const {
  const Result<CompletionRequest> completion = parse_completion_request(request.body);
  if (!completion) return refuse(to_api_error(completion.error()), kCompletions, writer);
  ReplyPlan plan;
  if (const auto refusal = plan_completion(services, options, *completion, plan)) {
    return refuse(*refusal, kCompletions, writer);
  }
  run_reply(services, options, std::move(plan), completion.value().options, writer);
}

HttpResponse Server::State::health() const {
  if (services.engine->status().failed) {
    return {.status = 503, .body = R"({"status":"failed"})"};
  }
  return {.status = 200, .body = R"({"status":"ok"})"};
}

HttpResponse Server::State::status() const {
  const engine::EngineStatus now = services.engine->status();
  json::object out;
  out["running"] = now.running;
  out["waiting"] = now.waiting;
  out["usage"] = usage_object(now.usage);
  out["usage_at_load"] = usage_object(now.usage_at_load);
  out["lone"] = lone_object(now.lone);
  out["moves_total"] = now.moves_total;
  out["pauses_total"] = now.pauses_total;
  out["prompt_cache"] = prompt_cache_object(now);
  out["requests_total"] = now.requests_total;
  out["prompt_tokens_total"] = now.prompt_tokens_total;
  out["reply_tokens_total"] = now.reply_tokens_total;
  out["drafts"] = drafts_object(now.drafts);
  return json_response(out);
}

HttpResponse Server::State::models() const {
  json::array list{model_object(services.model, services.model.name)};
  for (const std::string& alias : services.model.aliases) {
    list.push_back(model_object(services.model, alias));
  }
  json::object out;
  out["object"] = "list";
  out["data"] = std::move(list);
  return json_response(out);
}

Server::Server(std::unique_ptr<State> state) : state_(std::move(state)) {}

Server::~Server() {
  stop();
}

Result<std::unique_ptr<Server>> Server::start(ServerOptions options, Services services) {
  CHECK(services.engine != nullptr);
  auto state = std::make_unique<State>(std::move(options), std::move(services));
  const ServerOptions& chosen = state->options;
  HttpOptions http;
  http.host = chosen.host;
  http.port = chosen.port;
  http.max_connections = chosen.max_connections;
  http.max_body_bytes = chosen.max_body_bytes;
  http.read_timeout = chosen.read_timeout;
  http.idle_timeout = chosen.idle_timeout;
  http.write_timeout = chosen.write_timeout;
  http.stop_grace = chosen.stop_grace;
  ASSIGN_OR_RETURN(state->http, HttpServer::start(std::move(http),
                                                  [raw = state.get()](const HttpRequest& request,
                                                                      ResponseWriter& writer) {
                                                    raw->handle(request, writer);
                                                  }));
  return std::unique_ptr<Server>(new Server(std::move(state)));
}

int Server::port() const {
  return state_->http->port();
}

void Server::stop() {
  state_->http->stop();
  std::lock_guard lock(state_->mutex);
  state_->stopped = true;
  state_->changed.notify_all();
}

void Server::wait() {
  std::unique_lock lock(state_->mutex);
  state_->changed.wait(lock, [&] { return state_->stopped; });
}

}  // namespace flashlane::server
