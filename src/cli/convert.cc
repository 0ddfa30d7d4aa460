// `flashlane convert`: a checkpoint rewritten in another weight format, whole or not at all.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "cli/command.h"
#include "cli/json_line.h"
#include "cli/options.h"
#include "cli/signals.h"
#include "format/checkpoint_writer.h"
#include "model/convert.h"

namespace flashlane::cli {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kMib = int64_t{1} << 20;
constexpr int64_t kMostThreads = 256;
constexpr int64_t kDefaultShardMib = 5120;
constexpr size_t kConfigRoom = size_t{1} << 20;  // for config.json and an index

struct ConvertOptions {
  ModelOptions model;
  std::optional<std::string> format;
  std::optional<std::string> output;
  std::optional<int64_t> shard_mib;
  bool json = false;

  int threads() const {
    const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
    const int64_t wanted = model.threads.value_or(0);
    return static_cast<int>(std::clamp<int64_t>(wanted == 0 ? cores : wanted, 1, kMostThreads));
  }
  size_t shard_bytes() const {
    return static_cast<size_t>(shard_mib.value_or(kDefaultShardMib) * kMib);
  }
};

// Counts the bytes written, says how far they are once two seconds have passed, at most once a
// second, and turns a signal into an error.
class Progress {
 public:
  explicit Progress(size_t total) : total_(total) {}

  Status add(size_t bytes) {
    if (stop_requested()) return error(ErrorCode::kCancelled, "interrupted: nothing is written");
    done_ += bytes;
    const auto now = Clock::now();
    if (now < next_) return {};
    next_ = now + std::chrono::seconds(1);
    fmt::print(stderr, "converting: {} of {} MiB\n", done_ >> 20, total_ >> 20);
    return {};
  }
  // Before a step that counts no bytes.
  void say(std::string_view step) {
    if (Clock::now() >= start_ + std::chrono::seconds(2)) {
      fmt::print(stderr, "converting: {}\n", step);
    }
  }
  double elapsed_s() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  const size_t total_;
  size_t done_ = 0;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point next_ = start_ + std::chrono::seconds(2);
};

// What is converted: everything about the source that is known before anything is written.
struct Source {
  model::ModelLocation location;
  std::string config_json;
  std::string metadata_format;
  format::CompanionFiles companions;
  std::unique_ptr<model::Weights> weights;
};

Result<std::unique_ptr<model::Weights>> load_weights(const model::ModelLocation& location,
                                                     std::string* metadata_format) {
  ASSIGN_OR_RETURN(const model::ModelShape shape, model::read_shape(location));
  ASSIGN_OR_RETURN(std::unique_ptr<format::Checkpoint> checkpoint,
                   format::Checkpoint::open(location.directory));
  *metadata_format = checkpoint->metadata_format();
  return model::load_weights(shape, std::move(checkpoint));
}

Result<Source> open_source(const ModelOptions& options) {
  Source source;
  ASSIGN_OR_RETURN(source.location, model::locate_model(options.model_name()));
  if (!source.location.synth.empty()) {
    return invalid(
        "model {} is made in memory and has no files to convert; synth: takes format=F itself",
        source.location.name);
  }
  const std::string& directory = source.location.directory;
  ASSIGN_OR_RETURN(format::CheckpointTexts texts, format::read_checkpoint_texts(directory));
  source.config_json = std::move(texts.config_json);
  ASSIGN_OR_RETURN(source.companions, format::list_companions(directory));
  ASSIGN_OR_RETURN(source.weights, load_weights(source.location, &source.metadata_format));
  return source;
}

struct Outcome {
  std::string directory;
  std::vector<std::string> files;
  size_t bytes = 0;
  model::ConversionLoss loss;
  double elapsed_s = 0;
};

// Writes everything, reads it back as loading would, and only then gives it its name.
Result<Outcome> write_checkpoint(const Source& source, const model::Conversion& conversion,
                                 const ConvertOptions& options) {
  const size_t total = conversion.bytes + source.companions.bytes;
  ASSIGN_OR_RETURN(const auto directory,
                   format::PendingDirectory::create(*options.output, total + kConfigRoom));
  Progress progress(total);
  std::vector<format::TensorUnit> units;
  for (const model::ConversionUnit& unit : conversion.units) units.push_back(unit.tensors);
  format::CheckpointWriter writer(*directory, std::move(units), options.shard_bytes(),
                                  source.metadata_format);
  Outcome outcome;
  for (size_t i = 0; i < conversion.units.size(); ++i) {
    const auto sink = [&](size_t tensor, std::span<const std::byte> bytes) -> Status {
      RETURN_IF_ERROR(progress.add(bytes.size()));
      return writer.append(i, tensor, bytes);
    };
    RETURN_IF_ERROR(
        model::convert_unit(conversion.units[i], options.threads(), sink, outcome.loss));
  }
  RETURN_IF_ERROR(writer.finish());
  ASSIGN_OR_RETURN(const std::string config,
                   model::converted_config(source.config_json, conversion));
  RETURN_IF_ERROR(directory->write("config.json", config));
  for (const std::string& name : source.companions.files) {
    RETURN_IF_ERROR(format::copy_file(source.location.directory + "/" + name, *directory,
                                      [&](size_t bytes) { return progress.add(bytes); }));
  }
  std::string unused;
  const auto back = load_weights({"converted", directory->path(), {}}, &unused);
  if (!back.ok()) {
    return error(ErrorCode::kInternal, "what was written does not read back: {}",
                 back.error().message);
  }
  RETURN_IF_ERROR(progress.add(0));
  progress.say("waiting for the disk");
  RETURN_IF_ERROR(directory->publish());
  outcome.directory = directory->target();
  outcome.files = writer.files();
  outcome.bytes = conversion.bytes;
  outcome.elapsed_s = progress.elapsed_s();
  return outcome;
}

std::string outcome_json(const Source& source, const model::Conversion& conversion,
                         const Outcome& outcome) {
  JsonLine json;
  const auto list = [&](std::string_view key, const std::vector<std::string>& names) {
    json.key(key).begin_array();
    for (const std::string& name : names) json.text(name);
    json.end_array();
  };
  json.begin_object().key("model").text(source.location.name);
  json.key("source").text(source.location.directory);
  json.key("source_format").text(source.weights->format);
  json.key("directory").text(outcome.directory);
  json.key("format").text(conversion.format.name());
  json.key("bytes").unsigned_integer(outcome.bytes);
  json.key("matrices").begin_object();
  json.key("kept").integer(conversion.matrices_kept);
  json.key("converted").integer(conversion.matrices_converted).end_object();
  json.key("relative_error").number(outcome.loss.relative());
  list("weight_files", outcome.files);
  list("copied_files", source.companions.files);
  list("left_out", source.companions.others);
  json.key("seconds").number(outcome.elapsed_s).end_object();
  return json.str();
}

void print_outcome(const Source& source, const model::Conversion& conversion,
                   const Outcome& outcome) {
  fmt::print("{}: {} of {} matrices converted from {} to {}, {} kept bit by bit\n",
             outcome.directory, conversion.matrices_converted,
             conversion.matrices_converted + conversion.matrices_kept, source.weights->format,
             conversion.format.name(), conversion.matrices_kept);
  fmt::print(
      "{} bytes of tensors in {} file(s); converted values moved by {:.3g} % (root of mean "
      "squares)\n",
      outcome.bytes, outcome.files.size(), 100 * outcome.loss.relative());
  for (const std::string& name : source.companions.others) {
    fmt::print("not copied, as it is no file: {}\n", name);
  }
}

Result<Exit> run_convert(const ConvertOptions& options) {
  if (!options.format.has_value()) return invalid("--format is missing; for example q4g32 or bf16");
  if (!options.output.has_value()) return invalid("--output is missing: the directory to make");
  ASSIGN_OR_RETURN(const model::WeightFormat format, model::parse_weight_format(*options.format));
  install_signals(static_cast<int>(Exit::kInterrupted));
  ASSIGN_OR_RETURN(const Source source, open_source(options.model));
  ASSIGN_OR_RETURN(const model::Conversion conversion,
                   model::plan_conversion(*source.weights, format));
  hold_signals();
  ASSIGN_OR_RETURN(const Outcome outcome, write_checkpoint(source, conversion, options));
  if (options.json) {
    fmt::print("{}\n", outcome_json(source, conversion, outcome));
  } else {
    print_outcome(source, conversion, outcome);
  }
  return Exit::kOk;
}

}  // namespace

