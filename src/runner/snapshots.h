// Snapshots: kept states of prompts as files of one directory, so that they outlive the process. A
// file appears whole or not at all: it is written under another name and renamed. It says what it
// was made with (the key: model, layout, build) and for which tokens, and ends with a hash of all
// of it; what was made with anything else, or is damaged, is never taken for a state. One process
// has a directory at a time.
//
// A file: "FLSTATE1", the numbers of tokens and pages and the bytes of a page (8 bytes each, little
// endian), the key (64 characters), the tokens (4 bytes each), the pages, the SHA-256 of all that
// as 64 characters. Its name is the hash of key and tokens, so one state is never there twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace flashlane::runner {

class Snapshots {
 public:
  // Makes the directory if only its last part is missing. `key`: 64 characters. Refuses a directory
  // that another process has. Removes what a process that was killed left unfinished.
  static Result<std::unique_ptr<Snapshots>> open(std::string directory, std::string key,
                                                 size_t page_bytes, size_t limit_bytes);
  // A directory beneath `beneath` that nobody else can read and that goes with the process, its
  // files with it. One that a killed process left is taken over, its files are removed.
  static Result<std::unique_ptr<Snapshots>> open_own(const std::string& beneath,
                                                     const std::string& key, size_t page_bytes,
                                                     size_t limit_bytes);
  ~Snapshots();
  Snapshots(const Snapshots&) = delete;
  Snapshots& operator=(const Snapshots&) = delete;

  struct Entry {
    std::string path;
    std::vector<int32_t> tokens;
    int pages = 0;
    int64_t used_ns = 0;  // when it was written, loaded or saved again last
  };
  // Those of this key, last used first, as the directory has them now. Files of other keys stay as
  // they are, until room is wanted; `damaged` counts those that are no whole snapshots, which are
  // removed.
  std::vector<Entry> list(int& damaged);
  // Of those that were listed or saved: the longest that is a beginning of these tokens.
  std::optional<Entry> find(std::span<const int32_t> tokens) const;

  // Copies whole pages of the state, one or several from number `first` on, into `pages` or out of
  // them. All of them, once each, in order. False gives the work up, with kCancelled.
  using CopyPages = std::function<bool(int first, std::span<std::byte> pages)>;
  // Keeps the state, unless it is there already; makes room by removing those that were not used
  // for longest. kNoCapacity where it alone is more than the limit.
  Status save(std::span<const int32_t> tokens, int pages, const CopyPages& copy_in);
  // What `copy_out` was given is worth nothing unless load succeeds.
  Status load(const Entry& entry, const CopyPages& copy_out) const;
  void remove(const Entry& entry) noexcept;
  // It is not found any more; its file stays.
  void forget(const std::string& path) noexcept;

  size_t page_bytes() const { return page_bytes_; }
  bool outlives_process() const { return !own_; }
  const std::string& directory() const { return directory_; }

 private:
  class File;
  struct ByTokens {
    using is_transparent = void;
    bool operator()(std::span<const int32_t> a, std::span<const int32_t> b) const;
  };
  struct Known {
    std::string path;
    int pages;
  };

  Snapshots(std::string directory, std::string key, size_t page_bytes, size_t limit_bytes,
            std::unique_ptr<File> lock);
  std::string path_of(std::span<const int32_t> tokens) const;
  size_t file_bytes(size_t tokens, size_t pages) const;
  std::vector<std::byte> batch(int pages) const;
  Result<Entry> read_header(File& file, const std::string& path) const;
  Status write_state(File& file, std::span<const int32_t> tokens, int pages,
                     const CopyPages& copy_in) const;
  void make_room(size_t bytes);
  void know(std::span<const int32_t> tokens, Known known);
  void clear() const noexcept;

  std::string directory_;
  std::string key_;
  size_t page_bytes_;
  size_t limit_bytes_;
  std::unique_ptr<File> lock_;
  bool own_ = false;

  mutable std::mutex mutex_;  // guards the one below
  std::map<std::vector<int32_t>, Known, ByTokens> known_ = {};
};

}  // namespace flashlane::runner
