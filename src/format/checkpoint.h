// A checkpoint directory: config.json, weights in one or many safetensors files, and, when there,
// tokenizer.json, chat_template.jinja (or the template inside tokenizer_config.json) and
// generation_config.json. Config and weights are enough; what is missing is said by name when it is
// asked for. Weight files are those of model.safetensors.index.json, else model*.safetensors, else
// every *.safetensors; a mtp.safetensors beside them is always taken. No tensor may come twice.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "format/safetensors.h"
#include "format/tensor_source.h"

namespace flashlane::format {

// Reads a whole file; errors name it. At most `limit` bytes.
Result<std::string> read_text_file(const std::string& path, size_t limit = size_t{256} << 20);

class Checkpoint final : public TensorSource {
 public:
  static Result<std::unique_ptr<Checkpoint>> open(const std::string& directory);

  const TensorView* find(std::string_view name) const override;
  std::vector<std::string> names() const override;
  std::string description() const override { return directory_; }
  void drop(std::span<const ByteRange> ranges) const override;
  void advise(std::span<const ByteRange> ranges, Advice advice) const override;
  bool file_backed() const override { return true; }

  const std::string& directory() const { return directory_; }
  // Sum of the sizes of all weight files.
  size_t weight_bytes() const;
  // What the first weight file's metadata says of it ("mlx", "pt"); empty: nothing.
  const std::string& metadata_format() const { return files_.front()->metadata_format(); }

 private:
  Checkpoint() = default;
  Status add_file(const std::string& name);
  Status check_index(const std::string& index_path);
  const SafetensorsFile& file_of(const ByteRange& range) const;

  std::string directory_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  struct Place {
    const TensorView* view = nullptr;
    size_t file = 0;
  };
  std::map<std::string, Place, std::less<>> tensors_;
};

// The optional text files of a directory; nullopt when absent, an error when unreadable.
struct CheckpointTexts {
  std::string config_json;
  std::optional<std::string> tokenizer_json;
  std::optional<std::string> chat_template;
  std::optional<std::string> generation_config_json;
};
// Reads them without opening weights (info, tokenize, template).
Result<CheckpointTexts> read_checkpoint_texts(const std::string& directory);

}  // namespace flashlane::format
