// Which unit goes into which file is settled before anything is written, by sizes alone.
#include "format/checkpoint_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <map>
#include <system_error>

#include "format/json_writer.h"

namespace flashlane::format {
namespace {

namespace fs = std::filesystem;

size_t unit_bytes(const TensorUnit& unit) {
  size_t bytes = 0;
  for (const TensorSpec& tensor : unit) bytes += spec_bytes(tensor);
  return bytes;
}

class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  int get() const { return value_; }

 private:
  int value_;
};

Error io_error(const std::string& path, int code) {
  return error(ErrorCode::kIo, "{}: {}", path, std::generic_category().message(code));
}

Status write_whole(int descriptor, const std::string& path, std::span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return io_error(path, errno);
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
  return {};
}

}  // namespace

CheckpointWriter::CheckpointWriter(const PendingDirectory& directory, std::vector<TensorUnit> units,
                                   size_t limit, std::string format)
    : directory_(directory), units_(std::move(units)), format_(std::move(format)) {
  size_t count = 1;
  size_t filled = 0;
  for (const TensorUnit& unit : units_) {
    const size_t bytes = unit_bytes(unit);
    if (filled != 0 && (bytes > limit || filled > limit - bytes)) {
      ++count;
      filled = 0;
    }
    filled += bytes;
    file_of_unit_.push_back(count - 1);
  }
  for (size_t i = 1; i <= count; ++i) {
    file_names_.push_back(count == 1 ? std::string("model.safetensors")
                                     : fmt::format("model-{:05}-of-{:05}.safetensors", i, count));
  }
}

// Creates the file of `unit` when it begins with it, finishing the one before.
Status CheckpointWriter::open_file_of(size_t unit) {
  const size_t number = file_of_unit_[unit];
  if (number < next_file_) {
    CHECK_EQ(number, next_file_ - 1);
    return {};
  }
  CHECK_EQ(number, next_file_);
  if (file_) RETURN_IF_ERROR(file_->finish());
  std::vector<TensorSpec> tensors;
  for (size_t i = 0; i < units_.size(); ++i) {
    if (file_of_unit_[i] != number) continue;
    tensors.insert(tensors.end(), units_[i].begin(), units_[i].end());
  }
  sort_for_file(tensors);
  const std::string path = directory_.file(file_names_[number]);
  ASSIGN_OR_RETURN(file_, SafetensorsWriter::create(path, tensors, format_));
  ++next_file_;
  return {};
}

Status CheckpointWriter::append(size_t unit, size_t tensor, std::span<const std::byte> bytes) {
  CHECK_LT(unit, units_.size());
  CHECK_LT(tensor, units_[unit].size());
  RETURN_IF_ERROR(open_file_of(unit));
  return file_->append(units_[unit][tensor].name, bytes);
}

Status CheckpointWriter::finish() {
  CHECK_EQ(next_file_, file_names_.size());
  RETURN_IF_ERROR(file_->finish());
  if (file_names_.size() == 1) return {};
  std::map<std::string, size_t> files;  // by tensor
  size_t bytes = 0;
  for (size_t i = 0; i < units_.size(); ++i) {
    for (const TensorSpec& tensor : units_[i]) files.emplace(tensor.name, file_of_unit_[i]);
    bytes += unit_bytes(units_[i]);
  }
  std::string index = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{", bytes);
  bool any = false;
  for (const auto& [name, file] : files) {
    if (any) index += ',';
    any = true;
    append_line(2, index);
    index += json_quoted(name) + ": " + json_quoted(file_names_[file]);
  }
  index += "\n  }\n}\n";
  return directory_.write("model.safetensors.index.json", index);
}

Status copy_file(const std::string& from, const PendingDirectory& directory,
                 const std::function<Status(size_t)>& go_on) {
  const std::string to = directory.file(fs::path(from).filename().string());
  const Descriptor source(::open(from.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (source.get() < 0) return io_error(from, errno);
  const Descriptor copy(::open(to.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  if (copy.get() < 0) return io_error(to, errno);
  constexpr size_t kPiece = size_t{1} << 20;
  std::vector<char> piece(kPiece);
  while (true) {
    const ssize_t got = ::read(source.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error(from, errno);
    if (got == 0) return {};
    const auto bytes = static_cast<size_t>(got);
    RETURN_IF_ERROR(go_on(bytes));
    RETURN_IF_ERROR(write_whole(copy.get(), to, {piece.data(), bytes}));
  }
}

Result<CompanionFiles> list_companions(const std::string& directory) {
  CompanionFiles out;
  std::error_code code;
  for (fs::directory_iterator entry(directory, code), end; !code && entry != end;
       entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    if (name == "config.json" || name.ends_with(".safetensors") ||
        name.ends_with(".safetensors.index.json")) {
      continue;
    }
    std::error_code unknown;
    if (!entry->is_regular_file(unknown)) {
      out.others.push_back(name);
      continue;
    }
    const auto size = entry->file_size(unknown);
    if (unknown) {
      return error(ErrorCode::kIo, "{}: {}", entry->path().string(), unknown.message());
    }
    out.bytes += size;
    out.files.push_back(name);
  }
  if (code) return error(ErrorCode::kIo, "{}: {}", directory, code.message());
  std::sort(out.files.begin(), out.files.end());
  std::sort(out.others.begin(), out.others.end());
  return out;
}

}  // namespace flashlane::format
