// The source of a synthetic model: one reservation of address space in which each tensor begins on
// a page of its own. Rows are made when they are wanted, by threads that take chunks of rows from
// one counter, and their pages go when they are dropped, so memory holds what is in use and nothing
// else. A value depends on (seed, name, element) alone, so neither the thread count nor the order
// of work can change it.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <system_error>
#include <thread>

#include "base/check.h"
#include "base/int_math.h"
#include "base/keyed_random.h"
#include "format/page_ledger.h"
#include "model/ngram.h"
#include "model/synth.h"
#include "model/synth_plan.h"
#include "model/synth_values.h"
#include "tensor/affine.h"

namespace flashlane::model {
namespace {

// Values of one unit of work: enough to outweigh taking it, few enough to share a part of a bank.
constexpr int64_t kChunkValues = 1 << 18;

class SyntheticSource final : public ComputedTableSource {
 public:
  SyntheticSource(SynthPlan plan, const SynthSpec& spec, int threads)
      : plan_(std::move(plan)),
        description_(describe_synth(spec)),
        seed_(spec.seed),
        threads_(threads) {}
  ~SyntheticSource() override {
    if (region_ != nullptr) ::munmap(region_, region_bytes_);
  }
  SyntheticSource(const SyntheticSource&) = delete;
  SyntheticSource& operator=(const SyntheticSource&) = delete;

  // Takes addresses, no memory.
  Status reserve();
  void add_hash_constants(const ModelShape& shape);

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
  std::optional<kernels::DrawnRows> drawn_rows(const kernels::Matrix& matrix) const override;
  void want(std::span<const format::ByteRange> ranges) const override;
  void drop(std::span<const format::ByteRange> ranges) const override;

 private:
  // Rows of one planned tensor.
  struct Chunk {
    size_t tensor = 0;
    int64_t first_row = 0;
    int64_t row_count = 0;
  };
  struct Stored {  // rows as they are stored
    size_t row_bytes = 0;
    size_t groups = 0;
  };

  static Stored stored(const PlannedTensor& tensor);
  kernels::DrawRule rule_of(const PlannedTensor& tensor) const;
  bool in_region(const format::ByteRange& range) const;
  void add_view(const std::string& name, DType dtype, std::vector<int64_t> shape,
                const std::byte* data);
  void add_views(const PlannedTensor& tensor, const std::byte* data);
  // The rows of the range's tensor that it touches; none when it lies in scales or biases.
  Chunk rows_of(const format::ByteRange& range) const;
  // Takes the rows' bytes out of the ledger of what was given back.
  void need(const Chunk& rows) const;
  void make(const Chunk& chunk) const;

