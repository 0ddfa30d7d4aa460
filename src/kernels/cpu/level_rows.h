// Norms, activations and mixes of one row. Element i of a reduction goes to lane i % 16 and lanes
// meet in the one fixed tree; tails are padded with zeros. Included by level_*.cc, inside their
// target pragma and anonymous namespace.

// The first `count` (1..16) floats, then zeros.
inline Lanes load_some(const float* p, int64_t count) {
  if (count >= kLanes) return load(p);
  float all[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) all[i] = p[i];
  return load(all);
}
inline void store_some(float* p, Lanes v, int64_t count) {
  if (count >= kLanes) {
    store(p, v);
    return;
  }
  float all[kLanes];
  store(all, v);
  for (int64_t i = 0; i < count; ++i) p[i] = all[i];
}

// exp_f32 of elementary.h, operation for operation.
inline Lanes exp_lanes(Lanes x) {
  const Lanes lowest = all_lanes(-87.3F);
  const Lanes highest = all_lanes(88.7F);
  const Lanes magic = all_lanes(12582912.0F);
  const Lanes raised = where_less(x, lowest, lowest, x);
  const Lanes clamped = where_less(highest, raised, highest, raised);
  const Lanes shifted = add(mul(clamped, all_lanes(1.44269504F)), magic);
  const Lanes n = sub(shifted, magic);
  const Lanes r =
      sub(sub(clamped, mul(n, all_lanes(0.693359375F))), mul(n, all_lanes(-2.12194440e-4F)));
  Lanes p = all_lanes(1.9875691500e-4F);
  p = add(mul(p, r), all_lanes(1.3981999507e-3F));
  p = add(mul(p, r), all_lanes(8.3334519073e-3F));
  p = add(mul(p, r), all_lanes(4.1665795894e-2F));
  p = add(mul(p, r), all_lanes(1.6666665459e-1F));
  p = add(mul(p, r), all_lanes(5.0000001201e-1F));
  const Lanes mantissa = add(add(mul(mul(p, r), r), r), all_lanes(1.0F));
  const Lanes value = scale_by_power(mantissa, shifted);
  const Lanes low = where_less(x, lowest, zero_lanes(), value);
  const Lanes high = where_less(highest, x, all_lanes(__builtin_inff()), low);
  return where_nan(x, x, high);
}
inline Lanes one_plus_exp_minus(Lanes x) {
  return add(all_lanes(1.0F), exp_lanes(sub(zero_lanes(), x)));
}
inline Lanes sigmoid_lanes(Lanes x) {
  return div(all_lanes(1.0F), one_plus_exp_minus(x));
}
inline Lanes silu_lanes(Lanes x) {
  return div(x, one_plus_exp_minus(x));
}

// Sums of 32 meet in the lanes' tree; sums of 64 and 128 are sums of two of the next smaller size.
inline float sum_of_group(const Lanes* x, int group) {
  const auto thirty_two = [&](int at) { return sum_lanes(add(x[at], x[at + 1])); };
  if (group == 32) return thirty_two(0);
  const float first = thirty_two(0) + thirty_two(2);
  return group == 64 ? first : first + (thirty_two(4) + thirty_two(6));
}

template <int kBits>
void shape_row_of(float* shaped, uint16_t* pairs, float* sums, const float* x, int64_t cols,
                  const PanelFormat& format) {
  static constexpr WordOrder kOrder = word_order(kBits);
  const Lanes factor = load(kOrder.factor);
  const int group = format.group;
  for (int64_t start = 0; start < cols; start += group) {
    Lanes rounded[128 / kLanes];
    for (int i = 0; i < group; i += kLanes) {
      const int64_t left = cols - start - i;
      const Lanes v = round_bf16(left > 0 ? load_some(x + start + i, left) : zero_lanes());
      rounded[i / kLanes] = v;
      store(shaped + start + i, kBits >= 16 ? v : mul(in_word_order<kBits>(v), factor));
      if (pairs != nullptr) store_bf16(pairs + start + i, v);
    }
    if (format.scaled) *sums++ = sum_of_group(rounded, group);
  }
}

