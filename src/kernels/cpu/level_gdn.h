// Causal convolution with its history, and the delta rule on one value head's recurrent state. Both
// work on independent channels or columns, so lanes never meet; the rest of a width that is no
// multiple of 16 goes through the same template with one-lane arithmetic. Rows are taken one after
// another: prompt and decode rows, kept, drafted and replayed ones share every instruction that
// decides a value. Included by level_*.cc, inside their target pragma and anonymous namespace.

struct OneLane {
  static constexpr int kWidth = 1;
  float value;
};
inline OneLane add(OneLane a, OneLane b) {
  return {a.value + b.value};
}
inline OneLane sub(OneLane a, OneLane b) {
  return {a.value - b.value};
}
inline OneLane mul(OneLane a, OneLane b) {
  return {a.value * b.value};
}
inline OneLane fma(OneLane a, OneLane b, OneLane c) {
  return {__builtin_fmaf(a.value, b.value, c.value)};
}
inline void store(float* p, OneLane v) {
  *p = v.value;
}
inline OneLane silu_lanes(OneLane x) {
  float all[kLanes];
  store(all, silu_lanes(all_lanes(x.value)));
  return {all[0]};
}

template <typename L>
inline L load_as(const float* p) {
  if constexpr (L::kWidth == 1) {
    return {*p};
  } else {
    return load(p);
  }
}
template <typename L>
inline L all_as(float value) {
  if constexpr (L::kWidth == 1) {
    return {value};
  } else {
    return all_lanes(value);
  }
}

inline constexpr int kMostTaps = 16;

template <typename L>
void conv_channels(const ConvRun& run, int64_t channel) {
  const int64_t stride = run.history_stride;
  float* history = run.history + channel;
  const int back = (run.taps - 1) * run.dilation;  // rows of history
  if (run.pending_rows > 0) {
    for (int j = 0; j < back; ++j) {
      store(history + j * stride, load_as<L>(history + (j + run.pending_rows) * stride));
    }
  }
  if (run.row_count == 0) return;
  const float* in = run.in + channel;
  float taps[kMostTaps][L::kWidth];
  for (int k = 0; k < run.taps; ++k) {
    for (int lane = 0; lane < L::kWidth; ++lane) {
      taps[k][lane] = run.taps_by_channel[(channel + lane) * run.taps + k];
    }
  }
  for (int row = 0; row < run.row_count; ++row) {
    L total = all_as<L>(0);
    for (int k = 0; k < run.taps; ++k) {
      const int from = row - (run.taps - 1 - k) * run.dilation;
      const float* source =
          from >= 0 ? in + from * run.in_stride : history + (back + from) * stride;
      total = fma(load_as<L>(taps[k]), load_as<L>(source), total);
    }
    store(run.out + row * run.out_stride + channel, silu_lanes(total));
  }
  if (!run.keep_all) {
    for (int row = 0; row < run.row_count; ++row) {
      store(history + (back + row) * stride, load_as<L>(in + row * run.in_stride));
    }
    return;
  }
  for (int j = 0; j < back; ++j) {
    const int from = run.row_count - back + j;
    const float* source = from >= 0 ? in + from * run.in_stride : history + (back + from) * stride;
    store(history + j * stride, load_as<L>(source));
  }
}

inline void conv_silu(const ConvRun& run) {
  int64_t channel = 0;
  for (; channel + kLanes <= run.channels; channel += kLanes) conv_channels<Lanes>(run, channel);
  for (; channel < run.channels; ++channel) conv_channels<OneLane>(run, channel);
}

// S = decay * S + k ⊗ delta: the one update, of live rows and of replayed records alike.
template <typename L>
inline L updated(L state, L decay, L key, L delta) {
  return fma(key, delta, mul(decay, state));
}

