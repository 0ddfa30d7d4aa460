// From the MODEL argument to a loaded model. Long steps say at a steady pace what they are doing
// and how far they are; a model that can't be served is refused before its weights are read.
#include "model/load.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <thread>

#include "base/process_memory.h"
#include "kernels/gpu.h"
#include "model/synth.h"

namespace flashlane::model {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kNano = "nano";
constexpr std::string_view kNanoFolder = "flash-next-nano-6bit";
constexpr std::string_view kSynth = "synth:";
constexpr int kMostThreads = 256;
constexpr size_t kConfigLimit = size_t{16} << 20;

std::string mib(size_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20));
}

// Prints lines at a steady pace from a thread of its own, because one step (a matrix to repack, a
// tensor to make) may take longer than that.
class ProgressTicker {
 public:
  explicit ProgressTicker(const LoadOptions& options)
      : print_(options.progress),
        every_(options.progress_every),
        start_(std::chrono::steady_clock::now()) {
    if (print_) thread_ = std::thread([this] { tick(); });
  }
  ~ProgressTicker() {
    {
      std::lock_guard lock(mutex_);
      stopped_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  ProgressTicker(const ProgressTicker&) = delete;
  ProgressTicker& operator=(const ProgressTicker&) = delete;

  void begin(const char* step, size_t total) {
    std::lock_guard lock(mutex_);
    step_ = step;
    done_ = 0;
    total_ = total;
  }
  void add_done(size_t bytes) { done_ += bytes; }
  double elapsed_s() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  void tick() {
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, every_, [&] { return stopped_; })) {
      std::string line = fmt::format("{}, {:.1f} s", step_, elapsed_s());
      if (total_ != 0) line += fmt::format(", {} of {} MiB", mib(done_), mib(total_));
      print_(line);
    }
  }

  const std::function<void(const std::string&)>& print_;
  const std::chrono::milliseconds every_;
  const std::chrono::steady_clock::time_point start_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  const char* step_ = "loading";
  std::atomic<size_t> done_{0};
  size_t total_ = 0;
  std::thread thread_;
};

// Beside the binary, in the source tree that holds build/<preset>/, and where it is installed.
std::vector<fs::path> nano_places(const fs::path& binary_folder) {
  const fs::path folder(kNanoFolder);
  return {binary_folder / "models" / folder,
          (binary_folder / ".." / ".." / "models" / folder).lexically_normal(),
          (binary_folder / ".." / "share" / "flashlane" / "models" / folder).lexically_normal()};
}

Result<ModelLocation> locate_nano() {
  std::error_code failure;
  const fs::path binary = fs::read_symlink("/proc/self/exe", failure);
  if (failure) {
    return error(ErrorCode::kIo,
                 "/proc/self/exe can't be read ({}), so the bundled model nano "
                 "can't be found: give its directory",
                 failure.message());
  }
  std::string places;
  for (const fs::path& place : nano_places(binary.parent_path())) {
    if (fs::is_regular_file(place / "config.json", failure)) {
      return ModelLocation{std::string(kNanoFolder), place.string(), {}};
    }
    places += (places.empty() ? "" : ", ") + place.string();
  }
  return error(ErrorCode::kNotFound, "the bundled model nano is at none of: {}", places);
}

int threads_of(const BackendOptions& options) {
  if (options.threads != 0) return options.threads;
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::clamp(cores, 1, kMostThreads);
}

Status check_threads(int threads) {
  if (threads < 0 || threads > kMostThreads) {
    return invalid("threads is {}, expected 1 to {}, or 0 for all cores", threads, kMostThreads);
  }
  return {};
}

Status check_limits(const ModelShape& shape, const LoadOptions& options) {
  if (options.max_rows < 1) return invalid("max_rows is {}, expected 1 or more", options.max_rows);
  if (options.context < 0 || options.context > shape.max_position) {
    return invalid("context is {}, but the model has {} positions", options.context,
                   shape.max_position);
  }
  return {};
}

Result<std::shared_ptr<const format::TensorSource>> open_source(const ModelLocation& location,
                                                                const ModelShape& shape,
                                                                int threads) {
  if (location.synth.empty()) {
    ASSIGN_OR_RETURN(std::unique_ptr<format::Checkpoint> checkpoint,
                     format::Checkpoint::open(location.directory));
    return std::shared_ptr<const format::TensorSource>(std::move(checkpoint));
  }
  ASSIGN_OR_RETURN(const SynthSpec spec, parse_synth(location.synth));
  return make_synthetic(spec, shape, threads);
}

Result<std::unique_ptr<Weights>> find_weights(const ModelLocation& location,
                                              const ModelShape& shape, int threads) {
  ASSIGN_OR_RETURN(std::shared_ptr<const format::TensorSource> source,
                   open_source(location, shape, threads));
  return load_weights(shape, std::move(source));
}

ModelMemory memory_of(Weights& weights, kernels::Ops& ops, int max_rows, int context) {
  const int positions = context == 0 ? weights.shape.max_position : context;
  return {.weights = weight_memory(weights, ops),
          .scratch_bytes = ops.reserved_bytes(ops_limits(weights.shape, max_rows, positions))};
}

