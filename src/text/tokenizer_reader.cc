// The order matters: vocabulary before merges, both before added tokens, tables last.
#include "text/tokenizer_reader.h"

#include <algorithm>
#include <array>
#include <utility>

#include "text/byte_level.h"
#include "text/utf8.h"

namespace flashlane::text {
namespace {

namespace dom = simdjson::dom;

constexpr int64_t kMaxIds = int64_t{1} << 22;
constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

template <typename... Args>
Error wrong(fmt::format_string<Args...> format, Args&&... args) {
  return invalid("tokenizer.json: {}", fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
Error unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return error(ErrorCode::kUnsupported, "tokenizer.json: {} is not supported",
               fmt::format(format, std::forward<Args>(args)...));
}

bool find(dom::object object, std::string_view key, dom::element& value) {
  return object[key].get(value) == simdjson::SUCCESS && !value.is_null();
}

std::string_view string_or(dom::object object, std::string_view key, std::string_view absent) {
  std::string_view value;
  return object[key].get(value) == simdjson::SUCCESS ? value : absent;
}

// Absent and null give `absent`; anything but a boolean is refused.
Result<bool> read_flag(dom::object object, std::string_view key, bool absent) {
  dom::element element;
  if (!find(object, key, element)) return absent;
  bool value = false;
  if (element.get(value) != simdjson::SUCCESS) return wrong("{} is not true or false", key);
  return value;
}

// Values come back in the message as short JSON.
std::string show(dom::element element) {
  std::string text = simdjson::minify(element);
  constexpr size_t kShown = 80;
  if (text.size() > kShown) {
    size_t end = kShown;
    while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
    text = text.substr(0, end) + "…";
  }
  return text;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::parse(std::string_view tokenizer_json) {
  return TokenizerReader().read(tokenizer_json);
}

Result<std::unique_ptr<Tokenizer>> TokenizerReader::read(std::string_view json) {
  if (json.size() > kMaxFileBytes) {
    return wrong("{} bytes, the limit is {}", json.size(), kMaxFileBytes);
  }
  dom::parser parser;
  dom::element root;
  if (const auto code = parser.parse(json.data(), json.size()).get(root)) {
    return wrong("not valid JSON: {}", simdjson::error_message(code));
  }
  dom::object object;
  if (root.get(object) != simdjson::SUCCESS) return wrong("the file is not an object");
  tokenizer_.reset(new Tokenizer());
  RETURN_IF_ERROR(read_root(object));
  return std::move(tokenizer_);
}

Status TokenizerReader::read_root(dom::object root) {
  for (const std::string_view key : {"truncation", "padding"}) {
    dom::element element;
    if (find(root, key, element)) return unsupported("{} {}", key, show(element));
  }
  RETURN_IF_ERROR(read_normalizer(root));
  RETURN_IF_ERROR(read_pre_tokenizer(root));
  RETURN_IF_ERROR(read_ends(root));
  RETURN_IF_ERROR(read_model(root));
  RETURN_IF_ERROR(read_added(root));
  return build_tables();
}

Status TokenizerReader::read_normalizer(dom::object root) {
  dom::element element;
  if (!find(root, "normalizer", element)) return {};
  dom::object normalizer;
  if (element.get(normalizer) != simdjson::SUCCESS) return wrong("normalizer is not an object");
  if (string_or(normalizer, "type", "") != "NFC")
    return unsupported("normalizer {}", show(element));
  tokenizer_->normalize_nfc_ = true;
  return {};
}

Status TokenizerReader::read_pre_tokenizer(dom::object root) {
  dom::element element;
  if (!find(root, "pre_tokenizer", element)) return wrong("pre_tokenizer is missing");
  dom::object step;
  if (element.get(step) != simdjson::SUCCESS) return wrong("pre_tokenizer is not an object");
  const std::string_view type = string_or(step, "type", "");
  if (type == "ByteLevel") return read_byte_level(step, true);
  dom::array steps;
  if (type != "Sequence" || step["pretokenizers"].get(steps) != simdjson::SUCCESS) {
    return unsupported("pre_tokenizer {}", show(element));
  }
  dom::object first;
  dom::object second;
  if (steps.size() != 2 || steps.at(0).get(first) != simdjson::SUCCESS ||
      steps.at(1).get(second) != simdjson::SUCCESS || string_or(first, "type", "") != "Split" ||
      string_or(second, "type", "") != "ByteLevel") {
    return unsupported("pre_tokenizer {} (only Split, then ByteLevel)", show(element));
  }
  RETURN_IF_ERROR(read_split(first));
  return read_byte_level(second, false);
}

Status TokenizerReader::read_split(dom::object step) {
  const std::string_view behavior = string_or(step, "behavior", "");
  if (behavior != "Isolated") return unsupported("pre_tokenizer Split behavior '{}'", behavior);
  ASSIGN_OR_RETURN(const bool invert, read_flag(step, "invert", false));
  if (invert) return unsupported("pre_tokenizer Split invert");
  std::string_view regex;
  if (step["pattern"]["Regex"].get(regex) != simdjson::SUCCESS) {
    return unsupported("pre_tokenizer Split pattern other than Regex");
  }
  auto pattern = SplitPattern::compile(regex);
  if (!pattern) return wrong("{}", pattern.error().message);
  tokenizer_->pattern_ = std::move(pattern).value();
  return {};
}

Status TokenizerReader::read_byte_level(dom::object step, bool alone) {
  ASSIGN_OR_RETURN(const bool prefix_space, read_flag(step, "add_prefix_space", true));
  if (prefix_space) return unsupported("pre_tokenizer ByteLevel add_prefix_space");
  ASSIGN_OR_RETURN(const bool use_regex, read_flag(step, "use_regex", true));
  if (!use_regex) return {};
  if (!alone) return unsupported("pre_tokenizer ByteLevel use_regex after Split");
  ASSIGN_OR_RETURN(tokenizer_->pattern_, SplitPattern::compile(kGpt2Pattern));
  return {};
}

Status TokenizerReader::read_ends(dom::object root) {
  dom::element element;
  if (find(root, "post_processor", element) &&
      string_or(element.is_object() ? dom::object(element) : dom::object(), "type", "") !=
          "ByteLevel") {
    return unsupported("post_processor {}", show(element));
  }
  if (!find(root, "decoder", element)) return wrong("decoder is missing");
  dom::object decoder;
  if (element.get(decoder) != simdjson::SUCCESS || string_or(decoder, "type", "") != "ByteLevel") {
    return unsupported("decoder {}", show(element));
  }
  return {};
}

Status TokenizerReader::read_model(dom::object root) {
  dom::object model;
  if (root["model"].get(model) != simdjson::SUCCESS) return wrong("model is missing");
  const std::string_view type = string_or(model, "type", "");
  if (type != "BPE") return unsupported("model type '{}'", type);
  dom::element element;
  if (find(model, "dropout", element)) {
    double dropout = 0;
    if (element.get(dropout) != simdjson::SUCCESS || dropout != 0) {
      return unsupported("model dropout {}", show(element));
    }
  }
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (find(model, key, element) && !string_or(model, key, "?").empty()) {
      return unsupported("model {} {}", key, show(element));
    }
  }
  ASSIGN_OR_RETURN(const bool byte_fallback, read_flag(model, "byte_fallback", false));
  if (byte_fallback) return unsupported("model byte_fallback");
  ASSIGN_OR_RETURN(tokenizer_->ignore_merges_, read_flag(model, "ignore_merges", false));
  dom::object vocabulary;
  if (model["vocab"].get(vocabulary) != simdjson::SUCCESS) return wrong("model vocab is missing");
  RETURN_IF_ERROR(read_vocabulary(vocabulary));
  dom::array merges;
  if (model["merges"].get(merges) != simdjson::SUCCESS) return wrong("model merges is missing");
  return read_merges(merges);
}

Result<size_t> TokenizerReader::claim_id(std::string_view what, int64_t id) {
  if (id < 0 || id >= kMaxIds) {
    return wrong("{} has id {}, the limit is {}", what, id, kMaxIds - 1);
  }
  const auto at = static_cast<size_t>(id);
  if (at >= entries_.size()) entries_.resize(at + 1);
  if ((entries_[at].flags & Tokenizer::kDefined) != 0) {
    return wrong("id {} is given to two tokens, the second is {}", id, what);
  }
  entries_[at].flags = Tokenizer::kDefined;
  return at;
}

Status TokenizerReader::read_vocabulary(dom::object vocabulary) {
  for (const auto& [spelling, element] : vocabulary) {
    const std::string what = fmt::format("vocab token '{}'", spelling);
    int64_t id = 0;
    if (element.get(id) != simdjson::SUCCESS) {
      return wrong("{} has the id {}, which is not an integer", what, show(element));
    }
    if (spelling.empty()) return wrong("vocab has an empty token, id {}", id);
    ASSIGN_OR_RETURN(const size_t at, claim_id(what, id));
    if (!by_spelling_.emplace(spelling, static_cast<int32_t>(id)).second) {
      return wrong("{} is listed twice", what);
    }
    auto bytes = byte_level_bytes(spelling);
    entries_[at].byte_level = bytes.has_value();
    entries_[at].bytes = bytes ? std::move(*bytes) : std::string(spelling);
  }
  return {};
}

Status TokenizerReader::read_merges(dom::array merges) {
  const size_t count = merges.size() < 0xFFFFFF ? merges.size() : [&] {
    size_t counted = 0;  // simdjson's size saturates
    for ([[maybe_unused]] const dom::element element : merges) ++counted;
    return counted;
  }();
  MergeTable table(count);
  size_t rank = 0;
  for (const dom::element element : merges) RETURN_IF_ERROR(read_merge(element, rank++, table));
  merges_ = std::move(table);
  return {};
}

Status TokenizerReader::read_merge(dom::element element, size_t rank, MergeTable& table) {
  std::string_view left;
  std::string_view right;
  std::string_view line;
  dom::array pair;
  if (element.get(line) == simdjson::SUCCESS) {
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      return wrong("merge {} is {}, not two tokens with one space", rank, show(element));
    }
    left = line.substr(0, space);
    right = line.substr(space + 1);
  } else if (element.get(pair) != simdjson::SUCCESS || pair.size() != 2 ||
             pair.at(0).get(left) != simdjson::SUCCESS ||
             pair.at(1).get(right) != simdjson::SUCCESS) {
    return wrong("merge {} is {}, not two tokens", rank, show(element));
  }
  const std::string merged = std::string(left) + std::string(right);
  std::array<int32_t, 3> ids{};
  const std::array<std::string_view, 3> names{left, right, merged};
  for (size_t i = 0; i < names.size(); ++i) {
    const auto found = by_spelling_.find(names[i]);
    if (found == by_spelling_.end()) {
      return wrong("merge {} ('{}' and '{}') needs the token '{}', which vocab lacks", rank, left,
                   right, names[i]);
    }
    ids[i] = found->second;
  }
  table.insert(ids[0], ids[1], {static_cast<int32_t>(rank), ids[2]});
  return {};
}

Status TokenizerReader::read_added(dom::object root) {
  dom::element element;
  if (!find(root, "added_tokens", element)) return {};
  dom::array tokens;
  if (element.get(tokens) != simdjson::SUCCESS) return wrong("added_tokens is not a list");
  for (const dom::element item : tokens) {
    dom::object token;
    if (item.get(token) != simdjson::SUCCESS)
      return wrong("added token {} is not an object", show(item));
    RETURN_IF_ERROR(read_added_token(token));
  }
  return {};
}

Status TokenizerReader::read_added_token(dom::object token) {
  std::string_view content;
  int64_t id = 0;
  if (token["content"].get(content) != simdjson::SUCCESS || content.empty()) {
    return wrong("an added token has no content");
  }
  const std::string what = fmt::format("added token '{}'", content);
  if (token["id"].get(id) != simdjson::SUCCESS) return wrong("{} has no integer id", what);
  for (const std::string_view key : {"lstrip", "rstrip", "single_word"}) {
    ASSIGN_OR_RETURN(const bool set, read_flag(token, key, false));
    if (set) return unsupported("{} with {}", what, key);
  }
  ASSIGN_OR_RETURN(const bool special, read_flag(token, "special", false));
  ASSIGN_OR_RETURN(const bool normalized, read_flag(token, "normalized", !special));
  if (normalized) return unsupported("{} with normalized", what);
  if (!tokenizer_->added_by_content_.emplace(content, static_cast<int32_t>(id)).second) {
    return wrong("{} is listed twice", what);
  }
  const auto known = by_spelling_.find(content);
  size_t at = static_cast<size_t>(id);
  if (known == by_spelling_.end()) {
    ASSIGN_OR_RETURN(at, claim_id(what, id));
  } else if (known->second != id) {
    return wrong("{} has id {}, but vocab gives it {}", what, id, known->second);
  }
  Entry& entry = entries_[at];
  entry.bytes = content;
  entry.byte_level = false;
  entry.flags = static_cast<uint8_t>(Tokenizer::kDefined | Tokenizer::kAdded |
                                     (special ? Tokenizer::kSpecial : 0));
  tokenizer_->added_.insert(content, static_cast<int32_t>(id));
  return {};
}

Status TokenizerReader::build_tables() {
  std::array<int32_t, 256> byte_ids{};
  for (int byte = 0; byte < 256; ++byte) {
    std::string spelling;
    append_utf8(spelling, byte_level_character(static_cast<unsigned char>(byte)));
    const auto found = by_spelling_.find(spelling);
    if (found == by_spelling_.end()) return wrong("vocab has no token for the byte {:#04x}", byte);
    byte_ids[static_cast<size_t>(byte)] = found->second;
  }
  Tokenizer& tokenizer = *tokenizer_;
  tokenizer.bpe_ = Bpe(byte_ids, std::move(merges_));
  for (const Entry& entry : entries_) {
    tokenizer.offsets_.push_back(tokenizer.bytes_.size());
    tokenizer.bytes_ += entry.bytes;
    tokenizer.flags_.push_back(entry.flags);
  }
  tokenizer.offsets_.push_back(tokenizer.bytes_.size());
  if (!tokenizer.ignore_merges_) return {};
  for (size_t id = 0; id < entries_.size(); ++id) {
    if (!entries_[id].byte_level) continue;
    tokenizer.words_.emplace(tokenizer.token_bytes(static_cast<int32_t>(id)),
                             static_cast<int32_t>(id));
  }
  return {};
}

}  // namespace flashlane::text