inline void shape_row(float* shaped, uint16_t* pairs, float* sums, const float* x, int64_t cols,
                      const PanelFormat& format) {
  switch (format.bits) {
    case 2:
      shape_row_of<2>(shaped, pairs, sums, x, cols, format);
      break;
    case 4:
      shape_row_of<4>(shaped, pairs, sums, x, cols, format);
      break;
    case 8:
      shape_row_of<8>(shaped, pairs, sums, x, cols, format);
      break;
    default:
      shape_row_of<16>(shaped, pairs, sums, x, cols, format);
      break;
  }
}

inline float sum_of_squares(const float* x, int64_t count) {
  Lanes total = zero_lanes();
  for (int64_t i = 0; i < count; i += kLanes) {
    const Lanes v = load_some(x + i, count - i);
    total = fma(v, v, total);
  }
  return sum_lanes(total);
}

inline void rms_norm(float* out, const float* x, const float* gain, int64_t count, float eps) {
  const float mean = sum_of_squares(x, count) / static_cast<float>(count);
  const Lanes factor = all_lanes(1.0F / __builtin_sqrtf(mean + eps));
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    const Lanes normed = mul(load_some(x + i, left), factor);
    store_some(out + i, mul(normed, load_some(gain + i, left)), left);
  }
}

inline void unit_norm(float* x, int64_t count, float eps, float scale) {
  const Lanes factor = all_lanes(1.0F / __builtin_sqrtf(sum_of_squares(x, count) + eps));
  const Lanes scales = all_lanes(scale);
  for (int64_t i = 0; i < count; i += kLanes) {
    const Lanes normed = mul(load_some(x + i, count - i), factor);
    store_some(x + i, mul(normed, scales), count - i);
  }
}

inline float dot(const float* a, const float* b, int64_t count) {
  Lanes total = zero_lanes();
  for (int64_t i = 0; i < count; i += kLanes) {
    total = fma(load_some(a + i, count - i), load_some(b + i, count - i), total);
  }
  return sum_lanes(total);
}

inline void silu(float* x, int64_t count, float scale) {
  const Lanes scales = all_lanes(scale);
  for (int64_t i = 0; i < count; i += kLanes) {
    store_some(x + i, silu_lanes(mul(load_some(x + i, count - i), scales)), count - i);
  }
}

inline void gated_product(float* out, const float* gate, const float* up, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    store_some(out + i, mul(silu_lanes(load_some(gate + i, left)), load_some(up + i, left)), left);
  }
}

inline void apply_gate(float* x, const float* gate, int64_t count, bool is_silu) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    const Lanes g = load_some(gate + i, left);
    const Lanes factor = is_silu ? silu_lanes(g) : sigmoid_lanes(g);
    store_some(x + i, mul(load_some(x + i, left), factor), left);
  }
}

inline void hyper_mix(float* mixed, const float* gate, const float* normed, int streams,
                      int64_t hidden) {
  const Lanes share = all_lanes(1.0F / static_cast<float>(streams));
  for (int64_t i = 0; i < hidden; i += kLanes) {
    const int64_t left = hidden - i;
    Lanes total = zero_lanes();
    for (int c = 0; c < streams; ++c) {
      const Lanes g = sigmoid_lanes(load_some(gate + c * hidden + i, left));
      total = add(total, mul(g, load_some(normed + c * hidden + i, left)));
    }
    store_some(mixed + i, mul(total, share), left);
  }
}

inline void add_scaled(float* y, const float* x, float a, int64_t count) {
  const Lanes factor = all_lanes(a);
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t left = count - i;
    store_some(y + i, fma(factor, load_some(x + i, left), load_some(y + i, left)), left);
  }
}

inline float exp_sum(float* x, int count, float shift) {
  const Lanes shifts = all_lanes(shift);
  Lanes total = zero_lanes();
  for (int i = 0; i < count; i += kLanes) {
    const int left = count - i;
    store_some(x + i, exp_lanes(sub(load_some(x + i, left), shifts)), left);
    // Read back, so that the lanes beyond the tail count as zero.
    total = add(total, load_some(x + i, left));
  }
  return sum_lanes(total);
}
