// PendingDirectory: a directory that appears whole or not at all. Files are made in a hidden
// directory beside the target; publish() stores them and renames it, and whatever happens before
// that (an error, an interrupt that is wound up) takes it away with all that is in it.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"

namespace flashlane::format {

class PendingDirectory {
 public:
  // Refuses when `target` exists, when its parent does not, and when the file system has less than
  // `bytes` left.
  static Result<std::unique_ptr<PendingDirectory>> create(const std::string& target, size_t bytes);
  ~PendingDirectory();
  PendingDirectory(const PendingDirectory&) = delete;
  PendingDirectory& operator=(const PendingDirectory&) = delete;

  // Where files are made until they are published.
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  // The absolute path that the directory gets.
  const std::string& target() const { return target_; }

  // Writes `text` as file `name`.
  Status write(const std::string& name, const std::string& text) const;
  // Flushes the files to the disk, then gives the directory its name; refused when something else
  // has taken it meanwhile.
  Status publish();

 private:
  PendingDirectory() = default;

  std::string target_;
  std::string path_;  // empty once published
};

}  // namespace flashlane::format
