// Sizes are checked against the file's before anything is read by them. The hash finds what a power
// failure may have left, so nothing is flushed.
#include "runner/snapshots.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "base/int_math.h"
#include "base/sha256.h"

namespace flashlane::runner {
namespace {

namespace fs = std::filesystem;

static_assert(std::endian::native == std::endian::little);

constexpr std::string_view kMagic = "FLSTATE1";
constexpr size_t kHashChars = 64;
constexpr const char* kSuffix = ".state";
constexpr const char* kUnfinished = ".unfinished";
// Whole pages are handed over together up to so many bytes, so that whoever copies them between
// steps is asked rarely and never for long.
constexpr size_t kBatchBytes = size_t{8} << 20;
constexpr int kMostOwn = 64;  // directories of one user's processes

struct Header {
  std::array<char, 8> magic;
  uint64_t tokens;
  uint64_t pages;
  uint64_t page_bytes;
  std::array<char, kHashChars> key;
};
static_assert(sizeof(Header) == 32 + kHashChars);

std::string failed(const std::string& path) {
  return fmt::format("{}: {}", path, std::generic_category().message(errno));
}

Error damaged(const std::string& path, std::string_view how) {
  return invalid("{} is no whole snapshot: {}", path, how);
}

}  // namespace

class Snapshots::File {
 public:
  File(std::string path, int flags) : path_(std::move(path)) {
    // Not to wait for whoever might write into a pipe of this name.
    descriptor_ = ::open(path_.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
  }
  ~File() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }

  Status write(std::span<const std::byte> bytes, Sha256* hash = nullptr) const {
    if (hash != nullptr) hash->add(bytes);
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return error(ErrorCode::kIo, "{}", failed(path_));
      bytes = bytes.subspan(static_cast<size_t>(written));
    }
    return {};
  }

  Status read(std::span<std::byte> bytes, Sha256* hash = nullptr) const {
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t got = ::read(descriptor_, bytes.data() + done, bytes.size() - done);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return error(ErrorCode::kIo, "{}", failed(path_));
      if (got == 0) return damaged(path_, "it ends too early");
      done += static_cast<size_t>(got);
    }
    if (hash != nullptr) hash->add(bytes);
    return {};
  }

 private:
  std::string path_;
  int descriptor_;
};

Snapshots::Snapshots(std::string directory, std::string key, size_t page_bytes, size_t limit_bytes,
                     std::unique_ptr<File> lock)
    : directory_(std::move(directory)),
      key_(std::move(key)),
      page_bytes_(page_bytes),
      limit_bytes_(limit_bytes),
      lock_(std::move(lock)) {}

Snapshots::~Snapshots() {
  if (!own_) return;
  clear();
  ::unlink((directory_ + "/.lock").c_str());
  ::rmdir(directory_.c_str());
}

Result<std::unique_ptr<Snapshots>> Snapshots::open(std::string directory, std::string key,
                                                   size_t page_bytes, size_t limit_bytes) {
  CHECK_EQ(key.size(), kHashChars);
  CHECK_GE(page_bytes, size_t{1});
  if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
    return error(ErrorCode::kIo, "{}", failed(directory));
  }
  auto lock = std::make_unique<File>(directory + "/.lock", O_RDWR | O_CREAT);
  if (!lock->is_open()) return error(ErrorCode::kIo, "{}", failed(directory + "/.lock"));
  if (::flock(lock->descriptor(), LOCK_EX | LOCK_NB) != 0) {
    return error(ErrorCode::kNoCapacity, "{} is in use by another process", directory);
  }
  // Whoever had it may have removed it meanwhile, and then the lock keeps nobody out.
  struct stat locked = {};
  struct stat named = {};
  if (::fstat(lock->descriptor(), &locked) != 0 ||
      ::stat((directory + "/.lock").c_str(), &named) != 0 || locked.st_ino != named.st_ino) {
    return error(ErrorCode::kNoCapacity, "{} is being removed by another process", directory);
  }
  std::error_code code;
  for (fs::directory_iterator at(directory, code), end; !code && at != end; at.increment(code)) {
    std::error_code ignored;
    if (at->path().extension() == kUnfinished) fs::remove(at->path(), ignored);
  }
  if (code) return error(ErrorCode::kIo, "{}: {}", directory, code.message());
  return std::unique_ptr<Snapshots>(new Snapshots(std::move(directory), std::move(key), page_bytes,
                                                  limit_bytes, std::move(lock)));
}

