// Writing safetensors files piece by piece: names, types and shapes are said first, so that every
// tensor has its place, then the bytes come in any order of tensors and in pieces of any size. What
// the reader refuses can't be written: offsets follow from shapes, there are no gaps, and finish()
// insists that every byte has come.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "tensor/dtype.h"

namespace flashlane::format {

struct TensorSpec {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;

  bool operator==(const TensorSpec&) const = default;
};

// A specification comes from checked shapes: its bytes can be counted.
size_t spec_bytes(const TensorSpec& spec);

// The file's order of tensors: wide elements first, then by name. Since the data begins on a
// multiple of 8 and the format allows no gaps, this is what aligns every tensor to its elements.
void sort_for_file(std::vector<TensorSpec>& tensors);

class SafetensorsWriter {
 public:
  // Creates or overwrites `path`; tensors lie in the order given. `format` is what the header's
  // metadata says of the file ("mlx", "pt"); empty: nothing.
  static Result<std::unique_ptr<SafetensorsWriter>> create(const std::string& path,
                                                           std::span<const TensorSpec> tensors,
                                                           std::string_view format = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next bytes of the tensor with this name.
  Status append(const std::string& tensor, std::span<const std::byte> bytes);
  // After the last byte of the last tensor; closes the file.
  Status finish();

 private:
  SafetensorsWriter() = default;
  Status put(uint64_t offset, std::span<const std::byte> bytes);

  std::string path_;
  int descriptor_ = -1;
  struct Place {
    uint64_t next = 0;
    uint64_t end = 0;
  };
  std::map<std::string, Place> places_;  // by tensor, as offsets in the file
};

}  // namespace flashlane::format
