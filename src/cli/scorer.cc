// Forwards run in chunks; heads run over small groups of their rows, since a row of logits may be a
// megabyte. Decode windows are committed whole through pending_rows, as a reply would be.
#include "cli/scorer.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/elementary.h"

namespace flashlane::cli {

namespace {

constexpr int kGroup = 16;  // rows of logits at once

size_t product(int a, int b) {
  return static_cast<size_t>(a) * static_cast<size_t>(b);
}

}  // namespace

Result<Distribution> summarise(std::span<const float> logits, int top) {
  Distribution out;
  float largest = -INFINITY;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (!std::isfinite(logits[id])) {
      return error(ErrorCode::kInternal, "the logit of token {} is not finite", id);
    }
    largest = std::max(largest, logits[id]);
  }
  double sum = 0;
  for (const float logit : logits) {
    sum += kernels::exp_f64(static_cast<double>(logit) - static_cast<double>(largest));
  }
  out.logsumexp = static_cast<double>(largest) + kernels::log_f64(sum);
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto kept = std::min(static_cast<size_t>(top), ids.size());
  const auto before = [&](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept), ids.end(),
                    before);
  out.top.reserve(kept);
  for (size_t i = 0; i < kept; ++i) {
    out.top.push_back({ids[i], logits[static_cast<size_t>(ids[i])]});
  }
  return out;
}

Scorer::Scorer(model::Model& model, ScorerOptions options)
    : model_(model),
      memory_(model.ops().memory()),
      options_(std::move(options)),
      layout_(model::make_state_layout(model.shape(), options_.kv_dtype, options_.page_rows)),
      activations_(model.shape(), options_.rows, memory_),
      pieces_(layout_.pieces_bytes, memory_),
      pages_(static_cast<size_t>(layout_.pages_for(options_.context)) * layout_.page_bytes,
             memory_),
      page_table_(static_cast<size_t>(layout_.pages_for(options_.context))),
      wide_(product(options_.rows, model.shape().wide()) * sizeof(float), memory_),
      head_wide_(
          product(options_.mtp_depth > 0 ? options_.rows : 0, model.shape().wide()) * sizeof(float),
          memory_),
      fed_(product(1, model.shape().wide()) * sizeof(float), memory_),
      logits_(product(kGroup, model.shape().vocabulary) * sizeof(float), memory_),
      host_logits_(product(kGroup, model.shape().vocabulary)) {
  CHECK(options_.rows >= 1 && options_.context >= 1);
  CHECK(options_.role == kernels::Role::kPrompt || options_.rows <= kernels::kMaxWindow);
  std::iota(page_table_.begin(), page_table_.end(), 0);
  state_ = model::bind_state(model.shape(), layout_, pieces_.data(), page_table_.data());
}

bool Scorer::reported(int position) const {
  return options_.positions.empty() ||
         std::binary_search(options_.positions.begin(), options_.positions.end(), position);
}

void Scorer::forward_rows(std::span<const int32_t> tokens, int start, int count) {
  const size_t end = static_cast<size_t>(start + count);
  const kernels::Segment segment = {0, count, start, state_.pending_rows};
  kernels::Batch batch;
  batch.role = options_.role;
  batch.row_count = count;
  batch.tokens = tokens.subspan(static_cast<size_t>(start), static_cast<size_t>(count));
  batch.segments = std::span(&segment, 1);
  const model::SegmentInput input = {&state_, tokens.first(end)};
  model_.forward(activations_, batch, std::span(&input, 1), layout_, pages_.data());
  state_.pending_rows = options_.role == kernels::Role::kDecode ? count : 0;
  memory_.copy(wide_.data(), activations_.streams,
               product(count, model_.shape().wide()) * sizeof(float));
}

void Scorer::head_rows(std::span<const int32_t> tokens, const float* wide, int start) {
  const int count = static_cast<int>(tokens.size());
  const kernels::Segment segment = {0, count, start, 0};
  kernels::Batch batch;
  batch.role = options_.role;
  batch.row_count = count;
  batch.tokens = tokens;
  batch.segments = std::span(&segment, 1);
  const model::SegmentInput input = {&state_, tokens};
  model_.mtp_forward(activations_, wide, batch, std::span(&input, 1), layout_, pages_.data());
  memory_.copy(head_wide_.data(), activations_.streams,
               product(count, model_.shape().wide()) * sizeof(float));
}

std::span<const float> Scorer::logits(int rows) {
  const size_t count = product(rows, model_.shape().vocabulary);
  memory_.copy(host_logits_.data(), logits_.data(), count * sizeof(float));
  return std::span(host_logits_).first(count);
}