Status check_room(const ModelLocation& location, const ModelMemory& memory,
                  const LoadOptions& options) {
  const size_t needed = memory.anonymous_bytes() + options.more_bytes;
  const std::optional<size_t> available = options.available_bytes.has_value()
                                              ? options.available_bytes
                                              : available_memory_of(options.backend);
  if (available.has_value() && needed > *available) {
    return error(ErrorCode::kNoCapacity,
                 "{}: it needs {} bytes, but only {} bytes of memory are available", location.name,
                 needed, *available);
  }
  const size_t tables = memory.weights.host_bytes();
  const std::optional<size_t> beside = available_memory();
  if (!beside.has_value() || tables <= *beside) return {};
  return error(ErrorCode::kNoCapacity,
               "{}: its tables need {} bytes beside the GPU, but only {} bytes of the machine's "
               "memory are available",
               location.name, tables, *beside);
}

}  // namespace

Result<ModelLocation> locate_model(const std::string& model) {
  if (model == kNano) return locate_nano();
  if (model.starts_with(kSynth)) {
    ModelLocation location{model, {}, model.substr(kSynth.size())};
    ASSIGN_OR_RETURN(const SynthSpec spec, parse_synth(location.synth));
    return location;
  }
  std::error_code failure;
  if (fs::is_directory(model, failure)) {
    const fs::path path = fs::absolute(model, failure).lexically_normal();
    const fs::path name = path.has_filename() ? path.filename() : path.parent_path().filename();
    return ModelLocation{name.string(), path.string(), {}};
  }
  const bool exists = fs::exists(model, failure);
  return error(exists ? ErrorCode::kInvalidArgument : ErrorCode::kNotFound,
               "model \"{}\" is {}: it may be a checkpoint directory, nano (the bundled model) or "
               "synth:SHAPE[,layers=N][,format=F][,ngram=stored][,seed=S]",
               model, exists ? "a file" : "no such directory");
}

Result<ModelShape> read_shape(const ModelLocation& location) {
  if (!location.synth.empty()) {
    ASSIGN_OR_RETURN(const SynthSpec spec, parse_synth(location.synth));
    return synthetic_shape(spec.shape, spec.layers);
  }
  const std::string path = (fs::path(location.directory) / "config.json").string();
  ASSIGN_OR_RETURN(const std::string config, format::read_text_file(path, kConfigLimit));
  Result<ModelShape> shape = parse_shape(config);
  if (!shape.ok()) {
    // The message begins with "config.json" already; the directory goes before it.
    const std::string place = (fs::path(location.directory) / "").string();
    return Error{shape.error().code, place + shape.error().message, shape.error().field};
  }
  return shape;
}

Result<std::unique_ptr<kernels::Ops>> make_ops(const BackendOptions& options) {
  RETURN_IF_ERROR(check_threads(options.threads));
  const int threads = threads_of(options);
  if (options.backend == "reference") {
    if (options.isa != "auto") {
      return invalid("isa is {}, but the reference backend has no instruction levels", options.isa);
    }
    return kernels::make_reference_ops();
  }
  if (options.backend == "auto" || options.backend == "cpu") {
    return kernels::make_cpu_ops(options.isa, threads);
  }
  if (options.backend == "cuda") {
    if (options.isa != "auto") {
      return invalid("isa is {}, but the cuda backend has none to choose from", options.isa);
    }
    return kernels::make_cuda_ops(threads);
  }
  return invalid("backend is \"{}\", expected auto, reference, cpu or cuda", options.backend);
}

std::optional<size_t> total_memory_of(const BackendOptions& options) {
  if (options.backend != "cuda") return total_memory();
  const auto gpu = kernels::first_gpu();
  return gpu ? std::optional(static_cast<size_t>(gpu->memory_bytes)) : std::nullopt;
}

std::optional<size_t> available_memory_of(const BackendOptions& options) {
  return options.backend == "cuda" ? kernels::free_gpu_memory() : available_memory();
}

Result<ModelMemory> model_memory(const ModelLocation& location, const BackendOptions& backend,
                                 int max_rows, int context) {
  ASSIGN_OR_RETURN(const ModelShape shape, read_shape(location));
  ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Ops> ops, make_ops(backend));
  ASSIGN_OR_RETURN(const std::unique_ptr<Weights> weights,
                   find_weights(location, shape, threads_of(backend)));
  return memory_of(*weights, *ops, max_rows, context);
}

Result<std::unique_ptr<Model>> load_model(const ModelLocation& location,
                                          const LoadOptions& options) {
  ASSIGN_OR_RETURN(const ModelShape shape, read_shape(location));
  RETURN_IF_ERROR(check_limits(shape, options));
  ASSIGN_OR_RETURN(std::unique_ptr<kernels::Ops> ops, make_ops(options.backend));
  ProgressTicker ticker(options);
  ticker.begin("finding and checking tensors", 0);
  ASSIGN_OR_RETURN(std::unique_ptr<Weights> weights,
                   find_weights(location, shape, threads_of(options.backend)));
  RETURN_IF_ERROR(
      check_room(location, memory_of(*weights, *ops, options.max_rows, options.context), options));
  const int context = options.context == 0 ? shape.max_position : options.context;
  RETURN_IF_ERROR(ops->reserve(ops_limits(shape, options.max_rows, context)));
  ticker.begin(location.synth.empty() ? "preparing weights" : "making synthetic weights",
               weights->stored_bytes + weights->ngram_bytes);
  RETURN_IF_ERROR(prepare_weights(*weights, *ops, [&](size_t bytes) {
    ticker.add_done(bytes);
    if (options.peak_bytes == nullptr) return;
    *options.peak_bytes = std::max(*options.peak_bytes, resident_memory().anonymous_bytes);
  }));
  return std::make_unique<Model>(std::move(weights), std::move(ops));
}

}  // namespace flashlane::model