// Somebody else might have made a directory of that name to read what is put into it.
Result<std::unique_ptr<Snapshots>> Snapshots::open_own(const std::string& beneath,
                                                       const std::string& key, size_t page_bytes,
                                                       size_t limit_bytes) {
  for (int i = 0; i < kMostOwn; ++i) {
    const std::string directory = fmt::format("{}/flashlane-spill-{}-{}", beneath, ::geteuid(), i);
    if (::mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST) {
      return error(ErrorCode::kIo, "{}", failed(directory));
    }
    struct stat status = {};
    if (::lstat(directory.c_str(), &status) != 0 || !S_ISDIR(status.st_mode) ||
        status.st_uid != ::geteuid() || (status.st_mode & 077) != 0) {
      continue;
    }
    auto opened = open(directory, key, page_bytes, limit_bytes);
    if (!opened.ok() && opened.error().code == ErrorCode::kNoCapacity) continue;
    if (opened.ok()) {
      opened.value()->own_ = true;
      opened.value()->clear();
    }
    return opened;
  }
  return error(ErrorCode::kNoCapacity, "{}/flashlane-spill-{}-0 to {} are all taken", beneath,
               ::geteuid(), kMostOwn - 1);
}

void Snapshots::clear() const noexcept {
  std::error_code code;
  for (fs::directory_iterator at(directory_, code), end; !code && at != end; at.increment(code)) {
    std::error_code ignored;
    if (at->path().extension() == kSuffix) fs::remove(at->path(), ignored);
  }
}

bool Snapshots::ByTokens::operator()(std::span<const int32_t> a, std::span<const int32_t> b) const {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}

void Snapshots::know(std::span<const int32_t> tokens, Known known) {
  std::lock_guard lock(mutex_);
  known_.insert_or_assign({tokens.begin(), tokens.end()}, std::move(known));
}

void Snapshots::forget(const std::string& path) noexcept {
  std::lock_guard lock(mutex_);
  std::erase_if(known_, [&](const auto& item) { return item.second.path == path; });
}

// A beginning stands before all that extend it, so the last one up to the tokens is the longest
// beginning of them, or it parts from them somewhere, and so do all between; then only what they
// share is left to look for.
std::optional<Snapshots::Entry> Snapshots::find(std::span<const int32_t> tokens) const {
  std::lock_guard lock(mutex_);
  for (;;) {
    const auto after = known_.upper_bound(tokens);
    if (after == known_.begin()) return std::nullopt;
    const auto& [at, known] = *std::prev(after);
    const auto parts = std::mismatch(at.begin(), at.end(), tokens.begin(), tokens.end());
    if (parts.first == at.end())
      return Entry{.path = known.path, .tokens = at, .pages = known.pages};
    tokens = tokens.first(static_cast<size_t>(parts.second - tokens.begin()));
  }
}

std::vector<std::byte> Snapshots::batch(int pages) const {
  const size_t most = std::max(kBatchBytes / page_bytes_, size_t{1});
  return std::vector<std::byte>(std::min(most, static_cast<size_t>(pages)) * page_bytes_);
}

std::string Snapshots::path_of(std::span<const int32_t> tokens) const {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(key_)));
  hash.add(std::as_bytes(tokens));
  return fmt::format("{}/{}{}", directory_, hash.hex(), kSuffix);
}

// The most where that is more than a size_t holds.
size_t Snapshots::file_bytes(size_t tokens, size_t pages) const {
  const auto token_bytes = checked_mul(tokens, sizeof(int32_t));
  const auto all_pages = checked_mul(pages, page_bytes_);
  const auto body = token_bytes && all_pages ? checked_add(*token_bytes, *all_pages) : std::nullopt;
  const auto whole = body ? checked_add(*body, sizeof(Header) + kHashChars) : std::nullopt;
  return whole.value_or(std::numeric_limits<size_t>::max());
}