Status Scorer::score_rows(std::span<const int32_t> tokens, int forward_start, int start, int count,
                          std::vector<PositionScore>& scores) {
  const auto vocabulary = static_cast<size_t>(model_.shape().vocabulary);
  const float* wide = wide_.as<float>() + product(start - forward_start, model_.shape().wide());
  bool any = false;
  for (int row = 0; row < count; ++row) any = any || reported(start + row);
  if (!any) return {};
  model_.head(activations_, logits_.as<float>(), wide, count);
  const std::span<const float> all = logits(count);
  for (int row = 0; row < count; ++row) {
    if (!reported(start + row)) continue;
    PositionScore score;
    score.position = start + row;
    score.token = tokens[static_cast<size_t>(start + row)];
    const auto own = all.subspan(static_cast<size_t>(row) * vocabulary, vocabulary);
    ASSIGN_OR_RETURN(score.next, summarise(own, options_.top));
    scores.push_back(std::move(score));
  }
  return {};
}

Status Scorer::score_chain(const float* wide, int position, std::vector<Distribution>& depths) {
  memory_.copy(fed_.data(), wide, fed_.bytes());
  for (int depth = 2; depth <= options_.mtp_depth; ++depth) {
    const int row = position + depth - 1;
    if (row >= options_.context) break;
    const int32_t draft = depths.back().top.front().id;
    head_rows(std::span(&draft, 1), fed_.as<float>(), row);
    memory_.copy(fed_.data(), head_wide_.data(), fed_.bytes());
    model_.mtp_head(activations_, logits_.as<float>(), fed_.as<float>(), 1);
    ASSIGN_OR_RETURN(Distribution next, summarise(logits(1), options_.top));
    depths.push_back(std::move(next));
  }
  return {};
}

Status Scorer::score_head(std::span<const int32_t> tokens, int forward_start, int start, int count,
                          std::vector<PositionScore>& scores) {
  const auto vocabulary = static_cast<size_t>(model_.shape().vocabulary);
  const int wide_width = model_.shape().wide();
  // The last token has no successor, so its row does not exist.
  const int end = std::min(start + count, static_cast<int>(tokens.size()) - 1);
  size_t next_score = 0;
  for (int first = start; first < end;) {
    // A chain of drafts overwrites the rows behind its own, so a run ends where one begins.
    int last = end - 1;
    if (options_.mtp_depth > 1) {
      last = first;
      while (last < end - 1 && !reported(last)) ++last;
    }
    const int rows = last - first + 1;
    head_rows(tokens.subspan(static_cast<size_t>(first) + 1, static_cast<size_t>(rows)),
              wide_.as<float>() + product(first - forward_start, wide_width), first);
    const bool chained = options_.mtp_depth > 1;
    const int scored_from = chained ? last : first;
    if (!chained || reported(last)) {
      model_.mtp_head(activations_, logits_.as<float>(),
                      head_wide_.as<float>() + product(scored_from - first, wide_width),
                      last - scored_from + 1);
      const std::span<const float> all = logits(last - scored_from + 1);
      for (int position = scored_from; position <= last; ++position) {
        if (!reported(position)) continue;
        while (scores[next_score].position < position) ++next_score;
        std::vector<Distribution>& depths = scores[next_score].mtp;
        const auto own =
            all.subspan(static_cast<size_t>(position - scored_from) * vocabulary, vocabulary);
        ASSIGN_OR_RETURN(Distribution depth_one, summarise(own, options_.top));
        depths.push_back(std::move(depth_one));
        if (chained) {
          RETURN_IF_ERROR(score_chain(
              head_wide_.as<float>() + product(position - first, wide_width), position, depths));
        }
      }
    }
    first = last + 1;
  }
  return {};
}

Status Scorer::run(std::span<const int32_t> tokens, const Sink& sink) {
  CHECK(static_cast<int>(tokens.size()) <= options_.context);
  const int total = static_cast<int>(tokens.size());
  for (int start = 0; start < total; start += options_.rows) {
    const int rows = std::min(options_.rows, total - start);
    forward_rows(tokens, start, rows);
    for (int group = start; group < start + rows; group += kGroup) {
      const int count = std::min(kGroup, start + rows - group);
      std::vector<PositionScore> scores;
      RETURN_IF_ERROR(score_rows(tokens, start, group, count, scores));
      if (options_.mtp_depth > 0) {
        RETURN_IF_ERROR(score_head(tokens, start, group, count, scores));
      }
      for (const PositionScore& score : scores) RETURN_IF_ERROR(sink(score));
    }
  }
  return {};
}

}  // namespace flashlane::cli
