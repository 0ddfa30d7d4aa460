// Synthetic weights: parsing the specification, and making every planned tensor by threads that
// take chunks of rows from one counter. A value depends on (seed, name, element) alone, so neither
// the thread count nor the order of work can change it.
#include "model/synth.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <thread>

#include "base/keyed_random.h"
#include "model/ngram.h"
#include "model/synth_plan.h"
#include "model/weight_format.h"
#include "tensor/affine.h"

namespace flashlane::model {
namespace {

constexpr int kMostLayers = 1024;
// Rows of one unit of work: enough values to outweigh taking it.
constexpr int64_t kChunkValues = 1 << 20;

float drawn_value(uint64_t hash, const ValueRule& rule, uint64_t index) {
  // 24 bits: the product and the difference are exact in f32.
  const auto bits = static_cast<float>(splitmix64(hash + index) >> 40);
  const float r = bits * 0x1.0p-23F - 1.0F;
  return round_to_bf16(rule.scale * r + rule.offset);
}

template <typename T>
bool parse_number(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  return failure == std::errc{} && stop == end && !text.empty();
}

Status parse_format(std::string_view value, SynthSpec& spec) {
  if (value == "fp8" || value == "nvfp4") {
    return error(ErrorCode::kUnsupported, "synth format={}: this format is served on CUDA only",
                 value);
  }
  if (value == "bf16") return {};
  const auto affine = parse_affine_name(value);
  if (!affine) {
    return invalid(
        "synth format={}: it may be bf16, q4g32, q4g64, q6g64, q8g64 or another q<bits>g<group> of "
        "2, 3, 4, 5, 6, 8 bits and groups of 32, 64, 128; fp8 and nvfp4 on CUDA",
        value);
  }
  spec.bits = affine->bits;
  spec.group = affine->group;
  return {};
}

Status parse_entry(std::string_view key, std::string_view value, SynthSpec& spec) {
  if (key == "layers") {
    if (!parse_number(value, spec.layers) || spec.layers < 1 || spec.layers > kMostLayers) {
      return invalid("synth layers={}: it may be 1 to {}", value, kMostLayers);
    }
    return {};
  }
  if (key == "format") return parse_format(value, spec);
  if (key == "ngram") {
    if (value != "stored") return invalid("synth ngram={}: it may be stored, or absent", value);
    spec.store_ngram = true;
    return {};
  }
  if (key == "seed") {
    if (!parse_number(value, spec.seed)) {
      return invalid("synth seed={}: it may be a decimal number of at most 64 bits", value);
    }
    return {};
  }
  return invalid("synth key \"{}\" is unknown: keys are layers, format, ngram, seed", key);
}

class SyntheticSource final : public ComputedTableSource {
 public:
  SyntheticSource(SynthPlan plan, std::string description)
      : plan_(std::move(plan)), description_(std::move(description)) {}

  // False when memory can't be had.
  bool allocate();
  void add_hash_constants(const ModelShape& shape);
  void fill(uint64_t seed, int threads, const std::function<void(size_t, size_t)>& progress);

  const TensorView* find(std::string_view name) const override {
    const auto found = views_.find(name);
    return found == views_.end() ? nullptr : &found->second;
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& entry : views_) all.push_back(entry.first);
    return all;
  }
  std::string description() const override { return description_; }
  const ComputedTable* computed_table(int layer) const override {
    for (const PlannedTable& table : plan_.tables) {
      if (table.layer == layer) return &table.table;
    }
    return nullptr;
  }

 private:
  struct Free {
    void operator()(std::byte* pointer) const noexcept { std::free(pointer); }
  };
  using Block = std::unique_ptr<std::byte, Free>;
  struct Chunk {
    size_t tensor = 0;
    int64_t first_row = 0;
    int64_t row_count = 0;
  };

  std::byte* new_block(size_t bytes);
  void add_view(const std::string& name, DType dtype, std::vector<int64_t> shape,
                const std::byte* data);
  void fill_chunk(const Chunk& chunk, uint64_t seed) const;

  SynthPlan plan_;
  std::string description_;
  std::vector<Block> blocks_;
  std::vector<std::byte*> tensor_data_;  // per planned tensor: values or codes, scales, biases
  std::map<std::string, TensorView, std::less<>> views_;
};

// Not zeroed: every byte is written, by the thread that makes it.
std::byte* SyntheticSource::new_block(size_t bytes) {
  const size_t padded = (bytes + 63) / 64 * 64;
  auto* block = static_cast<std::byte*>(std::aligned_alloc(64, padded));
  if (block != nullptr) blocks_.emplace_back(block);
  return block;
}

void SyntheticSource::add_view(const std::string& name, DType dtype, std::vector<int64_t> shape,
                               const std::byte* data) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::copy(shape.begin(), shape.end(), view.shape.begin());
  views_.emplace(name, view);
}