  SynthPlan plan_;
  std::string description_;
  uint64_t seed_;
  int threads_;
  std::byte* region_ = nullptr;
  size_t region_bytes_ = 0;
  std::vector<size_t> offsets_;        // per planned tensor: values or codes, scales, biases
  mutable format::PageLedger ledger_;  // of the region
  std::vector<std::vector<int64_t>> constants_;
  std::map<std::string, TensorView, std::less<>> views_;
};

Status SyntheticSource::reserve() {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  for (const PlannedTensor& tensor : plan_.tensors) {
    offsets_.push_back(region_bytes_);
    region_bytes_ += round_up(tensor.bytes(), page);
  }
  void* region = ::mmap(nullptr, region_bytes_, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) {
    return error(ErrorCode::kNoCapacity, "{}: {} bytes of addresses can't be reserved: {}",
                 description_, region_bytes_, std::generic_category().message(errno));
  }
  region_ = static_cast<std::byte*>(region);
  // Huge pages would hold more than was asked for.
  (void)::madvise(region, region_bytes_, MADV_NOHUGEPAGE);
  ledger_ = format::PageLedger({region_, region_bytes_});
  for (size_t t = 0; t < plan_.tensors.size(); ++t) {
    const size_t end = t + 1 < offsets_.size() ? offsets_[t + 1] : region_bytes_;
    ledger_.drop(offsets_[t] + plan_.tensors[t].bytes(), end);
    add_views(plan_.tensors[t], region_ + offsets_[t]);
  }
  return {};
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

void SyntheticSource::add_views(const PlannedTensor& tensor, const std::byte* data) {
  if (tensor.bits == 0) {
    add_view(tensor.name, DType::kBf16, tensor.shape, data);
    return;
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

// The three integer buffers that real checkpoints carry beside each table.
void SyntheticSource::add_hash_constants(const ModelShape& shape) {
  for (size_t rank = 0; rank < shape.ple_layers.size(); ++rank) {
    const NgramHash hash = make_ngram_hash(shape, static_cast<int>(rank));
    const std::string path = "model.language_model.layers." +
                             std::to_string(shape.ple_layers[rank]) + ".ple.ple_embedding.";
    const auto add = [&](const char* name, const std::vector<int64_t>& values) {
      const std::vector<int64_t>& kept = constants_.emplace_back(values);
      add_view(path + name, DType::kI64, {static_cast<int64_t>(kept.size())},
               reinterpret_cast<const std::byte*>(kept.data()));
    };
    add("layer_multipliers", hash.multipliers);
    add("ngram_heads_vocab_sizes", hash.moduli);
    add("ngram_heads_offsets", hash.offsets);
  }
}

SyntheticSource::Stored SyntheticSource::stored(const PlannedTensor& tensor) {
  const auto cols = static_cast<size_t>(tensor.cols());
  if (tensor.bits == 0) return {cols * 2, 0};
  return {cols * static_cast<size_t>(tensor.bits) / 8, cols / static_cast<size_t>(tensor.group)};
}

bool SyntheticSource::in_region(const format::ByteRange& range) const {
  return range.data >= region_ && range.data < region_ + region_bytes_;
}

SyntheticSource::Chunk SyntheticSource::rows_of(const format::ByteRange& range) const {
  const auto begin = static_cast<size_t>(range.data - region_);
  const auto after = std::upper_bound(offsets_.begin(), offsets_.end(), begin);
  const auto index = static_cast<size_t>(after - offsets_.begin() - 1);
  const PlannedTensor& tensor = plan_.tensors[index];
  const size_t offset = begin - offsets_[index];
  CHECK_LE(offset + range.bytes, tensor.bytes());
  if (range.bytes == 0 || offset >= tensor.data_bytes()) return {index, 0, 0};
  const size_t row_bytes = stored(tensor).row_bytes;
  const auto first = static_cast<int64_t>(offset / row_bytes);
  const auto end = static_cast<int64_t>(div_ceil(offset + range.bytes, row_bytes));
  return {index, first, std::min(end, tensor.rows()) - first};
}

void SyntheticSource::need(const Chunk& rows) const {
  const PlannedTensor& tensor = plan_.tensors[rows.tensor];
  const auto [row_bytes, groups] = stored(tensor);
  const auto first = static_cast<size_t>(rows.first_row);
  const auto end = first + static_cast<size_t>(rows.row_count);
  const size_t scales = offsets_[rows.tensor] + tensor.data_bytes();
  ledger_.need(offsets_[rows.tensor] + first * row_bytes, offsets_[rows.tensor] + end * row_bytes);
  for (const size_t at : {scales, scales + tensor.scale_bytes()}) {
    ledger_.need(at + first * groups * 2, at + end * groups * 2);
  }
}

void SyntheticSource::want(std::span<const format::ByteRange> ranges) const {
  std::vector<Chunk> chunks;
  int64_t values = 0;
  for (const format::ByteRange& range : ranges) {
    if (!in_region(range)) continue;  // a hash constant
    const Chunk rows = rows_of(range);
    need(rows);
    const int64_t cols = plan_.tensors[rows.tensor].cols();
    const int64_t step = std::max<int64_t>(1, kChunkValues / cols);
    for (int64_t row = 0; row < rows.row_count; row += step) {
      chunks.push_back({rows.tensor, rows.first_row + row, std::min(step, rows.row_count - row)});
    }
    values += rows.row_count * cols;
  }
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next.fetch_add(1); i < chunks.size(); i = next.fetch_add(1)) make(chunks[i]);
  };
  std::vector<std::jthread> helpers;
  const int useful = static_cast<int>(std::min<int64_t>(threads_, values / kChunkValues));
  for (int i = 1; i < useful; ++i) helpers.emplace_back(work);
  work();
}

void SyntheticSource::drop(std::span<const format::ByteRange> ranges) const {
  for (const format::ByteRange& range : ranges) {
    if (!in_region(range)) continue;
    const auto begin = static_cast<size_t>(range.data - region_);
    ledger_.drop(begin, begin + range.bytes);
  }
}

kernels::DrawRule SyntheticSource::rule_of(const PlannedTensor& tensor) const {
  const ValueRule values = value_rule(tensor.name, tensor.cols());
  return {fnv1a64(tensor.name) ^ seed_, values.scale, values.offset};
}

std::optional<kernels::DrawnRows> SyntheticSource::drawn_rows(const kernels::Matrix& matrix) const {
  const format::ByteRange first{matrix.data, matrix.row_bytes()};
  if (!in_region(first)) return std::nullopt;
  const Chunk rows = rows_of(first);
  const PlannedTensor& tensor = plan_.tensors[rows.tensor];
  CHECK_EQ(rows.row_count, 1);
  CHECK_EQ(matrix.cols, tensor.cols());
  CHECK_EQ(matrix.bits, tensor.bits);
  CHECK_EQ(matrix.group, tensor.group);
  return kernels::DrawnRows{rule_of(tensor), rows.first_row};
}

void SyntheticSource::make(const Chunk& chunk) const {
  const PlannedTensor& tensor = plan_.tensors[chunk.tensor];
  const kernels::DrawRule rule = rule_of(tensor);
  const auto cols = static_cast<size_t>(tensor.cols());
  const auto [row_bytes, groups] = stored(tensor);
  std::byte* data = region_ + offsets_[chunk.tensor];
  auto* scales = reinterpret_cast<uint16_t*>(data + tensor.data_bytes());
  uint16_t* biases = scales + static_cast<size_t>(tensor.rows()) * groups;
  std::vector<float> values(cols);
  std::vector<uint8_t> codes(tensor.bits == 0 ? 0 : cols);
  for (int64_t i = chunk.first_row; i < chunk.first_row + chunk.row_count; ++i) {
    const auto row = static_cast<size_t>(i);
    draw_values(rule.hash, {rule.scale, rule.offset}, row * cols, values);
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

}  // namespace

Result<std::shared_ptr<const format::TensorSource>> make_synthetic(const SynthSpec& spec,
                                                                   const ModelShape& shape,
                                                                   int threads) {
  CHECK_GE(threads, 1);
  auto source = std::make_shared<SyntheticSource>(make_synth_plan(spec, shape), spec, threads);
  RETURN_IF_ERROR(source->reserve());
  source->add_hash_constants(shape);
  return std::shared_ptr<const format::TensorSource>(std::move(source));
}

}  // namespace flashlane::model
