// TensorSource: named tensors from anywhere: a checkpoint directory, one file, or weights made by a
// counter. A view's address, type and shape hold as long as the source lives; its bytes are there
// between `want` and `drop`, since a source may make them when they are wanted and give their
// memory back when they are dropped.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/view.h"

namespace flashlane::format {

// Whether the view's bytes may be read through a pointer to its element type. Files whose header is
// not padded (MLX writes such) hold tensors at any address: bytes-wise readers
// (kernels::dequantize_row, memcpy) take them as they are, anyone else asks here and copies first.
inline bool is_aligned(const TensorView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % dtype_bytes(view.dtype) == 0;
}

// Bytes of one tensor.
struct ByteRange {
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

enum class Advice : uint8_t {
  kRandom,  // rows will be looked up here and there
  kSoon,    // these bytes will be read soon
};

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // Null when there is no such tensor.
  virtual const TensorView* find(std::string_view name) const = 0;
  virtual std::vector<std::string> names() const = 0;  // sorted
  // What to call the source in an error: a path, or "synth:tiny".
  virtual std::string description() const = 0;

  // Loading only, one thread at a time. Before a range is read it is wanted; for a quantised tensor
  // it is enough to want its codes: scales and biases of those rows come with them. Nobody reads a
  // dropped range before it is wanted again. Sources that hold everything ignore both.
  virtual void want(std::span<const ByteRange> /*ranges*/) const {}
  virtual void drop(std::span<const ByteRange> /*ranges*/) const {}
  // A hint about bytes that are files' pages; never an error, and nothing for other bytes.
  virtual void advise(std::span<const ByteRange> /*ranges*/, Advice /*advice*/) const {}
  // Whether the bytes are pages of files, which the system can take back, and not memory made here.
  virtual bool file_backed() const { return false; }
};

}  // namespace flashlane::format
