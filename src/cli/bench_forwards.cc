// All sequences start as copies of one that has run the prompt: their states and pages are their
// own, their next tokens differ.
#include "cli/bench_forwards.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace flashlane::cli {

namespace {

using kernels::kMaxWindow;
using kernels::Role;

size_t size(int count) {
  return static_cast<size_t>(count);
}

// Timed forwards of a round: as many windows as the reply has, but for an untimed one.
int timed_forwards(int tokens, int rows) {
  return std::clamp(tokens / rows - 1, 1, kMostForwards);
}

size_t lane_pages(const model::StateLayout& layout, int context) {
  return size(layout.pages_for(context));
}

}  // namespace

int forward_positions(int tokens, int rows) {
  int most = kMostForwards + 2;  // a draft chain and the row it starts from
  for (int r = 1; r <= rows; ++r) most = std::max(most, (timed_forwards(tokens, r) + 1) * r);
  return most;
}

ForwardBench::ForwardBench(model::Model& model, const runner::RunnerOptions& sizes)
    : model_(model),
      memory_(model.ops().memory()),
      sizes_(sizes),
      layout_(model::make_state_layout(model.shape(), sizes.kv_dtype, sizes.page_rows)),
      activations_(model.shape(), sizes.max_rows, memory_),
      pages_(size(sizes.slots) * lane_pages(layout_, sizes.context) * layout_.page_bytes, memory_),
      logits_(size(kMaxWindow) * size(model.shape().vocabulary) * sizeof(float), memory_),
      after_prompt_(layout_.pieces_bytes, memory_) {
  const int pages = layout_.pages_for(sizes.context);
  lanes_.resize(size(sizes.slots));
  for (int i = 0; i < sizes.slots; ++i) {
    Lane& lane = lanes_[size(i)];
    lane.pieces = Buffer(layout_.pieces_bytes, memory_);
    lane.page_table.resize(size(pages));
    std::iota(lane.page_table.begin(), lane.page_table.end(), i * pages);
    lane.state =
        model::bind_state(model.shape(), layout_, lane.pieces.data(), lane.page_table.data());
  }
}

void ForwardBench::start(std::span<const int32_t> prompt, std::span<const int32_t> reply) {
  CHECK(!prompt.empty() && !reply.empty());
  prompt_length_ = static_cast<int>(prompt.size());
  reply_.assign(reply.begin(), reply.end());
  Lane& first = lanes_.front();
  memory_.zero(first.pieces.data(), first.pieces.bytes());
  first.state.pending_rows = 0;
  first.tokens.assign(prompt.begin(), prompt.end());
  first.tokens.push_back(reply.front());
  for (int at = 0; at < prompt_length_; at += sizes_.max_rows) {
    prompt_rows(at, std::min(sizes_.max_rows, prompt_length_ - at));
  }
  memory_.copy(after_prompt_.data(), first.pieces.data(), after_prompt_.bytes());
  const size_t lane_bytes = lane_pages(layout_, sizes_.context) * layout_.page_bytes;
  for (size_t i = 1; i < lanes_.size(); ++i) {
    memory_.copy(pages_.data() + i * lane_bytes, pages_.data(), lane_bytes);
  }
  const auto positions = size(sizes_.context);
  for (size_t i = 0; i < lanes_.size(); ++i) {
    Lane& lane = lanes_[i];
    lane.tokens.assign(prompt.begin(), prompt.end());
    // Far from one another in the reply, so that the sequences choose experts of their own.
    const size_t offset = i * reply_.size() / lanes_.size();
    while (lane.tokens.size() < positions) {
      const size_t fed = lane.tokens.size() - prompt.size();
      lane.tokens.push_back(reply_[(offset + fed) % reply_.size()]);
    }
  }
}

void ForwardBench::prompt_rows(int start, int count) {
  Lane& lane = lanes_.front();
  const auto history = std::span<const int32_t>(lane.tokens).first(size(start + count));
  const kernels::Segment segment = {.first_row = 0, .row_count = count, .start_position = start};
  const kernels::Batch batch = {.role = Role::kPrompt,
                                .row_count = count,
                                .tokens = history.subspan(size(start)),
                                .segments = std::span(&segment, 1)};
  const model::SegmentInput input = {&lane.state, history};
  model_.forward(activations_, batch, std::span(&input, 1), layout_, pages_.data());
  const size_t wide = size(model_.shape().wide());
  memory_.copy(lane.state.last_wide, activations_.streams + size(count - 1) * wide,
               wide * sizeof(float));
  if (!model_.weights().has_mtp) return;
  // The head's row of the prompt's last token is the first draft step's.
  const int known = start + count == prompt_length_ ? count - 1 : count;
  if (known == 0) return;
  const kernels::Segment head_segment = {
      .first_row = 0, .row_count = known, .start_position = start};
  const kernels::Batch head_batch = {
      .role = Role::kPrompt,
      .row_count = known,
      .tokens = std::span<const int32_t>(lane.tokens).subspan(size(start) + 1, size(known)),
      .segments = std::span(&head_segment, 1)};
  model_.mtp_forward(activations_, activations_.streams, head_batch, std::span(&input, 1), layout_,
                     pages_.data());
}

