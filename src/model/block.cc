#include "model/block.h"

#include "base/check.h"
#include "model/ngram_ahead.h"

namespace flashlane::model {
namespace {

using kernels::Projection;

// y = GDN(mixed)
void delta_block(Step& step, const DeltaWeights& w, int state_index) {
  Activations& act = step.act;
  kernels::Ops& ops = step.ops;
  const int rows = step.rows();
  auto& [qkv, z, b, a, out] = act.scratch;
  const Projection reads[] = {{qkv, &w.in_qkv}, {z, &w.in_z}, {b, &w.in_b}, {a, &w.in_a}};
  ops.project(reads, act.mixed, rows);
  act.gdn_states.clear();
  for (const SegmentInput& input : step.inputs) {
    act.gdn_states.push_back(input.state->gdn[static_cast<size_t>(state_index)]);
  }
  ops.gdn_step(out, qkv, z, b, a, step.batch, act.gdn_states, w.step);
  ops.project(act.block_out, out, rows, w.out);
}

// y = QSA(mixed)
void sparse_block(Step& step, const SparseWeights& w, int state_index) {
  Activations& act = step.act;
  kernels::Ops& ops = step.ops;
  const int rows = step.rows();
  auto& [query_gate, key, value, index, out] = act.scratch;
  const Projection reads[] = {
      {query_gate, &w.query}, {key, &w.key}, {value, &w.value}, {index, &w.index}};
  ops.project(reads, act.mixed, rows);
  act.tables.clear();
  for (const SegmentInput& input : step.inputs) act.tables.push_back(input.state->page_table);
  const kernels::KvView cache{kv_pages(step.layout, step.kv_base, state_index), act.tables};
  ops.attention_prepare(query_gate, key, value, index, step.batch, cache, w.attention);
  step.report("index", index, (w.attention.index_heads + 1) * w.attention.index_dim);
  ops.select_blocks(act.selection, index, step.batch, cache, w.attention);
  step.report("block_counts", act.selection.counts, 1);
  step.report("blocks", act.selection.blocks, act.selection.stride);
  ops.sparse_attend(out, query_gate, act.selection, step.batch, cache, w.attention);
  ops.project(act.block_out, out, rows, w.out);
}

// The table rows of every row and hash head, [rows, heads], from the segments' histories.
std::span<const int64_t> table_rows(Step& step, const PleLayer& ple) {
  const auto heads = static_cast<size_t>(ple.hash.heads());
  int64_t* out = step.act.ngram_rows.data();
  for (size_t s = 0; s < step.inputs.size(); ++s) {
    const SegmentInput& input = step.inputs[s];
    const kernels::Segment& segment = step.batch.segments[s];
    const auto rows = static_cast<size_t>(segment.row_count);
    CHECK_GE(input.history.size(), rows);
    ple.hash.rows(input.history, input.history.size() - rows,
                  {out + static_cast<size_t>(segment.first_row) * heads, rows * heads});
  }
  return {out, static_cast<size_t>(step.rows()) * heads};
}

// y = MoE(mixed)
void moe_block(Step& step, const kernels::MoeWeights& w) {
  Activations& act = step.act;
  step.ops.route(act.expert_ids, act.expert_gates, act.mixed, step.rows(), w);
  step.report("experts", act.expert_ids, w.top_experts);
  step.report("expert_weights", act.expert_gates, w.top_experts);
  step.ops.experts(act.block_out, act.mixed, act.expert_ids, act.expert_gates, step.rows(), w);
}

}  // namespace

void ask_for_ngram_rows(Step& step, const PleLayer& ple, const format::TensorSource& source) {
  if (ple.rows_ahead) ask_for_rows(source, ple.table, table_rows(step, ple));
}

void ngram_block(Step& step, const PleLayer& ple, int index) {
  Activations& act = step.act;
  const std::span<const int64_t> table_row_ids = table_rows(step, ple);
  act.ple_states.clear();
  for (const SegmentInput& input : step.inputs) {
    act.ple_states.push_back(input.state->ple[static_cast<size_t>(index)]);
  }
  auto& [embedding, key, value, added, unused] = act.scratch;
  step.ops.ngram_embed(embedding, table_row_ids, step.rows(), ple.table);
  const Projection reads[] = {{key, &ple.key}, {value, &ple.value}};
  step.ops.project(reads, embedding, step.rows());
  step.ops.ple_inject(act.streams, step.probe != nullptr ? added : nullptr, key, value, step.batch,
                      act.ple_states, ple.inject);
  if (step.probe == nullptr) return;
  const std::vector<int32_t> reported(table_row_ids.begin(), table_row_ids.end());
  step.probe->ints(step.name + "ngram_rows", reported.data(), step.rows(), ple.hash.heads());
  step.report("ngram_embedding", embedding, ple.table.heads * ple.table.row_width);
  step.report("ple_out", added, ple.inject.streams * ple.inject.hidden);
}

void run_layer(Step& step, const LayerWeights& layer, int state_index) {
  Activations& act = step.act;
  kernels::Ops& ops = step.ops;
  const kernels::HyperWeights& hyper = layer.attention_hyper;
  const int rows = step.rows();

  ops.hyper_read(act.mixed, act.inject, act.streams, rows, hyper);
  step.report("attn_read", act.mixed, hyper.hidden);
  step.report("attn_inject", act.inject, hyper.streams);
  if (layer.kind == LayerKind::kDelta) {
    delta_block(step, layer.delta, state_index);
  } else {
    sparse_block(step, layer.sparse, state_index);
  }
  step.report("mixer_out", act.block_out, hyper.hidden);
  ops.hyper_write(act.streams, act.inject, act.block_out, rows, hyper.streams, hyper.hidden);

  ops.hyper_read(act.mixed, act.inject, act.streams, rows, layer.mlp_hyper);
  step.report("mlp_read", act.mixed, hyper.hidden);
  step.report("mlp_inject", act.inject, hyper.streams);
  moe_block(step, layer.moe);
  step.report("moe_out", act.block_out, hyper.hidden);
  ops.hyper_write(act.streams, act.inject, act.block_out, rows, hyper.streams, hyper.hidden);
}

}  // namespace flashlane::model
