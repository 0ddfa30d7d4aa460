// A model with one or more sequences for tests: feeds prompt chunks and decode windows, commits any
// prefix of a window, and gives back logits, so that a test reads like what it claims.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "model/forward.h"
#include "model/load.h"
#include "tensor/buffer.h"

namespace flashlane::model {

inline std::unique_ptr<Model> load_for_test(const std::string& name, const std::string& backend,
                                            int threads = 1) {
  auto location = locate_model(name);
  EXPECT_TRUE(location.ok()) << (location.ok() ? "" : location.error().message);
  LoadOptions options;
  options.backend.backend = backend;
  options.backend.threads = threads;
  options.context = 4096;
  auto model = load_model(*location, options);
  EXPECT_TRUE(model.ok()) << (model.ok() ? "" : model.error().message);
  return std::move(model).value();
}

// One sequence with its own states and pages.
struct TestSequence {
  TestSequence(Model& model, int context, int page_rows = 64, int first_page = 0)
      : layout(make_state_layout(model.shape(), model.backend().default_kv_dtype, page_rows)),
        pieces(layout.pieces_bytes) {
    const int pages = layout.pages_for(context + kernels::kMaxWindow);
    // Pages in descending order, so that a test never depends on consecutive ids.
    for (int i = 0; i < pages; ++i) table.push_back(first_page + pages - 1 - i);
    state = bind_state(model.shape(), layout, pieces.data(), table.data());
  }
  StateLayout layout;
  Buffer pieces;
  std::vector<int32_t> table;
  SequenceState state;
  std::vector<int32_t> tokens;  // committed ones
};

// Runs forwards for sequences that share one pool.
class Harness {
 public:
  explicit Harness(Model& model, int max_rows = 512, int pool_tokens = 4096)
      : model_(model), act_(model.shape(), max_rows) {
    const StateLayout layout =
        make_state_layout(model.shape(), model.backend().default_kv_dtype, 64);
    pool_ = Buffer(layout.page_bytes * static_cast<size_t>(layout.pages_for(pool_tokens)) * 2);
  }

  struct Part {
    TestSequence* sequence;
    std::vector<int32_t> tokens;
  };

  // One forward over several sequences; returns logits of every row. Decode parts commit nothing:
  // call keep(). Prompt parts are kept whole.
  std::vector<float> run(kernels::Role role, std::vector<Part> parts, Probe* probe = nullptr) {
    std::vector<int32_t> rows;
    std::vector<kernels::Segment> segments;
    std::vector<std::vector<int32_t>> histories;
    std::vector<SegmentInput> inputs;
    for (Part& part : parts) {
      segments.push_back({.first_row = static_cast<int>(rows.size()),
                          .row_count = static_cast<int>(part.tokens.size()),
                          .start_position = static_cast<int>(part.sequence->tokens.size()),
                          .pending_rows = part.sequence->state.pending_rows});
      rows.insert(rows.end(), part.tokens.begin(), part.tokens.end());
      auto& history = histories.emplace_back(part.sequence->tokens);
      history.insert(history.end(), part.tokens.begin(), part.tokens.end());
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      inputs.push_back({&parts[i].sequence->state, histories[i]});
    }
    const kernels::Batch batch{role, static_cast<int>(rows.size()), rows, segments};
    model_.forward(act_, batch, inputs, parts[0].sequence->layout, pool_.data(), probe);
    wide_.assign(act_.streams,
                 act_.streams + rows.size() * static_cast<size_t>(model_.shape().wide()));
    for (Part& part : parts) {
      if (role == kernels::Role::kPrompt) {
        part.sequence->state.pending_rows = 0;
        part.sequence->tokens.insert(part.sequence->tokens.end(), part.tokens.begin(),
                                     part.tokens.end());
      }
    }
    std::vector<float> logits(rows.size() * static_cast<size_t>(model_.shape().vocabulary));
    model_.head(act_, logits.data(), wide_.data(), static_cast<int>(rows.size()), probe);
    return logits;
  }

  std::vector<float> prompt(TestSequence& sequence, std::vector<int32_t> tokens,
                            Probe* probe = nullptr) {
    return run(kernels::Role::kPrompt, {{&sequence, std::move(tokens)}}, probe);
  }
  // A window of which `kept` rows are committed.
  std::vector<float> window(TestSequence& sequence, const std::vector<int32_t>& tokens, int kept) {
    auto logits = run(kernels::Role::kDecode, {{&sequence, tokens}});
    keep(sequence, tokens, kept);
    return logits;
  }
  static void keep(TestSequence& sequence, const std::vector<int32_t>& tokens, int kept) {
    sequence.state.pending_rows = kept;
    sequence.tokens.insert(sequence.tokens.end(), tokens.begin(), tokens.begin() + kept);
  }

  // MTP rows from `position` on: wide [rows, wide]. Returns logits; streams() holds the output.
  std::vector<float> mtp(TestSequence& sequence, int position, const std::vector<float>& wide,
                         std::vector<int32_t> tokens, kernels::Role role, Probe* probe = nullptr) {
    const std::vector<kernels::Segment> segments = {
        {.first_row = 0, .row_count = static_cast<int>(tokens.size()), .start_position = position}};
    const std::vector<SegmentInput> inputs = {{&sequence.state, tokens}};
    const kernels::Batch batch{role, static_cast<int>(tokens.size()), tokens, segments};
    model_.mtp_forward(act_, wide.data(), batch, inputs, sequence.layout, pool_.data(), probe);
    wide_.assign(act_.streams,
                 act_.streams + tokens.size() * static_cast<size_t>(model_.shape().wide()));
    std::vector<float> logits(tokens.size() * static_cast<size_t>(model_.shape().vocabulary));
    model_.mtp_head(act_, logits.data(), wide_.data(), static_cast<int>(tokens.size()), probe);
    return logits;
  }

  std::byte* pool() { return pool_.data(); }
  // Wide residual of every row of the last run or mtp.
  const std::vector<float>& wide() const { return wide_; }
  std::vector<float> wide_row(size_t row) const {
    const auto width = static_cast<size_t>(model_.shape().wide());
    return {wide_.begin() + static_cast<std::ptrdiff_t>(row * width),
            wide_.begin() + static_cast<std::ptrdiff_t>((row + 1) * width)};
  }

 private:
  Model& model_;
  Activations act_;
  Buffer pool_;
  std::vector<float> wide_;
};

}  // namespace flashlane::model