void ForwardBench::restore(int index) {
  Lane& lane = lanes_[size(index)];
  memory_.copy(lane.pieces.data(), after_prompt_.data(), after_prompt_.bytes());
  lane.state.pending_rows = 0;
  lane.length = prompt_length_;
}

void ForwardBench::forward(int lanes, int count) {
  kernels::Segment segments[kMaxWindow];
  model::SegmentInput inputs[kMaxWindow];
  int32_t tokens[kMaxWindow];
  const int rows = lanes * count;
  CHECK(rows <= kMaxWindow);
  for (int i = 0; i < lanes; ++i) {
    Lane& lane = lanes_[size(i)];
    segments[i] = {.first_row = i * count,
                   .row_count = count,
                   .start_position = lane.length,
                   .pending_rows = lane.state.pending_rows};
    lane.length += count;
    const auto history = std::span<const int32_t>(lane.tokens).first(size(lane.length));
    inputs[i] = {&lane.state, history};
    std::copy_n(history.end() - count, count, tokens + i * count);
  }
  const kernels::Batch batch = {.role = Role::kDecode,
                                .row_count = rows,
                                .tokens = {tokens, size(rows)},
                                .segments = {segments, size(lanes)}};
  model_.forward(activations_, batch, {inputs, size(lanes)}, layout_, pages_.data(), probe_);
  model_.head(activations_, logits_.as<float>(), activations_.streams, rows, probe_);
  for (int i = 0; i < lanes; ++i) lanes_[size(i)].state.pending_rows = count;
}

// As the runner chains drafts: each step's streams and greedy token are the next one's input.
void ForwardBench::draft_steps(int count) {
  Lane& lane = lanes_.front();
  const kernels::SampleRow greedy = {.params = {}, .position = 0};
  for (int i = 0; i < count; ++i) {
    const bool first = draft_position_ == prompt_length_ - 1;
    const float* wide = first ? lane.state.last_wide : activations_.streams;
    const int32_t token = draft_token_;
    const kernels::Segment segment = {
        .first_row = 0, .row_count = 1, .start_position = draft_position_++};
    const kernels::Batch batch = {.role = Role::kDecode,
                                  .row_count = 1,
                                  .tokens = std::span(&token, 1),
                                  .segments = std::span(&segment, 1)};
    const model::SegmentInput input = {&lane.state, lane.tokens};
    model_.mtp_forward(activations_, wide, batch, std::span(&input, 1), layout_, pages_.data(),
                       probe_);
    model_.mtp_head(activations_, logits_.as<float>(), activations_.streams, 1, probe_);
    model_.ops().sample(&draft_token_, logits_.as<float>(), std::span(&greedy, 1),
                        model_.shape().vocabulary);
  }
}

double ForwardBench::round(const Cell& cell) {
  for (int i = 0; i < cell.streams; ++i) restore(i);
  draft_position_ = prompt_length_ - 1;
  draft_token_ = reply_.front();
  const auto units = [&](int count) {
    if (cell.kind == CellKind::kDraftStep) {
      draft_steps(count);
      return;
    }
    for (int i = 0; i < count; ++i) forward(cell.streams, cell.rows / cell.streams);
  };
  model::Probe* const probe = std::exchange(probe_, nullptr);
  units(1);
  probe_ = probe;
  const SteadyClock clock;
  memory_.wait();
  const Clock::Time begin = clock.now();
  units(cell.timed_units);
  memory_.wait();
  return to_ms(clock.now() - begin);
}

void ForwardBench::count(Cell& cell) {
  model::TrafficCounter counter(model_.weights(), sizes_.kv_dtype);
  probe_ = &counter;
  round(cell);
  probe_ = nullptr;
  cell.traffic = counter.take();
  cell.traffic_units = cell.timed_units;
}

Cell ForwardBench::make_cell(CellKind kind, int rows, bool chain) const {
  Cell cell;
  cell.kind = kind;
  cell.rows = rows;
  cell.streams = chain ? 1 : rows;
  cell.chain = chain;
  cell.context = prompt_length_;
  cell.tokens_per_unit = rows;
  const int tokens = static_cast<int>(reply_.size());
  cell.timed_units =
      kind == CellKind::kDraftStep ? kMostForwards : timed_forwards(tokens, chain ? rows : 1);
  return cell;
}

std::vector<Cell> ForwardBench::run(const std::vector<int>& rows, int rounds,
                                    const BenchProgress& progress) {
  std::vector<Cell> cells;
  cells.reserve(2 * rows.size() + 1);
  for (const int r : rows) cells.push_back(make_cell(CellKind::kForward, r, true));
  for (const int r : rows) {
    if (r > 1) cells.push_back(make_cell(CellKind::kForward, r, false));
  }
  if (model_.weights().has_mtp) cells.push_back(make_cell(CellKind::kDraftStep, 1, true));
  for (Cell& cell : cells) {
    progress(fmt::format("counting bytes of forwards after {}", prompt_length_));
    count(cell);
  }
  for (int i = 0; i < rounds; ++i) {
    for (Cell& cell : cells) {
      progress(fmt::format("forwards after {}, round {} of {}", prompt_length_, i + 1, rounds));
      cell.ms.push_back(round(cell) / cell.timed_units);
    }
  }
  return cells;
}

}  // namespace flashlane::cli
