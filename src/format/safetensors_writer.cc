// The header is made whole before the first byte of data, so each tensor's bytes go straight to
// their offset and nothing is kept in memory.
#include "format/safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "base/int_math.h"
#include "format/json_writer.h"
#include "format/safetensors.h"

namespace flashlane::format {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr size_t kLengthBytes = sizeof(uint64_t);

Error write_error(const std::string& path, int code) {
  return error(ErrorCode::kIo, "{}: can't write: {}", path, std::generic_category().message(code));
}

// Padded with spaces so that the data starts on a multiple of 8.
std::string header_of(std::span<const TensorSpec> tensors, std::string_view format) {
  std::string header = "{";
  if (!format.empty()) {
    header += fmt::format(R"("__metadata__":{{"format":{}}})", json_quoted(format));
  }
  size_t offset = 0;
  for (const TensorSpec& tensor : tensors) {
    const size_t bytes = spec_bytes(tensor);
    std::string shape;
    for (const int64_t dim : tensor.shape) {
      shape += fmt::format("{}{}", shape.empty() ? "" : ",", dim);
    }
    header += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          header.size() > 1 ? "," : "", json_quoted(tensor.name),
                          dtype_name(tensor.dtype), shape, offset, offset + bytes);
    offset += bytes;
  }
  header += "}";
  header.resize(round_up(header.size(), size_t{8}), ' ');
  return header;
}

}  // namespace

size_t spec_bytes(const TensorSpec& spec) {
  auto bytes = std::optional<int64_t>(static_cast<int64_t>(dtype_bytes(spec.dtype)));
  for (const int64_t dim : spec.shape) {
    CHECK_GE(dim, 0);
    bytes = checked_mul(*bytes, dim);
    CHECK(bytes.has_value());
  }
  return static_cast<size_t>(*bytes);
}

void sort_for_file(std::vector<TensorSpec>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorSpec& a, const TensorSpec& b) {
    const size_t left = dtype_bytes(a.dtype);
    const size_t right = dtype_bytes(b.dtype);
    return left != right ? left > right : a.name < b.name;
  });
}

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(
    const std::string& path, std::span<const TensorSpec> tensors, std::string_view format) {
  std::unique_ptr<SafetensorsWriter> out(new SafetensorsWriter());
  out->path_ = path;
  const std::string header = header_of(tensors, format);
  std::vector<std::byte> start(kLengthBytes + header.size());
  const uint64_t header_bytes = header.size();
  std::memcpy(start.data(), &header_bytes, kLengthBytes);
  std::memcpy(start.data() + kLengthBytes, header.data(), header.size());
  uint64_t offset = start.size();
  for (const TensorSpec& tensor : tensors) {
    const uint64_t end = offset + spec_bytes(tensor);
    const bool is_new = out->places_.emplace(tensor.name, Place{offset, end}).second;
    CHECK(is_new);
    offset = end;
  }
  out->descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (out->descriptor_ < 0) return write_error(path, errno);
  RETURN_IF_ERROR(out->put(0, start));
  return out;
}

SafetensorsWriter::~SafetensorsWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Status SafetensorsWriter::put(uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return write_error(path_, errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return {};
}

Status SafetensorsWriter::append(const std::string& tensor, std::span<const std::byte> bytes) {
  const auto found = places_.find(tensor);
  CHECK(found != places_.end());
  Place& place = found->second;
  CHECK_LE(bytes.size(), place.end - place.next);
  RETURN_IF_ERROR(put(place.next, bytes));
  place.next += bytes.size();
  return {};
}

Status SafetensorsWriter::finish() {
  for (const auto& [name, place] : places_) CHECK_EQ(place.next, place.end);
  // close reports what a network file system could not store.
  if (::close(std::exchange(descriptor_, -1)) != 0) return write_error(path_, errno);
  return {};
}

Status write_safetensors(const std::string& path, std::span<const NamedTensor> tensors) {
  std::vector<TensorSpec> specs;
  for (const NamedTensor& tensor : tensors) {
    specs.push_back({tensor.name, tensor.dtype, tensor.shape});
    CHECK_EQ(spec_bytes(specs.back()), tensor.data.size());
  }
  ASSIGN_OR_RETURN(const auto writer, SafetensorsWriter::create(path, specs));
  for (const NamedTensor& tensor : tensors) {
    RETURN_IF_ERROR(writer->append(tensor.name, tensor.data));
  }
  return writer->finish();
}

}  // namespace flashlane::format
