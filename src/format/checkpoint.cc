// Finding and opening the files of a checkpoint directory. File names that come out of an index are
// plain names in the same directory, never paths.
#include "format/checkpoint.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <set>
#include <system_error>

#include "format/json_fields.h"

namespace flashlane::format {
namespace {

constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr std::string_view kSuffix = ".safetensors";
constexpr size_t kConfigLimit = size_t{16} << 20;

std::string system_message(int code) {
  return std::generic_category().message(code);
}

std::string join(const std::string& directory, std::string_view name) {
  return fmt::format("{}{}{}", directory, directory.ends_with('/') ? "" : "/", name);
}

bool exists(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0;
}

Status check_directory(const std::string& directory) {
  struct stat status = {};
  if (::stat(directory.c_str(), &status) != 0) {
    return error(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "{}: {}", directory,
                 system_message(errno));
  }
  if (!S_ISDIR(status.st_mode)) return invalid("{}: not a directory", directory);
  if (!exists(join(directory, "config.json"))) {
    return error(ErrorCode::kNotFound, "{}: no config.json: not a checkpoint directory", directory);
  }
  return {};
}

// All *.safetensors of a directory, sorted.
Result<std::vector<std::string>> weight_files(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code code;
  for (std::filesystem::directory_iterator entry(directory, code), end; !code && entry != end;
       entry.increment(code)) {
    const std::string name = entry->path().filename().string();
    if (name.ends_with(kSuffix) && !name.starts_with('.')) names.push_back(name);
  }
  if (code) return error(ErrorCode::kIo, "{}: {}", directory, code.message());
  std::sort(names.begin(), names.end());
  const auto is_model = [](const std::string& name) { return name.starts_with("model"); };
  if (std::any_of(names.begin(), names.end(), is_model)) {
    std::erase_if(names, [&](const std::string& name) {
      return !is_model(name) && name != "mtp.safetensors";
    });
  }
  return names;
}

struct IndexEntry {
  std::string tensor;
  std::string file;
};

Result<std::vector<IndexEntry>> read_index(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path));
  JsonDocument document;
  RETURN_IF_ERROR(document.parse(text, path));
  Status status;
  JsonFields top(document.root(), path, "", &status);
  auto map = top.object("weight_map");
  if (!map) top.fail("weight_map", "must map tensor names to file names");
  RETURN_IF_ERROR(status);
  std::vector<IndexEntry> entries;
  for (const auto& [key, value] : map->fields()) {
    const std::string file = map->text(key);
    RETURN_IF_ERROR(status);
    if (!file.ends_with(kSuffix) || file.find('/') != std::string::npos ||
        file.find("..") != std::string::npos || file.find('\0') != std::string::npos) {
      return invalid("{}: tensor {} is in {}: must be a plain *.safetensors name of the directory",
                     path, printable(key), printable(file));
    }
    entries.push_back({std::string(key), file});
  }
  return entries;
}

// The template inside tokenizer_config.json: a string, or a list of named ones.
Result<std::optional<std::string>> template_in_tokenizer_config(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kConfigLimit));
  JsonDocument document;
  RETURN_IF_ERROR(document.parse(text, path));
  Status status;
  JsonFields top(document.root(), path, "", &status);
  std::optional<std::string> chosen;
  const auto value = top.find("chat_template");
  if (value && value->is_array()) {
    for (const auto item : top.elements("chat_template", 64)) {
      JsonFields named(item, path, "chat_template[]", &status);
      const std::string name = named.text("name");
      const std::string body = named.text("template");
      if (name == "default") chosen = body;
    }
    if (!chosen) top.fail("chat_template", "must hold one named \"default\"");
  } else if (value) {
    chosen = top.text("chat_template");
  }
  RETURN_IF_ERROR(status);
  return chosen;
}

Result<std::optional<std::string>> read_if_there(const std::string& path) {
  if (!exists(path)) return std::optional<std::string>();
  ASSIGN_OR_RETURN(std::string text, read_text_file(path));
  return std::optional<std::string>(std::move(text));
}

}  // namespace

