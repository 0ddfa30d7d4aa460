// The weight files of a new checkpoint: one model.safetensors, or, over a limit of bytes, numbered
// files and their index. Tensors come in units (a quantised matrix with its scales and biases) that
// are never parted; the same units and limit give the same files, byte for byte.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "format/pending_directory.h"
#include "format/safetensors_writer.h"

namespace flashlane::format {

using TensorUnit = std::vector<TensorSpec>;

class CheckpointWriter {
 public:
  // `limit`: bytes of tensors in a file, passed only by a unit that is larger by itself. `format`:
  // see SafetensorsWriter. The directory must outlive the writer.
  CheckpointWriter(const PendingDirectory& directory, std::vector<TensorUnit> units, size_t limit,
                   std::string format);

  // The next bytes of tensor `tensor` of unit `unit`; units come in order, and each is complete
  // before the next begins.
  Status append(size_t unit, size_t tensor, std::span<const std::byte> bytes);
  // After the last byte: closes the last file and writes the index, if there is one.
  Status finish();

  // Names of the weight files, in order.
  const std::vector<std::string>& files() const { return file_names_; }

 private:
  Status open_file_of(size_t unit);

  const PendingDirectory& directory_;
  std::vector<TensorUnit> units_;
  std::string format_;
  std::vector<size_t> file_of_unit_;
  std::vector<std::string> file_names_;
  size_t next_file_ = 0;
  std::unique_ptr<SafetensorsWriter> file_;
};

// Copies `from` into the directory under its own name, in pieces; `go_on` is asked before each and
// told its bytes.
Status copy_file(const std::string& from, const PendingDirectory& directory,
                 const std::function<Status(size_t)>& go_on);

// The names in a checkpoint directory that belong to no weights and no configuration, sorted:
// `files` can be copied as they are; `others` are folders and whatever is no file.
struct CompanionFiles {
  std::vector<std::string> files;
  std::vector<std::string> others;
  size_t bytes = 0;
};
Result<CompanionFiles> list_companions(const std::string& directory);

}  // namespace flashlane::format
