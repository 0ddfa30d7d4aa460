// Query-key products and weighted sums of values, over keys in f32 or bf16. A product puts element
// i in lane i % 16 and ends in the fixed tree; a weighted sum takes keys in the order given.
// Included by level_*.cc, inside their target pragma and anonymous namespace.

template <bool kBf16>
inline Lanes load_cached(const std::byte* row, int at, int count) {
  if constexpr (kBf16) {
    if (count >= kLanes) return load_bf16(row + at * 2);
    std::byte all[2 * kLanes] = {};
    for (int i = 0; i < 2 * count; ++i) all[i] = row[at * 2 + i];
    return load_bf16(all);
  } else {
    return load_some(reinterpret_cast<const float*>(row) + at, count);
  }
}

template <bool kBf16, int kKeys>
void dot_keys(float* out, const float* q, const std::byte* const* keys, int dim) {
  Lanes total[kKeys];
  for (int j = 0; j < kKeys; ++j) total[j] = zero_lanes();
  for (int i = 0; i < dim; i += kLanes) {
    const Lanes x = load_some(q + i, dim - i);
    for (int j = 0; j < kKeys; ++j) {
      total[j] = fma(x, load_cached<kBf16>(keys[j], i, dim - i), total[j]);
    }
  }
  for (int j = 0; j < kKeys; ++j) out[j] = sum_lanes(total[j]);
}

template <bool kBf16>
void key_dots_as(float* out, const float* q, const std::byte* const* keys, int count, int dim) {
  int at = 0;
  for (; at + 4 <= count; at += 4) dot_keys<kBf16, 4>(out + at, q, keys + at, dim);
  for (; at < count; ++at) dot_keys<kBf16, 1>(out + at, q, keys + at, dim);
}

inline void key_dots(float* out, const float* q, const std::byte* const* keys, int count, int dim,
                     bool bf16) {
  if (bf16) {
    key_dots_as<true>(out, q, keys, count, dim);
  } else {
    key_dots_as<false>(out, q, keys, count, dim);
  }
}

template <bool kBf16, int kCount>
void weigh_columns(float* acc, float rescale, const float* p, const std::byte* const* values,
                   int count, int at, int left) {
  Lanes total[kCount];
  const Lanes scale = all_lanes(rescale);
  for (int n = 0; n < kCount; ++n) {
    total[n] = mul(load_some(acc + at + n * kLanes, left - n * kLanes), scale);
  }
  for (int j = 0; j < count; ++j) {
    const Lanes weight = all_lanes(p[j]);
    for (int n = 0; n < kCount; ++n) {
      const Lanes v = load_cached<kBf16>(values[j], at + n * kLanes, left - n * kLanes);
      total[n] = fma(weight, v, total[n]);
    }
  }
  for (int n = 0; n < kCount; ++n) {
    store_some(acc + at + n * kLanes, total[n], left - n * kLanes);
  }
}

template <bool kBf16>
void weigh_values_as(float* acc, float rescale, const float* p, const std::byte* const* values,
                     int count, int dim) {
  int at = 0;
  for (; at + 4 * kLanes <= dim; at += 4 * kLanes) {
    weigh_columns<kBf16, 4>(acc, rescale, p, values, count, at, dim - at);
  }
  for (; at < dim; at += kLanes) {
    weigh_columns<kBf16, 1>(acc, rescale, p, values, count, at, dim - at);
  }
}

inline void weigh_values(float* acc, float rescale, const float* p, const std::byte* const* values,
                         int count, int dim, bool bf16) {
  if (bf16) {
    weigh_values_as<true>(acc, rescale, p, values, count, dim);
  } else {
    weigh_values_as<false>(acc, rescale, p, values, count, dim);
  }
}