Command convert_command(CLI::App& root) {
  Command command = make_command(
      root, "convert", "Write a checkpoint in another weight format.",
      "  flashlane convert nano --format q4g32 --output nano-q4g32\n"
      "  flashlane convert DIR --format bf16 --output DIR-bf16 --json\n"
      "\nFormats: bf16, f16, f32, and MLX affine q<bits>g<group> with 2, 3, 4, 5, 6 or 8 bits in\n"
      "groups of 32, 64 or 128; a width that the group does not divide takes the largest that\n"
      "does. Quantised are all matrices but the router; norms, convolutions and other vectors\n"
      "stay as they are (in bf16, f16 and f32 they take that type too). Names and the norm\n"
      "convention stay. Other files are copied; folders in the checkpoint are not.\n"
      "\nWhat is lost: f32 keeps every value of any source; bf16 and f16 round it once. "
      "Quantising\n"
      "moves it much more (the bundled model by about 8 % at q4g32, 0.7 % at q8g64), and what was\n"
      "lost before does not come back: quantising again adds its error to the one that is there,\n"
      "so convert from the source with the most bits. A matrix that has the wanted bits and group\n"
      "already keeps its codes bit by bit. The result says how far values moved.\n"
      "\nThe directory appears whole or not at all; one that exists is never touched.\n");
  auto options = std::make_shared<ConvertOptions>();
  OptionTable& table = *command.table;
  add_model_name(table, options->model);
  table.positional("model", "MODEL");
  table.text("format", options->format, {}, "weight format to write, as below", Reach::kFlagOnly);
  table.text("output", options->output, {}, "directory to make; must not exist", Reach::kFlagOnly);
  table.integer("shard-mib", options->shard_mib, 1, kMib,
                "most MiB of tensors in a weight file, unless one matrix takes more; default 5120",
                Reach::kFlagOnly);
  table.integer("threads", options->model.threads, 0, kMostThreads,
                "threads that compute; 0 (default) = all cores; changes no byte");
  add_json(table, options->json,
           "one JSON object: directory, format, bytes, matrices, relative_error, files");
  command.run = [options] { return run_convert(*options); };
  return command;
}

}  // namespace flashlane::cli