bool SyntheticSource::allocate() {
  for (const PlannedTensor& tensor : plan_.tensors) {
    std::byte* data = new_block(tensor.bytes());
    if (data == nullptr) return false;
    tensor_data_.push_back(data);
    if (tensor.bits == 0) {
      add_view(tensor.name, DType::kBf16, tensor.shape, data);
      continue;
    }
    constexpr std::string_view kSuffix = ".weight";
    std::string path = tensor.name;
    if (path.ends_with(kSuffix)) path.resize(path.size() - kSuffix.size());
    std::vector<int64_t> words = tensor.shape;
    words.back() = tensor.cols() * tensor.bits / 32;
    std::vector<int64_t> groups = tensor.shape;
    groups.back() = tensor.cols() / tensor.group;
    const std::byte* scales = data + tensor.data_bytes();
    add_view(path + ".weight", DType::kU32, words, data);
    add_view(path + ".scales", DType::kBf16, groups, scales);
    add_view(path + ".biases", DType::kBf16, groups, scales + tensor.scale_bytes());
  }
  return true;
}

// The three integer buffers that real checkpoints carry beside each table.
void SyntheticSource::add_hash_constants(const ModelShape& shape) {
  for (size_t rank = 0; rank < shape.ple_layers.size(); ++rank) {
    const NgramHash hash = make_ngram_hash(shape, static_cast<int>(rank));
    const std::string path = "model.language_model.layers." +
                             std::to_string(shape.ple_layers[rank]) + ".ple.ple_embedding.";
    const auto add = [&](const char* name, const std::vector<int64_t>& values) {
      std::byte* data = new_block(values.size() * sizeof(int64_t));
      CHECK(data != nullptr);
      std::memcpy(data, values.data(), values.size() * sizeof(int64_t));
      add_view(path + name, DType::kI64, {static_cast<int64_t>(values.size())}, data);
    };
    add("layer_multipliers", hash.multipliers);
    add("ngram_heads_vocab_sizes", hash.moduli);
    add("ngram_heads_offsets", hash.offsets);
  }
}

void SyntheticSource::fill_chunk(const Chunk& chunk, uint64_t seed) const {
  const PlannedTensor& tensor = plan_.tensors[chunk.tensor];
  const uint64_t hash = fnv1a64(tensor.name) ^ seed;
  const ValueRule rule = value_rule(tensor.name, tensor.cols());
  const auto cols = static_cast<size_t>(tensor.cols());
  std::byte* data = tensor_data_[chunk.tensor];
  const auto groups = tensor.bits == 0 ? size_t{0} : cols / static_cast<size_t>(tensor.group);
  const size_t row_bytes =
      tensor.bits == 0 ? cols * 2 : cols * static_cast<size_t>(tensor.bits) / 8;
  auto* scales = reinterpret_cast<uint16_t*>(data + tensor.data_bytes());
  uint16_t* biases = scales + static_cast<size_t>(tensor.rows()) * groups;
  std::vector<float> values(cols);
  std::vector<uint8_t> codes(cols);
  for (int64_t i = chunk.first_row; i < chunk.first_row + chunk.row_count; ++i) {
    const auto row = static_cast<size_t>(i);
    for (size_t k = 0; k < cols; ++k) values[k] = drawn_value(hash, rule, row * cols + k);
    std::byte* out = data + row * row_bytes;
    if (tensor.bits == 0) {
      auto* words = reinterpret_cast<uint16_t*>(out);
      for (size_t k = 0; k < cols; ++k) words[k] = float_to_bf16(values[k]);
      continue;
    }
    affine_quantize_row(values, tensor.bits, tensor.group, codes, {scales + row * groups, groups},
                        {biases + row * groups, groups});
    affine_pack(codes, tensor.bits, {out, row_bytes});
  }
}

