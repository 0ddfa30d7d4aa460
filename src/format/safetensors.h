// One safetensors file, memory-mapped. Every number in the header is checked before it is used:
// header length, dtype, shape product, offsets inside the file, size = shape, no two tensors
// overlapping, no duplicate names. Nothing is allocated from a number that was not checked. Gaps
// between tensors are allowed; so is any address: views are not always aligned (is_aligned).
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "format/page_ledger.h"
#include "format/tensor_source.h"

namespace flashlane::format {

class SafetensorsFile final : public TensorSource {
 public:
  // Errors name the file, the tensor and the limit.
  static Result<std::unique_ptr<SafetensorsFile>> open(const std::string& path);
  // Parses bytes held elsewhere (tests, fuzzing); they must outlive the object.
  static Result<std::unique_ptr<SafetensorsFile>> parse(std::span<const std::byte> bytes,
                                                        std::string description);
  ~SafetensorsFile() override;

  const TensorView* find(std::string_view name) const override;
  std::vector<std::string> names() const override;
  std::string description() const override { return description_; }
  void drop(std::span<const ByteRange> ranges) const override;
  void advise(std::span<const ByteRange> ranges, Advice advice) const override;
  bool file_backed() const override { return mapping_ != nullptr; }
  // Whether the range lies in this file's bytes.
  bool holds(const ByteRange& range) const;
  size_t file_bytes() const { return bytes_.size(); }
  // What the file's metadata says of itself ("mlx", "pt"); empty: nothing.
  const std::string& metadata_format() const { return metadata_format_; }

 private:
  SafetensorsFile() = default;
  Status parse_header();

  std::string description_;
  std::string metadata_format_;
  std::span<const std::byte> bytes_;
  void* mapping_ = nullptr;
  mutable PageLedger ledger_;  // of the mapping
  std::map<std::string, TensorView, std::less<>> tensors_;
};

struct NamedTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};

// Writes a whole safetensors file at once; tensors in the order given. What is too much for memory
// goes through SafetensorsWriter.
Status write_safetensors(const std::string& path, std::span<const NamedTensor> tensors);

}  // namespace flashlane::format
