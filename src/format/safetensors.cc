// Header parsing and mapping of safetensors files. The header is hostile until every
// number in it has been compared with the file's size.
#include "format/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>

#include "base/int_math.h"
#include "format/json_fields.h"

namespace flashlane::format {
namespace {

constexpr uint64_t kLengthBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

std::string system_message(int code) {
  return std::generic_category().message(code);
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  ~FileDescriptor() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// A tensor's place in the data part of the file.
struct Span {
  uint64_t begin = 0;
  uint64_t end = 0;
  const std::string* name = nullptr;
};

// Bytes of this shape, or nullopt when the product does not fit.
std::optional<int64_t> shape_bytes(std::span<const int64_t> shape, DType dtype) {
  std::optional<int64_t> bytes = static_cast<int64_t>(dtype_bytes(dtype));
  for (const int64_t dim : shape) {
    bytes = checked_mul(*bytes, dim);
    if (!bytes) return std::nullopt;
  }
  return bytes;
}

// Reads one header entry; `place` names the file and the tensor.
Result<TensorView> read_entry(simdjson::dom::element entry, const std::string& place,
                              std::span<const std::byte> data, Span* span) {
  Status status;
  JsonFields fields(entry, place, "", &status);
  const std::string dtype_text = fields.text("dtype");
  constexpr int64_t kMost = INT64_MAX;
  const auto shape = fields.integers("shape", 0, kMost, kMaxRank);
  const auto offsets = fields.integers("data_offsets", 0, kMost, 2);
  RETURN_IF_ERROR(status);

  const auto dtype = dtype_from_name(dtype_text);
  if (!dtype) return invalid("{}: dtype is {}: not a known type", place, printable(dtype_text));
  if (offsets.size() != 2) return invalid("{}: data_offsets must be two numbers", place);
  if (offsets[0] > offsets[1]) {
    return invalid("{}: data_offsets begin at {} after their end {}", place, offsets[0],
                   offsets[1]);
  }
  span->begin = static_cast<uint64_t>(offsets[0]);
  span->end = static_cast<uint64_t>(offsets[1]);
  if (span->end > data.size()) {
    return invalid("{}: ends at byte {} of the data, the file holds {}: truncated or damaged",
                   place, span->end, data.size());
  }
  TensorView view;
  view.dtype = *dtype;
  view.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  const auto bytes = shape_bytes(shape, *dtype);
  if (!bytes) {
    return invalid("{}: shape {} has more bytes than can be counted", place, shape_string(view));
  }
  if (static_cast<uint64_t>(*bytes) != span->end - span->begin) {
    return invalid("{}: shape {} of {} is {} bytes, data_offsets span {}", place,
                   shape_string(view), dtype_text, *bytes, span->end - span->begin);
  }
  view.data = data.data() + span->begin;
  return view;
}

// Drops what no tensor covers: the header and the gaps. `spans` are sorted.
void drop_the_rest(PageLedger& ledger, std::span<const Span> spans, size_t data_start,
                   size_t file_bytes) {
  size_t done = 0;
  for (const Span& span : spans) {
    ledger.drop(done, data_start + span.begin);
    done = data_start + span.end;
  }
  ledger.drop(done, file_bytes);
}

Status check_overlaps(std::vector<Span>& spans, const std::string& file) {
  std::erase_if(spans, [](const Span& span) { return span.begin == span.end; });
  std::sort(spans.begin(), spans.end(), [](const Span& a, const Span& b) {
    return a.begin != b.begin ? a.begin < b.begin : *a.name < *b.name;
  });
  for (size_t i = 1; i < spans.size(); ++i) {
    if (spans[i].begin < spans[i - 1].end) {
      return invalid("{}: tensors {} (bytes {} to {}) and {} (bytes {} to {}) overlap", file,
                     printable(*spans[i - 1].name), spans[i - 1].begin, spans[i - 1].end,
                     printable(*spans[i].name), spans[i].begin, spans[i].end);
    }
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::open(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    return error(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "{}: {}", path,
                 system_message(errno));
  }
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) {
    return error(ErrorCode::kIo, "{}: {}", path, system_message(errno));
  }
  if (!S_ISREG(status.st_mode)) return invalid("{}: not a regular file", path);
  const auto size = static_cast<size_t>(status.st_size);
  std::unique_ptr<SafetensorsFile> out(new SafetensorsFile());
  out->description_ = path;
  if (size > 0) {
    void* mapping = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
    if (mapping == MAP_FAILED) {
      return error(ErrorCode::kIo, "{}: can't map {} bytes: {}", path, size, system_message(errno));
    }
    out->mapping_ = mapping;
    out->bytes_ = {static_cast<const std::byte*>(mapping), size};
  }
  RETURN_IF_ERROR(out->parse_header());
  return out;
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::parse(std::span<const std::byte> bytes,
                                                                std::string description) {
  std::unique_ptr<SafetensorsFile> out(new SafetensorsFile());
  out->description_ = std::move(description);
  out->bytes_ = bytes;
  RETURN_IF_ERROR(out->parse_header());
  return out;
}

SafetensorsFile::~SafetensorsFile() {
  if (mapping_ != nullptr) ::munmap(mapping_, bytes_.size());
}

Status SafetensorsFile::parse_header() {
  if (bytes_.size() < kLengthBytes) {
    return invalid("{}: {} bytes, a safetensors file has at least {}: truncated", description_,
                   bytes_.size(), kLengthBytes);
  }
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes_.data(), kLengthBytes);
  if (header_bytes > kMaxHeaderBytes) {
    return invalid("{}: header of {} bytes, the limit is {}: not a safetensors file?", description_,
                   header_bytes, kMaxHeaderBytes);
  }
  if (header_bytes > bytes_.size() - kLengthBytes) {
    return invalid("{}: header of {} bytes, the file holds {} after the length field: truncated",
                   description_, header_bytes, bytes_.size() - kLengthBytes);
  }
  const auto header = bytes_.subspan(kLengthBytes, header_bytes);
  const auto data = bytes_.subspan(kLengthBytes + header_bytes);

  JsonDocument document;
  RETURN_IF_ERROR(document.parse({reinterpret_cast<const char*>(header.data()), header.size()},
                                 description_ + ": header"));
  Status status;
  const JsonFields entries(document.root(), description_ + ": header", "", &status);
  RETURN_IF_ERROR(status);
  std::vector<Span> spans;
  for (const auto& [key, value] : entries.fields()) {
    if (key == "__metadata__") {
      // Free text that nothing depends on, so that a wrong type there is no fault.
      std::string_view format;
      if (value["format"].get_string().get(format) == simdjson::SUCCESS) metadata_format_ = format;
      continue;
    }
    Span span;
    ASSIGN_OR_RETURN(
        const TensorView view,
        read_entry(value, fmt::format("{}: tensor {}", description_, printable(key)), data, &span));
    const auto [place, inserted] = tensors_.emplace(std::string(key), view);
    CHECK(inserted);  // JsonFields has refused duplicate keys
    span.name = &place->first;
    spans.push_back(span);
  }
  RETURN_IF_ERROR(check_overlaps(spans, description_));
  if (mapping_ != nullptr) {
    ledger_ = PageLedger(bytes_);
    drop_the_rest(ledger_, spans, kLengthBytes + header_bytes, bytes_.size());
  }
  return {};
}

bool SafetensorsFile::holds(const ByteRange& range) const {
  return range.data >= bytes_.data() && range.data + range.bytes <= bytes_.data() + bytes_.size();
}

void SafetensorsFile::drop(std::span<const ByteRange> ranges) const {
  if (mapping_ == nullptr) return;
  for (const ByteRange& range : ranges) {
    CHECK(holds(range));
    const auto begin = static_cast<size_t>(range.data - bytes_.data());
    ledger_.drop(begin, begin + range.bytes);
  }
}

void SafetensorsFile::advise(std::span<const ByteRange> ranges, Advice advice) const {
  if (mapping_ == nullptr) return;
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  for (const ByteRange& range : ranges) {
    const auto address = reinterpret_cast<uintptr_t>(range.data);
    const uintptr_t first = address / page * page;
    (void)::madvise(reinterpret_cast<void*>(first), address + range.bytes - first,
                    advice == Advice::kRandom ? MADV_RANDOM : MADV_WILLNEED);
  }
}

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> out;
  out.reserve(tensors_.size());
  for (const auto& [name, view] : tensors_) out.push_back(name);
  return out;
}

}  // namespace flashlane::format
