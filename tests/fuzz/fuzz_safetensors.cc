// Any bytes as a safetensors file: parsed or refused, and what is parsed can be read to its last
// byte.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "format/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // A copy of exactly this size, so that a byte too far is seen.
  std::vector<std::byte> bytes(size);
  if (size != 0) std::memcpy(bytes.data(), data, size);
  const auto file = flashlane::format::SafetensorsFile::parse(bytes, "fuzz");
  if (!file.ok()) {
    if (file.error().message.empty()) std::abort();
    return 0;
  }
  uint8_t sum = 0;
  for (const std::string& name : (*file)->names()) {
    const flashlane::TensorView* view = (*file)->find(name);
    if (view == nullptr) std::abort();
    for (size_t i = 0; i < view->bytes(); ++i) sum ^= std::to_integer<uint8_t>(view->data[i]);
  }
  // A volatile store, so that the reads above are not optimised away.
  volatile uint8_t sink = sum;
  static_cast<void>(sink);
  return 0;
}
