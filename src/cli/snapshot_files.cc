// A state is its own only with the same program, weights, arithmetic and layout: all of that goes
// into the key. Weights are known by their files' sizes, times and first MiB, which hold the names,
// places and types of all tensors; reading all of them would take as long as loading.
#include "cli/snapshot_files.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <limits>
#include <vector>

#include "base/sha256.h"
#include "kernels/gpu.h"
#include "memory/state_packer.h"

namespace flashlane::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kDefaultGib = 8;
constexpr double kMostGib = 1 << 20;
constexpr size_t kHead = size_t{1} << 20;

// The SHA-256 of a file's first bytes.
Result<std::string> file_sha(const std::string& path, size_t most) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return error(ErrorCode::kIo, "{}: can't be read", path);
  Sha256 hash;
  std::vector<char> part(size_t{1} << 16);
  for (size_t left = most; left > 0 && file;) {
    file.read(part.data(), static_cast<std::streamsize>(std::min(part.size(), left)));
    const auto got = static_cast<size_t>(file.gcount());
    hash.add(std::as_bytes(std::span(part).first(got)));
    left -= got;
  }
  return hash.hex();
}

Result<std::string> model_identity(const model::ModelLocation& location) {
  if (location.directory.empty()) return "synth:" + location.synth;
  std::vector<std::string> paths;
  std::error_code code;
  for (fs::directory_iterator at(location.directory, code), end; !code && at != end;
       at.increment(code)) {
    const std::string extension = at->path().extension().string();
    if (extension == ".safetensors" || at->path().filename() == "config.json") {
      paths.push_back(at->path().string());
    }
  }
  if (code) return error(ErrorCode::kIo, "{}: {}", location.directory, code.message());
  std::sort(paths.begin(), paths.end());
  std::string identity;
  for (const std::string& path : paths) {
    struct stat status = {};
    if (::stat(path.c_str(), &status) != 0) return error(ErrorCode::kIo, "{}: is gone", path);
    ASSIGN_OR_RETURN(const std::string head, file_sha(path, kHead));
    identity += fmt::format("{} {} {}.{} {}\n", fs::path(path).filename().string(), status.st_size,
                            status.st_mtim.tv_sec, status.st_mtim.tv_nsec, head);
  }
  return identity;
}

Result<std::string> state_key(const ModelOutline& outline, const runner::RunnerOptions& runner,
                              const runner::Storage& storage) {
  ASSIGN_OR_RETURN(const std::string program,
                   file_sha("/proc/self/exe", std::numeric_limits<size_t>::max()));
  ASSIGN_OR_RETURN(const std::string model, model_identity(outline.location));
  const kernels::BackendInfo& backend = outline.backend;
  const auto gpu = backend.name == "cuda" ? kernels::first_gpu() : std::nullopt;
  return sha256_hex(
      fmt::format("{}\n{}\n{} {} {} kv {}\npages {} {} map {:016x} head {}\n", program, model,
                  backend.name, gpu ? gpu->name + " " + backend.isa : backend.isa,
                  backend.activations, runner.kv_dtype == DType::kF32 ? "f32" : "bf16",
                  storage.pool.page_rows(), storage.pool.page_bytes(),
                  memory::packing_hash(storage.pool.packing()), runner.max_draft > 0));
}

}  // namespace

void add_snapshot_options(OptionTable& table, SnapshotOptions& options) {
  table.number("spill-gib", options.spill_gib, 0, kMostGib,
               "most GiB of files for kept states of prompts: each is written soon after it was "
               "kept, so that those that memory has no room for any more are read back when a "
               "prompt begins like them; those written or read longest ago go first; default "
               "8 with --snapshot-dir, else 0 = no files");
  table.text("snapshot-dir", options.directory, {},
             "directory of those files, where they outlive the server and the next one goes on "
             "from them; default: one in the temporary folder, which should not be kept in memory; "
             "it goes with the server");
}

Result<std::shared_ptr<runner::Snapshots>> open_snapshots(const SnapshotOptions& options,
                                                          const ModelOutline& outline,
                                                          const runner::RunnerOptions& runner) {
  const double gib = options.spill_gib.value_or(options.directory ? kDefaultGib : 0);
  if (options.directory && gib == 0) {
    return invalid("--snapshot-dir {} has no meaning with --spill-gib 0", *options.directory);
  }
  if (gib == 0) return std::shared_ptr<runner::Snapshots>();
  if (runner.kept_pages == 0) {
    return invalid("--{}: no states of prompts are kept (--prompt-cache-gib)",
                   options.directory ? "snapshot-dir " + *options.directory
                                     : fmt::format("spill-gib {}", gib));
  }
  ASSIGN_OR_RETURN(const runner::Storage storage, runner::sequence_storage(outline.shape, runner));
  ASSIGN_OR_RETURN(std::string key, state_key(outline, runner, storage));
  const auto bytes = static_cast<size_t>(std::min(gib * kGib, 0x1p62));
  std::error_code code;
  const std::string temporary = fs::temp_directory_path(code).string();
  if (code && !options.directory) {
    return error(ErrorCode::kIo, "--spill-gib: no temporary folder: {}", code.message());
  }
  const size_t page_bytes = storage.pool.page_bytes();
  auto snapshots =
      options.directory
          ? runner::Snapshots::open(*options.directory, std::move(key), page_bytes, bytes)
          : runner::Snapshots::open_own(temporary, key, page_bytes, bytes);
  if (!snapshots.ok()) {
    return Error{snapshots.error().code,
                 fmt::format("--{}: {}", options.directory ? "snapshot-dir" : "spill-gib",
                             snapshots.error().message)};
  }
  return std::shared_ptr<runner::Snapshots>(std::move(snapshots).value());
}

}  // namespace flashlane::cli