template <typename L, int kCount>
void replay_records(const GdnHead& head, int64_t column) {
  for (int record = 0; record < head.replay_count; ++record) {
    const float* key = head.replay_keys + record * head.key_record_stride;
    const float* deltas = head.replay_deltas + record * head.delta_record_stride + column;
    const L decay = all_as<L>(head.replay_decays[record * head.decay_record_stride]);
    L delta[kCount];
    for (int n = 0; n < kCount; ++n) delta[n] = load_as<L>(deltas + n * L::kWidth);
    for (int i = 0; i < head.key_dim; ++i) {
      float* state = head.state + static_cast<int64_t>(i) * head.value_dim + column;
      const L k = all_as<L>(key[i]);
      for (int n = 0; n < kCount; ++n) {
        float* p = state + n * L::kWidth;
        store(p, updated(load_as<L>(p), decay, k, delta[n]));
      }
    }
  }
}

template <typename L, int kCount>
void gdn_row(const GdnHead& head, int64_t column, int row, float* state, int64_t stride) {
  const float* key = head.key + row * head.row_stride;
  const float* query = head.query + row * head.row_stride;
  const float* value = head.value + row * head.row_stride + column;
  const L decay = all_as<L>(head.decay[row * head.head_stride]);
  const L beta = all_as<L>(head.beta[row * head.head_stride]);
  L predicted[kCount];
  for (int n = 0; n < kCount; ++n) predicted[n] = all_as<L>(0);
  for (int i = 0; i < head.key_dim; ++i) {
    const L k = all_as<L>(key[i]);
    for (int n = 0; n < kCount; ++n) {
      const L decayed = mul(decay, load_as<L>(state + i * stride + n * L::kWidth));
      predicted[n] = fma(k, decayed, predicted[n]);
    }
  }
  L delta[kCount], read[kCount];
  for (int n = 0; n < kCount; ++n) {
    delta[n] = mul(beta, sub(load_as<L>(value + n * L::kWidth), predicted[n]));
    read[n] = all_as<L>(0);
  }
  for (int i = 0; i < head.key_dim; ++i) {
    const L k = all_as<L>(key[i]);
    const L q = all_as<L>(query[i]);
    for (int n = 0; n < kCount; ++n) {
      float* p = state + i * stride + n * L::kWidth;
      const L next = updated(load_as<L>(p), decay, k, delta[n]);
      store(p, next);
      read[n] = fma(q, next, read[n]);
    }
  }
  for (int n = 0; n < kCount; ++n) {
    store(head.out + row * head.out_stride + column + n * L::kWidth, read[n]);
    if (!head.keep_all && row > 0) {
      store(head.delta_records + row * head.delta_record_stride + column + n * L::kWidth, delta[n]);
    }
  }
}

template <typename L, int kCount>
void gdn_columns(const GdnHead& head, int64_t column) {
  static_assert(L::kWidth * kCount <= kGdnColumns);
  replay_records<L, kCount>(head, column);
  float* state = head.state + column;
  int64_t stride = head.value_dim;
  for (int row = 0; row < head.row_count; ++row) {
    if (row == 1 && !head.keep_all) {
      // Later rows may be rolled back: they go on with a copy.
      constexpr int kWidth = L::kWidth * kCount;
      for (int i = 0; i < head.key_dim; ++i) {
        for (int n = 0; n < kCount; ++n) {
          store(head.copy + i * kWidth + n * L::kWidth,
                load_as<L>(state + i * stride + n * L::kWidth));
        }
      }
      state = head.copy;
      stride = kWidth;
    }
    gdn_row<L, kCount>(head, column, row, state, stride);
  }
}

inline void gdn_head(const GdnHead& head) {
  int64_t column = 0;
  for (; column + 2 * kLanes <= head.value_dim; column += 2 * kLanes) {
    gdn_columns<Lanes, 2>(head, column);
  }
  for (; column + kLanes <= head.value_dim; column += kLanes) gdn_columns<Lanes, 1>(head, column);
  for (; column < head.value_dim; ++column) gdn_columns<OneLane, 1>(head, column);
}
