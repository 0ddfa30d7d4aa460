// Mixture of experts: router, routed experts, shared expert. Rows are grouped by expert, so that
// each distinct expert's weights are read once for all rows of a forward; a row's own sum still
// goes over its experts in ascending id, then the shared one, because a task owns its outputs and
// visits the experts in that order.
#include <algorithm>

#include "base/int_math.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/elementary.h"

namespace flashlane::kernels::cpu {

// Which rows each distinct expert works for. The last group is the shared expert's, with every row.
struct CpuOps::ExpertPlan {
  int groups = 0;  // distinct routed experts
  int pairs = 0;   // routed (row, expert) pairs
  int rows = 0;
  int32_t* experts = nullptr;     // [groups] ascending
  int32_t* starts = nullptr;      // [groups + 1] into pair_rows
  int32_t* pair_rows = nullptr;   // [pairs], ascending within a group
  float* pair_gates = nullptr;    // [pairs]
  float* shared_gates = nullptr;  // [rows]
  // Rows as each matrix takes them, by [routed, shared]; the routed ones by pair when `by_pair`.
  bool by_pair = false;
  const InputRow* gate_inputs[2] = {};
  const InputRow* up_inputs[2] = {};
  const InputRow* down_inputs[2] = {};  // [pairs], [rows]
  float* hidden = nullptr;              // [pairs, width]: silu(gate) * up
  float* shared_hidden = nullptr;       // [rows, shared_width]
  int routed_tiles = 0;                 // tiles of one routed expert's hidden values
};

void CpuOps::route(int32_t* ids, float* gates, const float* x, int row_count, const MoeWeights& w) {
  begin(row_count);
  if (row_count == 0) return;
  const int64_t experts = w.experts;
  const int top = w.top_experts;
  CHECK_LE(experts, limits_.widest);
  CHECK(top >= 1 && top <= limits_.top_experts && top <= experts);
  RowInputs inputs = {x, row_count, w.hidden};
  auto* logits = scratch_.take<float>(row_count * experts);
  multiply(logits, inputs, w.router);
  for_rows(row_count, experts * 2, [&](int row) {
    const float* own = logits + row * experts;
    int32_t* chosen = ids + static_cast<int64_t>(row) * top;
    float* weights = gates + static_cast<int64_t>(row) * top;
    // Insertion, best first; an equal never passes an earlier one, which has the lower id.
    int taken = 0;
    for (int32_t e = 0; e < static_cast<int32_t>(experts); ++e) {
      if (taken == top && !(own[e] > own[chosen[top - 1]])) continue;
      int at = taken < top ? taken++ : top - 1;
      for (; at > 0 && own[e] > own[chosen[at - 1]]; --at) chosen[at] = chosen[at - 1];
      chosen[at] = e;
    }
    const float highest = own[chosen[0]];
    float total = 0;
    for (int k = 0; k < top; ++k) {
      weights[k] = exp_f32(own[chosen[k]] - highest);
      total += weights[k];
    }
    if (!w.renormalize) {
      total = 0;
      for (int64_t e = 0; e < experts; ++e) total += exp_f32(own[e] - highest);
    }
    for (int k = 0; k < top; ++k) weights[k] /= total;
  });
}

void CpuOps::plan_experts(ExpertPlan& plan, const int32_t* ids, const float* gates, int row_count,
                          const MoeWeights& w) {
  plan.rows = row_count;
  plan.pairs = row_count * w.top_experts;
  plan.pair_rows = scratch_.take<int32_t>(plan.pairs);
  plan.pair_gates = scratch_.take<float>(plan.pairs);
  plan.experts = scratch_.take<int32_t>(std::min<int64_t>(w.experts, plan.pairs));
  plan.starts = scratch_.take<int32_t>(std::min<int64_t>(w.experts, plan.pairs) + 1);
  // A counting sort by expert, stable in the row.
  auto* next = scratch_.take<int32_t>(w.experts + 1);
  std::fill_n(next, w.experts + 1, 0);
  for (int pair = 0; pair < plan.pairs; ++pair) {
    CHECK(ids[pair] >= 0 && ids[pair] < w.experts);
    ++next[ids[pair] + 1];
  }
  for (int e = 0; e < w.experts; ++e) {
    if (next[e + 1] != 0) {
      plan.experts[plan.groups] = e;
      plan.starts[plan.groups++] = next[e];
    }
    next[e + 1] += next[e];
  }
  plan.starts[plan.groups] = plan.pairs;
  for (int pair = 0; pair < plan.pairs; ++pair) {
    const int at = next[ids[pair]]++;
    plan.pair_rows[at] = pair / w.top_experts;
    plan.pair_gates[at] = gates[pair];
  }
}

void CpuOps::expert_hidden_tile(const ExpertPlan& plan, int task, const MoeWeights& w) {
  const int routed = plan.groups * plan.routed_tiles;
  const bool shared = task >= routed;
  const int group = shared ? 0 : task / plan.routed_tiles;
  const int tile = shared ? task - routed : task % plan.routed_tiles;
  const PackedMatrix& gate = packed(shared ? w.shared_gate : w.gate);
  const PackedMatrix& up = packed(shared ? w.shared_up : w.up);
  const int64_t expert = shared ? 0 : plan.experts[group];
  const PanelTile gate_panels = gate.tile(expert, tile);
  const PanelTile up_panels = up.tile(expert, tile);
  const int begin = shared ? 0 : plan.starts[group];
  const int end = shared ? plan.rows : plan.starts[group + 1];
  float* hidden = (shared ? plan.shared_hidden : plan.hidden) + gate.first_output(tile);
  for (int first = begin; first < end; first += kernels_.row_block) {
    const int count = std::min(kernels_.row_block, end - first);
    float gates[kMostRowBlock][kTileRows];
    float ups[kMostRowBlock][kTileRows];
    InputRow rows[kMostRowBlock];
    const auto input = [&](int i) {
      return shared || plan.by_pair ? first + i : plan.pair_rows[first + i];
    };
    for (int i = 0; i < count; ++i) {
      rows[i] = plan.gate_inputs[shared ? 1 : 0][input(i)];
      rows[i].out = gates[i];
    }
    kernels_.project(gate_panels, rows, count);
    for (int i = 0; i < count; ++i) {
      rows[i] = plan.up_inputs[shared ? 1 : 0][input(i)];
      rows[i].out = ups[i];
    }
    kernels_.project(up_panels, rows, count);
    for (int i = 0; i < count; ++i) {
      kernels_.gated_product(hidden + (first + i) * gate.rows, gates[i], ups[i],
                             gate_panels.outputs);
    }
  }
}

void CpuOps::expert_output_tile(const ExpertPlan& plan, float* out, int row_count, int tile,
                                const MoeWeights& w) {
  const PackedMatrix& down = packed(w.down);
  const PackedMatrix& shared_down = packed(w.shared_down);
  const int64_t first_output = down.first_output(tile);
  float* outputs = out + first_output;
  const int64_t width = down.tile(0, tile).outputs;
  for (int row = 0; row < row_count; ++row) std::fill_n(outputs + row * down.rows, width, 0.0F);
  for (int group = 0; group <= plan.groups; ++group) {
    const bool shared = group == plan.groups;
    const PanelTile panels =
        shared ? shared_down.tile(0, tile) : down.tile(plan.experts[group], tile);
    const int begin = shared ? 0 : plan.starts[group];
    const int end = shared ? plan.rows : plan.starts[group + 1];
    for (int first = begin; first < end; first += kernels_.row_block) {
      const int count = std::min(kernels_.row_block, end - first);
      float products[kMostRowBlock][kTileRows];
      InputRow rows[kMostRowBlock];
      for (int i = 0; i < count; ++i) {
        rows[i] = plan.down_inputs[shared ? 1 : 0][first + i];
        rows[i].out = products[i];
      }
      kernels_.project(panels, rows, count);
      for (int i = 0; i < count; ++i) {
        const int row = shared ? first + i : plan.pair_rows[first + i];
        const float gate = shared ? plan.shared_gates[row] : plan.pair_gates[first + i];
        kernels_.add_scaled(outputs + row * down.rows, products[i], gate, width);
      }
    }
  }
}

void CpuOps::experts(float* out, const float* x, const int32_t* ids, const float* gates,
                     int row_count, const MoeWeights& w) {
  begin(row_count);
  if (row_count == 0) return;
  CHECK_LE(w.top_experts, limits_.top_experts);
  CHECK_LE(std::max(w.width, w.shared_width), limits_.expert_width);
  ExpertPlan plan;
  plan_experts(plan, ids, gates, row_count, w);
  const int64_t hidden = w.hidden;
  RowInputs inputs = {x, row_count, hidden};
  plan.shared_gates = scratch_.take<float>(row_count);
  multiply(plan.shared_gates, inputs, w.shared_router);
  for (int row = 0; row < row_count; ++row) {
    plan.shared_gates[row] = sigmoid_f32(plan.shared_gates[row]);
  }
  plan.hidden = scratch_.take<float>(static_cast<int64_t>(plan.pairs) * w.width);
  plan.shared_hidden = scratch_.take<float>(static_cast<int64_t>(row_count) * w.shared_width);
  RowInputs pair_inputs = {x, plan.pairs, hidden, plan.pair_rows};
  plan.by_pair = kernels_.pairs && row_count > 1;
  RowInputs& routed_inputs = plan.by_pair ? pair_inputs : inputs;
  plan.gate_inputs[0] = shaped(routed_inputs, packed(w.gate));
  plan.gate_inputs[1] = shaped(inputs, packed(w.shared_gate));
  plan.up_inputs[0] = shaped(routed_inputs, packed(w.up));
  plan.up_inputs[1] = shaped(inputs, packed(w.shared_up));
  plan.routed_tiles = packed(w.gate).tiles();
  CHECK_EQ(packed(w.up).tiles(), plan.routed_tiles);
  CHECK_EQ(packed(w.shared_up).tiles(), packed(w.shared_gate).tiles());
  const int tasks = plan.groups * plan.routed_tiles + packed(w.shared_gate).tiles();
  pool_.run(tasks, [&](int task, int) { expert_hidden_tile(plan, task, w); });
  RowInputs hidden_inputs = {plan.hidden, plan.pairs, w.width};
  RowInputs shared_inputs = {plan.shared_hidden, row_count, w.shared_width};
  plan.down_inputs[0] = shaped(hidden_inputs, packed(w.down));
  plan.down_inputs[1] = shaped(shared_inputs, packed(w.shared_down));
  CHECK_EQ(packed(w.down).tiles(), packed(w.shared_down).tiles());
  pool_.run(packed(w.down).tiles(),
            [&](int tile, int) { expert_output_tile(plan, out, row_count, tile, w); });
}

}  // namespace flashlane::kernels::cpu