// Of an open file: what it says of itself, as far as its size agrees. kNotFound: of another key.
Result<Snapshots::Entry> Snapshots::read_header(File& file, const std::string& path) const {
  struct stat status = {};
  if (::fstat(file.descriptor(), &status) != 0) return error(ErrorCode::kIo, "{}", failed(path));
  if (!S_ISREG(status.st_mode)) return error(ErrorCode::kNotFound, "{} is no file", path);
  Header header;
  RETURN_IF_ERROR(file.read(std::as_writable_bytes(std::span(&header, 1))));
  if (std::string_view(header.magic.data(), header.magic.size()) != kMagic) {
    return damaged(path, "it does not begin like one");
  }
  if (std::string_view(header.key.data(), header.key.size()) != key_) {
    return error(ErrorCode::kNotFound, "{} was made with another model, layout or build", path);
  }
  constexpr uint64_t kMost = std::numeric_limits<int>::max();
  // Every row takes a byte of a page at least: no header makes us ask for more than its file holds.
  const auto rows = checked_mul(static_cast<size_t>(std::min(header.pages, kMost)), page_bytes_);
  if (header.page_bytes != page_bytes_ || header.tokens < 1 || header.tokens > kMost ||
      (rows && header.tokens > *rows) || header.pages < 1 || header.pages > kMost ||
      file_bytes(header.tokens, header.pages) != static_cast<size_t>(status.st_size)) {
    return damaged(path,
                   fmt::format("{} tokens and {} pages of {} bytes are not {} bytes", header.tokens,
                               header.pages, header.page_bytes, status.st_size));
  }
  Entry entry{.path = path,
              .tokens = std::vector<int32_t>(header.tokens),
              .pages = static_cast<int>(header.pages),
              .used_ns = static_cast<int64_t>(status.st_mtim.tv_sec) * 1'000'000'000 +
                         status.st_mtim.tv_nsec};
  RETURN_IF_ERROR(file.read(std::as_writable_bytes(std::span(entry.tokens))));
  return entry;
}

std::vector<Snapshots::Entry> Snapshots::list(int& damaged_files) {
  damaged_files = 0;
  std::vector<Entry> entries;
  std::error_code code;
  for (fs::directory_iterator at(directory_, code), end; !code && at != end; at.increment(code)) {
    if (at->path().extension() != kSuffix) continue;
    const std::string path = at->path().string();
    File file(path, O_RDONLY);
    if (!file.is_open()) continue;
    auto entry = read_header(file, path);
    if (entry.ok()) {
      know(entry.value().tokens, {.path = path, .pages = entry.value().pages});
      entries.push_back(std::move(entry).value());
    } else if (entry.error().code == ErrorCode::kInvalidArgument) {
      ++damaged_files;
      std::error_code ignored;
      fs::remove(at->path(), ignored);
    }
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.used_ns != b.used_ns ? a.used_ns > b.used_ns : a.path < b.path;
  });
  return entries;
}

// Files of all keys count, and go by when they were used.
void Snapshots::make_room(size_t bytes) {
  struct Other {
    fs::path path;
    size_t bytes;
    fs::file_time_type used;
  };
  std::vector<Other> others;
  size_t held = 0;
  std::error_code code;
  for (fs::directory_iterator at(directory_, code), end; !code && at != end; at.increment(code)) {
    if (at->path().extension() != kSuffix) continue;
    std::error_code gone;
    if (!at->is_regular_file(gone) || gone) continue;
    const auto size = at->file_size(gone);
    if (gone) continue;
    const auto used = at->last_write_time(gone);
    if (gone) continue;
    others.push_back({at->path(), size, used});
    held += size;
  }
  std::sort(others.begin(), others.end(),
            [](const Other& a, const Other& b) { return a.used < b.used; });
  for (const Other& other : others) {
    if (held + bytes <= limit_bytes_) return;
    if (!fs::remove(other.path, code)) continue;
    held -= other.bytes;
    forget(other.path.string());
  }
}

