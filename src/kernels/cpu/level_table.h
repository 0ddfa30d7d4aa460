// The table of one level's functions. Included by level_*.cc after the templates, inside their
// anonymous namespace.

constexpr LevelKernels table_named(const char* name) {
  LevelKernels table = {};
  table.name = name;
  table.row_block = kRowsTogether;
  table.project = project;
  table.shape_row = shape_row;
  table.rms_norm = rms_norm;
  table.unit_norm = unit_norm;
  table.dot = dot;
  table.silu = silu;
  table.gated_product = gated_product;
  table.apply_gate = apply_gate;
  table.hyper_mix = hyper_mix;
  table.add_scaled = add_scaled;
  table.conv_silu = conv_silu;
  table.gdn_head = gdn_head;
  table.key_dots = key_dots;
  table.exp_sum = exp_sum;
  table.weigh_values = weigh_values;
  return table;
}
