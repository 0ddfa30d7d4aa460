// `flashlane serve`: loads the model, starts engine and server, waits for a signal, stops cleanly.
// Everything that can be refused is refused before the model loads.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <utility>

#include "cli/command.h"
#include "cli/serving.h"
#include "cli/signals.h"
#include "cli/snapshot_files.h"
#include "scheduler/step_share.h"
#include "server/log.h"
#include "server/server.h"
#include "text/chat_template.h"

namespace flashlane::cli {

namespace {

constexpr int64_t kMostPort = 65535;
constexpr int64_t kMostPositions = int64_t{1} << 30;

struct ServeOptions {
  ModelOptions model;
  ServingOptions sizes;
  std::optional<std::string> host;
  std::optional<int64_t> port;
  std::optional<uint64_t> seed_salt;
  std::optional<double> decode_share;
  bool no_drafts = false;
  std::optional<int64_t> thinking_budget;
  bool repetition_guard = false;
  bool serial_drafts = false;
  bool unpriced = false;
  bool lone_unpriced = false;
  LoneOptions lone;
  SnapshotOptions snapshots;
};

struct Serving {
  ModelTexts texts;
  std::unique_ptr<text::ChatTemplate> chat_template;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<engine::Engine> engine;
};

Result<Serving> load_serving(const ServeOptions& options, const ModelOutline& outline,
                             const MemoryPlan& plan, const ServingSizes& sizes) {
  Serving serving;
  ASSIGN_OR_RETURN(serving.texts, read_texts(outline.location));
  if (serving.texts.chat_template.has_value()) {
    ASSIGN_OR_RETURN(serving.chat_template,
                     text::ChatTemplate::parse(*serving.texts.chat_template));
  }
  ASSIGN_OR_RETURN(serving.model, load_model(outline, plan, options.model, sizes.runner));
  auto bytes = serving.texts.tokenizer == nullptr ? nullptr : reply_bytes(*serving.texts.tokenizer);
  ASSIGN_OR_RETURN(serving.engine, make_engine(*serving.model, sizes, std::move(bytes)));
  return serving;
}

server::Services services_of(const Serving& serving, const ServeOptions& options,
                             const ModelOutline& outline, const runner::RunnerOptions& runner) {
  server::Services services;
  services.engine = serving.engine.get();
  services.tokenizer = serving.texts.tokenizer.get();
  services.chat_template = serving.chat_template.get();
  services.generation = serving.texts.generation;
  services.generation.eos_ids = end_ids(serving.texts, outline.shape);
  services.model.name = outline.location.name;
  if (options.model.model_name() == "nano") services.model.aliases.emplace_back("nano");
  services.model.context = runner.context;
  services.model.vocabulary = outline.shape.vocabulary;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  services.model.created = std::chrono::duration_cast<std::chrono::seconds>(now).count();
  services.keeps_prompts = runner.kept_pages > 0;
  services.seed_salt = options.seed_salt.value_or(0);
  return services;
}

void print_start(const ModelOutline& outline, const MemoryPlan& plan, const ServingSizes& sizes,
                 const OptionTable& table) {
  const runner::RunnerOptions& runner = sizes.runner;
  const kernels::BackendInfo& backend = outline.backend;
  fmt::print(stderr,
             "{} on {} ({}, {} activations, {} threads), {} sequence(s) at once, "
             "drafts {}, {}\n",
             outline.location.name, backend.name, backend.isa, backend.activations, backend.threads,
             runner.slots, runner.max_draft > 0 ? "from the MTP head" : "off",
             sizes.lone.on ? fmt::format("a reply alone is driven with {} step(s) under way",
                                         sizes.lone.steps_in_flight)
                           : "no lone driver");
  for (const std::string& line : table.given()) fmt::print(stderr, "  set: {}\n", line);
  fmt::print(stderr, "{}{}", memory_table(plan, runner),
             pool_report(outline, runner, sizes.sessions));
}

Result<Exit> run_serve(const ServeOptions& options, const OptionTable& table) {
  install_signals(static_cast<int>(Exit::kOk));
  ASSIGN_OR_RETURN(const ModelOutline outline, outline_model(options.model));
  ASSIGN_OR_RETURN(ServingSizes sizes, serving_sizes(options.sizes, outline));
  if (options.no_drafts) sizes.runner.max_draft = 0;
  sizes.prompt_lookup = !options.no_drafts;
  sizes.runner.serial_drafts = options.serial_drafts;
  ASSIGN_OR_RETURN(sizes.lone, lone_sizes(options.lone));
  sizes.pricing.calibrate = !options.unpriced && !options.no_drafts;
  sizes.pricing.lone_priced = !options.lone_unpriced;
  sizes.pricing.report = [](const std::string& line) { fmt::print(stderr, "{}\n", line); };
  RETURN_IF_ERROR(fit_pool(options.sizes.pool, outline, options.model, sizes.runner));
  ASSIGN_OR_RETURN(sizes.sessions, session_rows(options.sizes.pool, sizes.runner.context));
  sizes.session_grow =
      static_cast<int>(options.sizes.pool.session_grow.value_or(kDefaultSessionGrow));
  sizes.report = [](const std::string& line) { server::log("{}", line); };
  sizes.decode_share = options.decode_share.value_or(sizes.decode_share);
  ASSIGN_OR_RETURN(const MemoryPlan plan, plan_memory(outline, sizes.runner));
  ASSIGN_OR_RETURN(sizes.snapshots, open_snapshots(options.snapshots, outline, sizes.runner));
  print_start(outline, plan, sizes, table);
  ASSIGN_OR_RETURN(const Serving serving, load_serving(options, outline, plan, sizes));
  fmt::print(stderr, "{}", measured_memory(plan));
  server::ServerOptions http;
  http.host = options.host.value_or(http.host);
  http.port = static_cast<int>(options.port.value_or(http.port));
  http.thinking_budget = static_cast<int>(options.thinking_budget.value_or(0));
  http.repetition_guard = options.repetition_guard;
  auto started = server::Server::start(http, services_of(serving, options, outline, sizes.runner));
  if (!started.ok()) {
    // A port that is taken is no fault of the command line.
    print_error(started.error().message);
    return Exit::kFailed;
  }
  hold_signals();
  const bool bare_ipv6 = http.host.find(':') != std::string::npos && !http.host.starts_with('[');
  const std::string host = bare_ipv6 ? "[" + http.host + "]" : http.host;
  fmt::print("listening on http://{}:{}\n", host, (*started)->port());
  std::fflush(stdout);
  wait_for_stop();
  (*started)->stop();
  (*started)->wait();
  serving.engine->stop();
  return Exit::kOk;
}

}  // namespace

Command serve_command(CLI::App& root) {
  Command command = make_command(
      root, "serve", "Serve a model over HTTP (OpenAI's chat completions and completions).",
      "  flashlane serve\n"
      "  flashlane serve DIR --host 0.0.0.0 --port 8000 --context 16384\n"
      "  FLASHLANE_THREADS=2 flashlane serve --config serve.toml --port 0\n"
      "\nOptions and memory plan go to stderr; when ready, one line `listening on\n"
      "http://HOST:PORT` goes to stdout. SIGTERM or SIGINT stops it: exit code 0. A port in use\n"
      "is exit code 1.\n");
  auto options = std::make_shared<ServeOptions>();
  OptionTable& table = *command.table;
  add_model_options(table, options->model);
  table.positional("model", "MODEL");
  table.text("host", options->host, {}, "address to listen on; default 127.0.0.1");
  table.integer("port", options->port, 0, kMostPort, "port; default 8080; 0 = any free one");
  add_serving_sizes(table, options->sizes);
  table.number("decode-share", options->decode_share, 0, scheduler::StepShare::kMostShare,
               "part of the time that running replies keep while prompts go in; default 0.5");
  table.flag("no-drafts", options->no_drafts, "decode one token a step, without the MTP head");
  table.integer("thinking-budget", options->thinking_budget, 0, kMostPositions,
                "tokens after which a reply's thinking is closed, for requests that bring no "
                "thinking_budget; default 0 = no limit");
  table.flag("repetition-guard", options->repetition_guard,
             "close thinking that repeats 1 to 8 tokens for 256 tokens");
  table.flag("serial-drafts", options->serial_drafts,
             "make each reply's drafts on their own, not all in one pass", Reach::kEverywhere,
             {"FZ_BATCH_MTP_SERIAL"});
  table.flag("unpriced", options->unpriced,
             "don't measure steps at load; drafts go by how often they stand", Reach::kEverywhere,
             {"FZ_BATCH_UNPRICED"});
  table.flag("lone-unpriced", options->lone_unpriced, "the same for a reply that runs alone",
             Reach::kEverywhere, {"FZ_LONE_UNPRICED"});
  add_lone_options(table, options->lone);
  add_snapshot_options(table, options->snapshots);
  table.unsigned_integer("seed-salt", options->seed_salt,
                         "mixed into the seeds of requests that bring none; default 0");
  command.run = [options, &table] { return run_serve(*options, table); };
  return command;
}

}  // namespace flashlane::cli
