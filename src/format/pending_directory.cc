// The rename is the one moment at which the directory appears, and it never replaces anything.
#include "format/pending_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

namespace flashlane::format {
namespace {

namespace fs = std::filesystem;

std::string system_message(int code) {
  return std::generic_category().message(code);
}

Error taken(const std::string& target) {
  return invalid("{} exists already: nothing is overwritten, so name a new directory", target);
}

Status flush(const std::string& path, int flags) {
  const int descriptor = ::open(path.c_str(), flags | O_CLOEXEC);
  if (descriptor < 0) return error(ErrorCode::kIo, "{}: {}", path, system_message(errno));
  const int failure = ::fsync(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  if (failure != 0) return error(ErrorCode::kIo, "{}: {}", path, system_message(failure));
  return {};
}

Status flush_all(const std::string& directory) {
  std::error_code code;
  for (fs::directory_iterator entry(directory, code), end; !code && entry != end;
       entry.increment(code)) {
    RETURN_IF_ERROR(flush(entry->path().string(), O_RDONLY));
  }
  if (code) return error(ErrorCode::kIo, "{}: {}", directory, code.message());
  return flush(directory, O_RDONLY | O_DIRECTORY);
}

// Renames without replacing. File systems that can't do both in one step get a check before it.
int rename_to_new(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return 0;
  if (errno != EINVAL && errno != ENOSYS) return errno;
  struct stat status = {};
  if (::lstat(to.c_str(), &status) == 0) return EEXIST;
  return ::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

}  // namespace

Result<std::unique_ptr<PendingDirectory>> PendingDirectory::create(const std::string& target,
                                                                   size_t bytes) {
  std::error_code code;
  fs::path whole = fs::absolute(target, code).lexically_normal();
  if (target.empty() || code) return invalid("\"{}\" names no directory", target);
  if (!whole.has_filename()) whole = whole.parent_path();
  struct stat status = {};
  if (::lstat(whole.c_str(), &status) == 0) return taken(whole.string());
  const fs::path parent = whole.parent_path();
  if (!fs::is_directory(parent, code)) {
    return error(ErrorCode::kNotFound, "{}: no such directory to make {} in", parent.string(),
                 whole.filename().string());
  }
  const fs::space_info space = fs::space(parent, code);
  if (!code && space.available < bytes) {
    return error(ErrorCode::kNoCapacity, "{} takes {} bytes, its file system has {} left",
                 whole.string(), bytes, space.available);
  }
  std::unique_ptr<PendingDirectory> out(new PendingDirectory());
  out->target_ = whole.string();
  constexpr int kMostTries = 100;
  for (int i = 0; i < kMostTries && out->path_.empty(); ++i) {
    const fs::path path =
        parent / fmt::format(".{}.partial-{}-{}", whole.filename().string(), ::getpid(), i);
    if (::mkdir(path.c_str(), 0777) == 0) {
      out->path_ = path.string();
    } else if (errno != EEXIST) {
      return error(ErrorCode::kIo, "{}: {}", path.string(), system_message(errno));
    }
  }
  if (out->path_.empty()) {
    return error(ErrorCode::kIo, "{}: {} unfinished directories like .{}.partial-{}-0 are there",
                 parent.string(), kMostTries, whole.filename().string(), ::getpid());
  }
  return out;
}

PendingDirectory::~PendingDirectory() {
  if (path_.empty()) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

Status PendingDirectory::write(const std::string& name, const std::string& text) const {
  struct Close {
    void operator()(std::FILE* stream) const noexcept { std::fclose(stream); }
  };
  const std::string place = file(name);
  std::unique_ptr<std::FILE, Close> stream(std::fopen(place.c_str(), "wbe"));
  const bool written =
      stream && std::fwrite(text.data(), 1, text.size(), stream.get()) == text.size();
  // fclose writes what is buffered, so its verdict counts too.
  if (!written || std::fclose(stream.release()) != 0) {
    return error(ErrorCode::kIo, "{}: can't write: {}", place, system_message(errno));
  }
  return {};
}

Status PendingDirectory::publish() {
  CHECK(!path_.empty());
  RETURN_IF_ERROR(flush_all(path_));
  const int failure = rename_to_new(path_, target_);
  if (failure == EEXIST) return taken(target_);
  if (failure != 0) {
    return error(ErrorCode::kIo, "{}: can't take this name: {}", target_, system_message(failure));
  }
  path_.clear();
  // What is in it is stored; this stores its name as well. Too late to fail, so no verdict.
  [[maybe_unused]] const Status stored =
      flush(fs::path(target_).parent_path().string(), O_RDONLY | O_DIRECTORY);
  return {};
}

}  // namespace flashlane::format