void SyntheticSource::fill(uint64_t seed, int threads,
                           const std::function<void(size_t, size_t)>& progress) {
  std::vector<Chunk> chunks;
  for (size_t t = 0; t < plan_.tensors.size(); ++t) {
    const PlannedTensor& tensor = plan_.tensors[t];
    const int64_t step = std::max<int64_t>(1, kChunkValues / tensor.cols());
    for (int64_t row = 0; row < tensor.rows(); row += step) {
      chunks.push_back({t, row, std::min(step, tensor.rows() - row)});
    }
  }
  std::atomic<size_t> next{0};
  std::atomic<size_t> bytes_done{0};
  const auto work = [&] {
    for (size_t i = next.fetch_add(1); i < chunks.size(); i = next.fetch_add(1)) {
      fill_chunk(chunks[i], seed);
      const PlannedTensor& tensor = plan_.tensors[chunks[i].tensor];
      const size_t row_bytes = tensor.bytes() / static_cast<size_t>(tensor.rows());
      const size_t bytes = row_bytes * static_cast<size_t>(chunks[i].row_count);
      const size_t done = bytes_done.fetch_add(bytes) + bytes;
      if (progress) progress(done, plan_.bytes);
    }
  };
  std::vector<std::jthread> helpers;
  for (int i = 1; i < threads; ++i) helpers.emplace_back(work);
  work();
}

// MemAvailable in bytes; 0 when the system does not say.
size_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  size_t kibibytes = 0;
  std::string unit;
  while (file >> key >> kibibytes) {
    if (key == "MemAvailable:") return kibibytes * 1024;
    std::getline(file, unit);
  }
  return 0;
}

std::string describe_spec(const SynthSpec& spec) {
  std::string text = "synth:" + spec.shape;
  if (spec.layers != 0) text += fmt::format(",layers={}", spec.layers);
  if (spec.bits != 0) text += fmt::format(",format=q{}g{}", spec.bits, spec.group);
  if (spec.store_ngram) text += ",ngram=stored";
  if (spec.seed != 0) text += fmt::format(",seed={}", spec.seed);
  return text;
}

}  // namespace

Result<SynthSpec> parse_synth(std::string_view text) {
  constexpr std::array<std::string_view, 3> kShapes = {"tiny", "nano", "true"};
  SynthSpec spec;
  std::vector<std::string_view> seen;
  size_t start = 0;
  for (bool first = true; start <= text.size(); first = false) {
    const size_t comma = std::min(text.find(',', start), text.size());
    const std::string_view entry = text.substr(start, comma - start);
    start = comma + 1;
    if (first) {
      if (std::find(kShapes.begin(), kShapes.end(), entry) == kShapes.end()) {
        return invalid("synth shape \"{}\" is unknown: it may be tiny, nano or true", entry);
      }
      spec.shape = entry;
      continue;
    }
    const size_t equals = std::min(entry.find('='), entry.size());
    const std::string_view key = entry.substr(0, equals);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      return invalid("synth key \"{}\" is given twice", key);
    }
    seen.push_back(key);
    RETURN_IF_ERROR(parse_entry(key, entry.substr(std::min(equals + 1, entry.size())), spec));
  }
  return spec;
}

Result<size_t> synth_bytes(const SynthSpec& spec) {
  ASSIGN_OR_RETURN(const ModelShape shape, synthetic_shape(spec.shape, spec.layers));
  return make_synth_plan(spec, shape).bytes;
}

Result<std::shared_ptr<const format::TensorSource>> make_synthetic(
    const SynthSpec& spec, const ModelShape& shape, int threads,
    const std::function<void(size_t, size_t)>& progress) {
  CHECK_GE(threads, 1);
  SynthPlan plan = make_synth_plan(spec, shape);
  const std::string description = describe_spec(spec);
  const size_t needed = plan.bytes;
  const size_t available = available_memory();
  if (available != 0 && needed > available) {
    return error(ErrorCode::kNoCapacity,
                 "{}: its weights need {} bytes, but {} bytes of memory are available", description,
                 needed, available);
  }
  auto source = std::make_shared<SyntheticSource>(std::move(plan), description);
  if (!source->allocate()) {
    return error(ErrorCode::kNoCapacity, "{}: its weights need {} bytes, which can't be allocated",
                 description, needed);
  }
  source->add_hash_constants(shape);
  source->fill(spec.seed, threads, progress);
  return std::shared_ptr<const format::TensorSource>(std::move(source));
}

float synthetic_value(std::string_view name, uint64_t seed, int64_t last_dim, uint64_t index) {
  return drawn_value(fnv1a64(name) ^ seed, value_rule(name, last_dim), index);
}

}  // namespace flashlane::model