Status Snapshots::save(std::span<const int32_t> tokens, int pages, const CopyPages& copy_in) {
  CHECK(!tokens.empty() && pages >= 1);
  const std::string path = path_of(tokens);
  if (::utimensat(AT_FDCWD, path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW) == 0) {
    know(tokens, {.path = path, .pages = pages});
    return {};
  }
  const size_t bytes = file_bytes(tokens.size(), static_cast<size_t>(pages));
  if (bytes > limit_bytes_) {
    return error(ErrorCode::kNoCapacity, "a state of {} tokens takes {} bytes; {} may hold {}",
                 tokens.size(), bytes, directory_, limit_bytes_);
  }
  make_room(bytes);
  const std::string aside = path + kUnfinished;
  File file(aside, O_WRONLY | O_CREAT | O_TRUNC);
  if (!file.is_open()) return error(ErrorCode::kIo, "{}", failed(aside));
  Status done = write_state(file, tokens, pages, copy_in);
  if (done.ok() && ::rename(aside.c_str(), path.c_str()) != 0) {
    done = error(ErrorCode::kIo, "{}", failed(path));
  }
  if (done.ok()) {
    know(tokens, {.path = path, .pages = pages});
  } else {
    ::unlink(aside.c_str());
  }
  return done;
}

Status Snapshots::write_state(File& file, std::span<const int32_t> tokens, int pages,
                              const CopyPages& copy_in) const {
  Header header{.magic = {},
                .tokens = tokens.size(),
                .pages = static_cast<uint64_t>(pages),
                .page_bytes = page_bytes_,
                .key = {}};
  std::copy(kMagic.begin(), kMagic.end(), header.magic.begin());
  std::copy(key_.begin(), key_.end(), header.key.begin());
  Sha256 hash;
  RETURN_IF_ERROR(file.write(std::as_bytes(std::span(&header, 1)), &hash));
  RETURN_IF_ERROR(file.write(std::as_bytes(tokens), &hash));
  std::vector<std::byte> held = batch(pages);
  for (int i = 0; i < pages;) {
    const size_t left = static_cast<size_t>(pages - i) * page_bytes_;
    const std::span<std::byte> some = std::span(held).first(std::min(held.size(), left));
    if (!copy_in(i, some)) return error(ErrorCode::kCancelled, "{} was given up", directory_);
    RETURN_IF_ERROR(file.write(some, &hash));
    i += static_cast<int>(some.size() / page_bytes_);
  }
  const std::string sum = hash.hex();
  return file.write(std::as_bytes(std::span(sum)));
}

Status Snapshots::load(const Entry& entry, const CopyPages& copy_out) const {
  File file(entry.path, O_RDONLY);
  if (!file.is_open()) return error(ErrorCode::kIo, "{}", failed(entry.path));
  ASSIGN_OR_RETURN(const Entry now, read_header(file, entry.path));
  if (now.tokens != entry.tokens || now.pages != entry.pages) {
    return damaged(entry.path, "it is another one now");
  }
  if (::lseek(file.descriptor(), 0, SEEK_SET) != 0) {
    return error(ErrorCode::kIo, "{}", failed(entry.path));
  }
  Sha256 hash;
  std::vector<std::byte> head(sizeof(Header) + entry.tokens.size() * sizeof(int32_t));
  RETURN_IF_ERROR(file.read(head, &hash));
  std::vector<std::byte> held = batch(entry.pages);
  for (int i = 0; i < entry.pages;) {
    const size_t left = static_cast<size_t>(entry.pages - i) * page_bytes_;
    const std::span<std::byte> some = std::span(held).first(std::min(held.size(), left));
    RETURN_IF_ERROR(file.read(some, &hash));
    if (!copy_out(i, some)) return error(ErrorCode::kCancelled, "{} was given up", entry.path);
    i += static_cast<int>(some.size() / page_bytes_);
  }
  std::array<char, kHashChars> stored;
  RETURN_IF_ERROR(file.read(std::as_writable_bytes(std::span(stored))));
  if (std::string_view(stored.data(), stored.size()) != hash.hex()) {
    return damaged(entry.path, "its bytes are not those that were written");
  }
  ::utimensat(AT_FDCWD, entry.path.c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
  return {};
}

void Snapshots::remove(const Entry& entry) noexcept {
  ::unlink(entry.path.c_str());
  forget(entry.path);
}

}  // namespace flashlane::runner