Result<std::string> read_text_file(const std::string& path, size_t limit) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    return error(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "{}: {}", path,
                 system_message(errno));
  }
  struct Close {
    int descriptor;
    ~Close() { ::close(descriptor); }
  } const close_later{descriptor};
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) {
    return error(ErrorCode::kIo, "{}: {}", path, system_message(errno));
  }
  if (!S_ISREG(status.st_mode)) return invalid("{}: not a regular file", path);
  const auto too_long = [&](size_t size) {
    return invalid("{}: {} bytes or more, the limit is {}", path, size, limit);
  };
  const auto size = static_cast<size_t>(status.st_size);
  if (size > limit) return too_long(size);
  std::string text;
  text.reserve(size);
  std::array<char, 65536> chunk;
  // Read to the end rather than to the size asked for: the file may be growing.
  while (true) {
    const ssize_t got = ::read(descriptor, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return error(ErrorCode::kIo, "{}: {}", path, system_message(errno));
    if (got == 0) return text;
    text.append(chunk.data(), static_cast<size_t>(got));
    if (text.size() > limit) return too_long(text.size());
  }
}

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const std::string& directory) {
  RETURN_IF_ERROR(check_directory(directory));
  std::unique_ptr<Checkpoint> out(new Checkpoint());
  out->directory_ = directory;
  const std::string index_path = join(directory, kIndexName);
  if (exists(index_path)) {
    RETURN_IF_ERROR(out->check_index(index_path));
    return out;
  }
  ASSIGN_OR_RETURN(const auto names, weight_files(directory));
  if (names.empty()) {
    return error(ErrorCode::kNotFound, "{}: no *.safetensors file: the weights are missing",
                 directory);
  }
  for (const std::string& name : names) RETURN_IF_ERROR(out->add_file(name));
  return out;
}

Status Checkpoint::add_file(const std::string& name) {
  ASSIGN_OR_RETURN(auto file, SafetensorsFile::open(join(directory_, name)));
  const size_t number = files_.size();
  for (const std::string& tensor : file->names()) {
    const auto [place, inserted] = tensors_.emplace(tensor, Place{file->find(tensor), number});
    if (!inserted) {
      return invalid("{}: tensor {} is also in {}", file->description(), printable(tensor),
                     files_[place->second.file]->description());
    }
  }
  files_.push_back(std::move(file));
  return {};
}

// Opens the files that the index names and checks that each holds what the index says.
Status Checkpoint::check_index(const std::string& index_path) {
  ASSIGN_OR_RETURN(const auto entries, read_index(index_path));
  if (entries.empty()) return invalid("{}: weight_map is empty", index_path);
  std::set<std::string> names;
  for (const IndexEntry& entry : entries) names.insert(entry.file);
  if (exists(join(directory_, "mtp.safetensors"))) names.insert("mtp.safetensors");
  for (const std::string& name : names) {
    if (!exists(join(directory_, name))) {
      return error(ErrorCode::kNotFound, "{}: names {}, which is not in {}", index_path,
                   printable(name), directory_);
    }
    RETURN_IF_ERROR(add_file(name));
  }
  for (const IndexEntry& entry : entries) {
    const auto found = tensors_.find(entry.tensor);
    const std::string path = join(directory_, entry.file);
    if (found == tensors_.end() || files_[found->second.file]->description() != path) {
      return invalid("{}: tensor {} should be in {} and is not", index_path,
                     printable(entry.tensor), path);
    }
  }
  return {};
}

const TensorView* Checkpoint::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second.view;
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> out;
  out.reserve(tensors_.size());
  for (const auto& [name, place] : tensors_) out.push_back(name);
  return out;
}

const SafetensorsFile& Checkpoint::file_of(const ByteRange& range) const {
  for (const auto& file : files_) {
    if (file->holds(range)) return *file;
  }
  UNREACHABLE();
}

void Checkpoint::drop(std::span<const ByteRange> ranges) const {
  for (const ByteRange& range : ranges) file_of(range).drop({&range, 1});
}

void Checkpoint::advise(std::span<const ByteRange> ranges, Advice advice) const {
  for (const ByteRange& range : ranges) file_of(range).advise({&range, 1}, advice);
}

size_t Checkpoint::weight_bytes() const {
  size_t bytes = 0;
  for (const auto& file : files_) bytes += file->file_bytes();
  return bytes;
}

Result<CheckpointTexts> read_checkpoint_texts(const std::string& directory) {
  RETURN_IF_ERROR(check_directory(directory));
  CheckpointTexts texts;
  ASSIGN_OR_RETURN(texts.config_json, read_text_file(join(directory, "config.json"), kConfigLimit));
  ASSIGN_OR_RETURN(texts.tokenizer_json, read_if_there(join(directory, "tokenizer.json")));
  ASSIGN_OR_RETURN(texts.chat_template, read_if_there(join(directory, "chat_template.jinja")));
  ASSIGN_OR_RETURN(texts.generation_config_json,
                   read_if_there(join(directory, "generation_config.json")));
  const std::string tokenizer_config = join(directory, "tokenizer_config.json");
  if (!texts.chat_template && exists(tokenizer_config)) {
    ASSIGN_OR_RETURN(texts.chat_template, template_in_tokenizer_config(tokenizer_config));
  }
  return texts;
}

}  // namespace flashlane::format
