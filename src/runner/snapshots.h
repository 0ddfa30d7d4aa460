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
#include <memory>
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
  ~Snapshots();

  struct Entry {
    std::string path;
    std::vector<int32_t> tokens;
    int pages = 0;
    int64_t used_ns = 0;  // when it was written, loaded or saved again last
  };
  // Those of this key, last used first. Of the others, files of other keys stay as they are, until
  // room is wanted; `damaged` counts those that are no whole snapshots, which are removed.
  std::vector<Entry> list(int& damaged) const;

  // Fills `page` with page number `index` of the state. All of them, once each, in order.
  using ReadPage = std::function<void(int index, std::span<std::byte> page)>;
  // Keeps the state, unless it is there already; makes room by removing those that were not used
  // for longest. kNoCapacity where it alone is more than the limit.
  Status save(std::span<const int32_t> tokens, int pages, const ReadPage& read_page) const;

  // Takes page number `index` of the state. What it was given is worth nothing unless load
  // succeeds.
  using WritePage = std::function<void(int index, std::span<const std::byte> page)>;
  Status load(const Entry& entry, const WritePage& write_page) const;
  static void remove(const Entry& entry) noexcept;

  const std::string& directory() const { return directory_; }

 private:
  class File;
  Snapshots(std::string directory, std::string key, size_t page_bytes, size_t limit_bytes,
            std::unique_ptr<File> lock);
  std::string path_of(std::span<const int32_t> tokens) const;
  size_t file_bytes(size_t tokens, size_t pages) const;
  Result<Entry> read_header(File& file, const std::string& path) const;
  void make_room(size_t bytes) const;

  std::string directory_;
  std::string key_;
  size_t page_bytes_;
  size_t limit_bytes_;
  std::unique_ptr<File> lock_;
};

}  // namespace flashlane::runner
