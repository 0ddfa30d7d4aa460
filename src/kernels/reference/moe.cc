// Mixture of experts: router, routed experts in ascending id, the gated shared expert.
#include <algorithm>
#include <vector>

#include "kernels/elementary.h"
#include "kernels/reference/reference_ops.h"

namespace flashlane::kernels::reference {

void ReferenceOps::route(int32_t* ids, float* gates, const float* x, int row_count,
                         const MoeWeights& w) {
  std::vector<float> logits(static_cast<size_t>(w.experts));
  std::vector<int32_t> order(static_cast<size_t>(w.experts));
  for (int row = 0; row < row_count; ++row) {
    multiply(logits.data(), x + static_cast<int64_t>(row) * w.hidden, w.router);
    for (int e = 0; e < w.experts; ++e) order[static_cast<size_t>(e)] = e;
    std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      const float la = logits[static_cast<size_t>(a)];
      const float lb = logits[static_cast<size_t>(b)];
      return la != lb ? la > lb : a < b;
    });
    const float highest = logits[static_cast<size_t>(order[0])];
    // Renormalised, the softmax over all experts is the softmax over the chosen ones.
    float total = 0;
    const int counted = w.renormalize ? w.top_experts : w.experts;
    for (int k = 0; k < counted; ++k) {
      total += exp_f32(logits[static_cast<size_t>(order[static_cast<size_t>(k)])] - highest);
    }
    for (int k = 0; k < w.top_experts; ++k) {
      const int32_t expert = order[static_cast<size_t>(k)];
      ids[row * w.top_experts + k] = expert;
      gates[row * w.top_experts + k] =
          exp_f32(logits[static_cast<size_t>(expert)] - highest) / total;
    }
  }
}

void ReferenceOps::experts(float* out, const float* x, const int32_t* ids, const float* gates,
                           int row_count, const MoeWeights& w) {
  const int width = std::max(w.width, w.shared_width);
  std::vector<float> gate(static_cast<size_t>(width));
  std::vector<float> up(static_cast<size_t>(width));
  std::vector<float> down(static_cast<size_t>(w.hidden));
  std::vector<int> slots(static_cast<size_t>(w.top_experts));
  for (int row = 0; row < row_count; ++row) {
    const float* input = x + static_cast<int64_t>(row) * w.hidden;
    float* y = out + static_cast<int64_t>(row) * w.hidden;
    std::fill_n(y, w.hidden, 0.0F);
    for (int k = 0; k < w.top_experts; ++k) slots[static_cast<size_t>(k)] = row * w.top_experts + k;
    std::sort(slots.begin(), slots.end(), [&](int a, int b) { return ids[a] < ids[b]; });
    for (const int slot : slots) {
      multiply(gate.data(), input, w.gate, ids[slot]);
      multiply(up.data(), input, w.up, ids[slot]);
      for (int i = 0; i < w.width; ++i) {
        gate[static_cast<size_t>(i)] =
            silu_f32(gate[static_cast<size_t>(i)]) * up[static_cast<size_t>(i)];
      }
      multiply(down.data(), gate.data(), w.down, ids[slot]);
      for (int d = 0; d < w.hidden; ++d) y[d] += gates[slot] * down[static_cast<size_t>(d)];
    }
    float shared = 0;
    multiply(&shared, input, w.shared_router);
    shared = sigmoid_f32(shared);
    multiply(gate.data(), input, w.shared_gate);
    multiply(up.data(), input, w.shared_up);
    for (int i = 0; i < w.shared_width; ++i) {
      gate[static_cast<size_t>(i)] =
          silu_f32(gate[static_cast<size_t>(i)]) * up[static_cast<size_t>(i)];
    }
    multiply(down.data(), gate.data(), w.shared_down);
    for (int d = 0; d < w.hidden; ++d) y[d] += shared * down[static_cast<size_t>(d)];
  }
}

}  // namespace flashlane::kernels::reference
