// The n-gram layers' weights. The table's shards are taken in index order, each a matrix of its own
// with its own format, and together must have exactly the rows that the hash constants address;
// stored hash constants must equal the computed ones, as another table would be read with wrong
// rows.
#include "model/weights_ngram.h"

#include "model/synthetic_source.h"

namespace flashlane::model {
namespace {

Status check_hash_buffers(TensorReader& reader, const std::string& path, const NgramHash& hash) {
  RETURN_IF_ERROR(reader.expect_integers(path + "layer_multipliers", hash.multipliers));
  RETURN_IF_ERROR(reader.expect_integers(path + "ngram_heads_vocab_sizes", hash.moduli));
  return reader.expect_integers(path + "ngram_heads_offsets", hash.offsets);
}

// Shards at path + "shard_0" or path + "shards.0", and so on.
Status load_stored_table(Weights& weights, TensorReader& reader, const std::string& path,
                         PleLayer& ple) {
  const int64_t rows = ple.hash.table_rows;
  const std::string scale = path.substr(0, path.size() - 1) + ".weight_scale";
  if (reader.has(scale)) {
    return error(ErrorCode::kUnsupported, "tensor {}: an FP8 n-gram table is served on CUDA only",
                 scale);
  }
  const bool dotted = reader.has(path + "shards.0.weight");
  auto& shards = weights.shard_matrices.emplace_back();
  auto& starts = weights.shard_starts.emplace_back(1, 0);
  while (starts.back() < rows) {
    const std::string name = path + (dotted ? "shards." : "shard_") + std::to_string(shards.size());
    ASSIGN_OR_RETURN(kernels::Matrix shard, reader.matrix_of_any_rows(name, ple.table.row_width));
    if (shard.rows < 1 || shard.rows > rows - starts.back()) {
      return invalid(
          "tensor {}.weight has {} rows, expected 1 to {}: shards before it hold {} of "
          "the table's {} rows",
          name, shard.rows, rows - starts.back(), starts.back(), rows);
    }
    starts.push_back(starts.back() + shard.rows);
    weights.ngram_bytes += shard.stored_bytes();
    shards.push_back(shard);
  }
  const std::string extra =
      path + (dotted ? "shards." : "shard_") + std::to_string(shards.size()) + ".weight";
  if (reader.has(extra)) {
    return invalid("tensor {} is one too many: the shards before it hold all {} rows", extra, rows);
  }
  ple.table.shards = shards.data();
  ple.table.shard_starts = starts.data();
  ple.table.shard_count = static_cast<int>(shards.size());
  return {};
}

void take_computed_table(Weights& weights, const ComputedTable& source, PleLayer& ple) {
  CHECK_EQ(source.shard_starts.back(), ple.hash.table_rows);
  const size_t count = source.shard_hashes.size();
  ple.table.shards = weights.shard_matrices.emplace_back(count).data();
  ple.table.shard_starts = weights.shard_starts.emplace_back(source.shard_starts).data();
  ple.table.shard_count = static_cast<int>(count);
  ple.table.computed = true;
  ple.table.shard_hashes = weights.shard_hashes.emplace_back(source.shard_hashes).data();
  ple.table.bits = source.bits;
  ple.table.group = source.group;
}

Status load_table(Weights& weights, TensorReader& reader, const std::string& path, int layer,
                  PleLayer& ple) {
  ple.table.row_width = weights.shape.ngram_row_width();
  ple.table.heads = weights.shape.ngram_heads();
  const auto* synthetic = dynamic_cast<const ComputedTableSource*>(weights.source.get());
  const ComputedTable* computed = synthetic != nullptr ? synthetic->computed_table(layer) : nullptr;
  if (computed != nullptr) {
    take_computed_table(weights, *computed, ple);
    return {};
  }
  return load_stored_table(weights, reader, path + "ngram_embedding.", ple);
}

Status load_inject(const ModelShape& shape, TensorReader& reader, const std::string& path,
                   NormConvention norms, kernels::PleWeights& inject) {
  inject.streams = shape.streams;
  inject.hidden = shape.hidden;
  inject.taps = shape.ple_taps;
  inject.dilation = shape.ngram_size;
  inject.eps = shape.norm_eps;
  ASSIGN_OR_RETURN(inject.key_gain, reader.gain(path + "norm_key.weight", shape.wide(), norms));
  ASSIGN_OR_RETURN(inject.query_gain, reader.gain(path + "norm_query.weight", shape.wide(), norms));
  ASSIGN_OR_RETURN(inject.conv_gain, reader.gain(path + "norm_conv.weight", shape.wide(), norms));
  ASSIGN_OR_RETURN(inject.conv,
                   reader.convolution(path + "conv1d.weight", shape.wide(), shape.ple_taps));
  return {};
}

}  // namespace

Status load_ple(Weights& weights, TensorReader& reader, const std::string& path, int layer,
                int rank) {
  const ModelShape& shape = weights.shape;
  PleLayer& ple = weights.ple.emplace_back();
  ASSIGN_OR_RETURN(ple.key, reader.matrix(path + "key_proj", shape.wide(), shape.ple_width));
  ASSIGN_OR_RETURN(ple.value, reader.matrix(path + "value_proj", shape.hidden, shape.ple_width));
  RETURN_IF_ERROR(load_inject(shape, reader, path, weights.norms, ple.inject));
  ple.hash = make_ngram_hash(shape, rank);
  RETURN_IF_ERROR(check_hash_buffers(reader, path + "ple_embedding.", ple.hash));
  return load_table(weights, reader, path + "ple_embedding.", layer, ple);
}

}  // namespace flashlane::model
