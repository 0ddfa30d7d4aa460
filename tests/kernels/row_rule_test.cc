// The row rule (docs/row_rule.md), by bits, for every op on every backend: a row alone equals the
// row among others at every index, under every thread count; a sequence in any cuts, roles, windows
// rolled back to any length, neighbours and page layouts equals the same sequence row by row.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <memory>

#include "tests/kernels/test_cases.h"

namespace flashlane::kernels::test {
namespace {

// Index of the first float whose bits differ, or -1.
int64_t first_difference(const float* a, const float* b, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i])) return i;
  }
  return -1;
}

// ---------------------------------------------------------------------------------------------------
// Ops over rows without state.

constexpr int kRows = 29;
constexpr int kManyRows = 70;  // more than any kernel takes at once

// Rows in a random order, in forwards of random sizes, against each row's output alone.
void check_row_op(const RowOp& op, Ops& ops, const std::vector<float>& in,
                  const std::vector<float>& alone, int rows, Random& random) {
  for (int round = 0; round < 6; ++round) {
    std::vector<int> order(static_cast<size_t>(rows));
    for (int i = 0; i < rows; ++i) order[static_cast<size_t>(i)] = i;
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[static_cast<size_t>(random.below(static_cast<int>(i)))]);
    }
    int count = 0;
    for (int first = 0; first < rows; first += count) {
      count = std::min(rows - first, round == 0 ? rows : random.between(1, 17));
      std::vector<float> some;
      for (int i = 0; i < count; ++i) {
        const auto row = in.begin() + order[static_cast<size_t>(first + i)] * op.in_width;
        some.insert(some.end(), row, row + op.in_width);
      }
      std::vector<float> out(static_cast<size_t>(count * op.out_width), -7);
      op.run(ops, out.data(), some.data(), count);
      for (int i = 0; i < count; ++i) {
        const int row = order[static_cast<size_t>(first + i)];
        ASSERT_EQ(first_difference(&out[static_cast<size_t>(i * op.out_width)],
                                   &alone[static_cast<size_t>(row * op.out_width)], op.out_width),
                  -1)
            << op.name << ": row " << row << " as " << i << " of " << count << " rows";
      }
    }
  }
}

void check_row_ops(const Backend& backend, const Format& format, const RowSizes& sizes,
                   int rows = kRows) {
  constexpr uint64_t kSeed = 77;
  Store first_store;
  const auto single = backend.make(1);
  const auto reference = row_ops(*single, first_store, format, sizes, kSeed);
  for (const int threads : {1, 2, 3}) {
    if (threads > 1 && !backend.threaded) break;
    Store store;
    const auto ops = backend.make(threads);
    const auto cases = row_ops(*ops, store, format, sizes, kSeed);
    for (size_t i = 0; i < cases.size(); ++i) {
      const RowOp& op = cases[i];
      SCOPED_TRACE(backend.name + " " + format.name + " threads " + std::to_string(threads));
      Random random(1000 + i);
      const auto in = random.values(int64_t{rows} * op.in_width, -2, 2);
      std::vector<float> alone(static_cast<size_t>(rows * op.out_width), -9);
      for (int row = 0; row < rows; ++row) {
        reference[i].run(*single, &alone[static_cast<size_t>(row * op.out_width)],
                         &in[static_cast<size_t>(row * op.in_width)], 1);
      }
      check_row_op(op, *ops, in, alone, rows, random);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

TEST(RowRule, RowsAloneEqualRowsAmongOthersInEveryFormat) {
  for (const Backend& backend : backends()) {
    for (const Format& format : all_formats()) check_row_ops(backend, format, kRoundSizes);
  }
}

TEST(RowRule, RowsAloneEqualRowsAmongOthersInLongSumsAndManyRows) {
  for (const Backend& backend : backends()) {
    for (const char* format : {"bf16", "q4g32", "q6g64"}) {
      check_row_ops(backend, format_named(format), kDeepSizes, kManyRows);
    }
  }
}

TEST(RowRule, RowsAloneEqualRowsAmongOthersInHalfSteps) {
  for (const Backend& backend : backends()) {
    for (const char* format : {"bf16", "q4g32", "q8g32"}) {
      check_row_ops(backend, format_named(format), kHalfSizes);
    }
  }
}

TEST(RowRule, RowsAloneEqualRowsAmongOthersInWidthsThatFitNoVector) {
  for (const Backend& backend : backends()) {
    for (const char* format : {"f32", "bf16", "f16"}) {
      check_row_ops(backend, format_named(format), kOddSizes);
    }
  }
}

// ---------------------------------------------------------------------------------------------------
// Layers with state.

struct Sequence {
  std::vector<float> inputs;   // [kMostPositions, in_width]
  std::vector<float> outputs;  // of kept rows
  LayerState state;
  int done = 0;
  int pending_rows = 0;
};

struct Part {
  Sequence* sequence;
  int row_count;
  int kept;  // rows from this one on carry other inputs and are rolled back
};

void run_forward(LayerCase& layer, Ops& ops, Role role, const std::vector<Part>& parts,
                 Random& random) {
  std::vector<float> in;
  std::vector<LayerSegment> segments;
  int rows = 0;
  for (const Part& part : parts) {
    const auto first = part.sequence->inputs.begin() + part.sequence->done * layer.in_width();
    in.insert(in.end(), first, first + part.kept * layer.in_width());
    const auto rejected = random.values((part.row_count - part.kept) * layer.in_width(), -2, 2);
    in.insert(in.end(), rejected.begin(), rejected.end());
    segments.push_back(
        {&part.sequence->state, part.row_count, part.sequence->done, part.sequence->pending_rows});
    rows += part.row_count;
  }
  std::vector<float> out(static_cast<size_t>(rows * layer.out_width()));
  layer.run(ops, out.data(), in.data(), role, segments);
  int row = 0;
  for (const Part& part : parts) {
    const auto first = out.begin() + row * layer.out_width();
    part.sequence->outputs.insert(part.sequence->outputs.end(), first,
                                  first + part.kept * layer.out_width());
    part.sequence->done += part.kept;
    part.sequence->pending_rows = role == Role::kDecode ? part.kept : 0;
    row += part.row_count;
  }
}

std::vector<Sequence> make_sequences(LayerCase& layer, int count, uint64_t seed) {
  Random random(seed);
  std::vector<Sequence> sequences(static_cast<size_t>(count));
  for (Sequence& sequence : sequences) {
    sequence.inputs = random.values(int64_t{kMostPositions} * layer.in_width(), -2, 2);
    sequence.state = layer.new_state(random);
  }
  return sequences;
}

// Every sequence alone, one prompt row a forward, on one thread.
struct Expected {
  std::vector<float> outputs;
  std::vector<float> snapshot;
};
Expected row_by_row(LayerCase& layer, Ops& ops, Sequence& sequence, int positions) {
  Random unused(1);
  while (sequence.done < positions) {
    run_forward(layer, ops, Role::kPrompt, {{&sequence, 1, 1}}, unused);
  }
  Expected expected;
  expected.outputs = sequence.outputs;
  expected.snapshot = layer.snapshot(ops, sequence.state, 0, positions);
  return expected;
}

void expect_same(LayerCase& layer, Ops& ops, Sequence& sequence, const Expected& expected,
                 const std::string& what) {
  ASSERT_EQ(sequence.outputs.size(), expected.outputs.size());
  const int64_t at = first_difference(sequence.outputs.data(), expected.outputs.data(),
                                      static_cast<int64_t>(expected.outputs.size()));
  ASSERT_EQ(at, -1) << what << ": output " << at % layer.out_width() << " of position "
                    << at / layer.out_width();
  const auto snapshot = layer.snapshot(ops, sequence.state, sequence.pending_rows, sequence.done);
  ASSERT_EQ(snapshot.size(), expected.snapshot.size());
  ASSERT_EQ(first_difference(snapshot.data(), expected.snapshot.data(),
                             static_cast<int64_t>(snapshot.size())),
            -1)
      << what << ": state";
}

// Random forwards over several sequences until all are done: chunks, windows, cuts, neighbours.
void run_random_plan(LayerCase& layer, Ops& ops, std::vector<Sequence>& sequences, int positions,
                     Random& random) {
  for (;;) {
    std::vector<Part> parts;
    const Role role = random.below(2) == 0 ? Role::kPrompt : Role::kDecode;
    int rows = 0;
    for (Sequence& sequence : sequences) {
      const int left = positions - sequence.done;
      if (left == 0 || (random.below(3) == 0 && !parts.empty())) continue;
      const int most = std::min(role == Role::kPrompt ? 13 : kMaxWindow, 60 - rows);
      if (most < 1) continue;
      if (role == Role::kPrompt) {
        const int count = std::min(left, random.between(1, most));
        parts.push_back({&sequence, count, count});
      } else {
        const int count = random.between(1, random.below(4) == 0 ? most : std::min(4, most));
        parts.push_back({&sequence, count, std::min(left, random.between(1, count))});
      }
      rows += parts.back().row_count;
    }
    if (parts.empty()) return;
    std::reverse(parts.begin(), parts.begin() + random.below(static_cast<int>(parts.size()) + 1));
    run_forward(layer, ops, role, parts, random);
  }
}

void check_layers(const Backend& backend, DType dtype) {
  constexpr uint64_t kSeed = 5;
  constexpr int kSequences = 3;
  constexpr int kPositions = 101;
  const auto single = backend.make(1);
  auto baseline = layer_cases(kSeed, {dtype, 4});
  for (size_t c = 0; c < baseline.size(); ++c) {
    auto alone = make_sequences(*baseline[c], kSequences, 300 + c);
    std::vector<Expected> expected;
    expected.reserve(alone.size());
    for (Sequence& sequence : alone) {
      expected.push_back(row_by_row(*baseline[c], *single, sequence, kPositions));
    }
    for (const int threads : {1, 2, 3}) {
      if (threads > 1 && !backend.threaded) break;
      const auto ops = backend.make(threads);
      for (const int page_rows : {4, 12, 40}) {
        auto layer = std::move(layer_cases(kSeed, {dtype, page_rows})[c]);
        Random random(static_cast<uint64_t>(threads * 100 + page_rows));
        auto sequences = make_sequences(*layer, kSequences, 300 + c);
        run_random_plan(*layer, *ops, sequences, kPositions, random);
        for (size_t s = 0; s < sequences.size(); ++s) {
          expect_same(*layer, *ops, sequences[s], expected[s],
                      backend.name + " " + layer->name() + " threads " + std::to_string(threads) +
                          " page rows " + std::to_string(page_rows) + " sequence " +
                          std::to_string(s));
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(RowRule, SequencesInAnyCutsEqualRowByRowWithF32Cache) {
  for (const Backend& backend : backends()) check_layers(backend, DType::kF32);
}

TEST(RowRule, SequencesInAnyCutsEqualRowByRowWithBf16Cache) {
  for (const Backend& backend : backends()) check_layers(backend, DType::kBf16);
}

// A prompt, then windows of four of which 1, 2 or 3 rows are kept, then plain rows.
TEST(RowRule, WindowsCutToAnyLengthEqualPlainRows) {
  constexpr int kPrompt = 7;
  constexpr int kPositions = 30;
  for (const Backend& backend : backends()) {
    const auto ops = backend.make(2);
    auto layers = layer_cases(9, {DType::kF32, 8});
    for (const auto& layer : layers) {
      auto alone = make_sequences(*layer, 1, 42);
      const Expected expected = row_by_row(*layer, *ops, alone[0], kPositions);
      for (int kept = 1; kept <= 4; ++kept) {
        Random random(static_cast<uint64_t>(kept));
        auto sequence = std::move(make_sequences(*layer, 1, 42)[0]);
        run_forward(*layer, *ops, Role::kPrompt, {{&sequence, kPrompt, kPrompt}}, random);
        for (int window = 0; window < 4; ++window) {
          run_forward(*layer, *ops, Role::kDecode, {{&sequence, 4, kept}}, random);
        }
        while (sequence.done < kPositions) {
          run_forward(*layer, *ops, Role::kDecode, {{&sequence, 1, 1}}, random);
        }
        expect_same(*layer, *ops, sequence, expected,
                    backend.name + " " + layer->name() + " kept " + std::to_string(kept));
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Settling between forwards changes nothing: what is settled is what would have been replayed.
TEST(RowRule, SettlingEarlyEqualsSettlingInTheNextForward) {
  constexpr int kPositions = 24;
  for (const Backend& backend : backends()) {
    const auto ops = backend.make(1);
    auto layers = layer_cases(11, {DType::kBf16, 4});
    for (const auto& layer : layers) {
      auto alone = make_sequences(*layer, 1, 43);
      const Expected expected = row_by_row(*layer, *ops, alone[0], kPositions);
      auto sequence = std::move(make_sequences(*layer, 1, 43)[0]);
      Random random(8);
      while (sequence.done < kPositions) {
        const int kept = std::min(random.between(1, 5), kPositions - sequence.done);
        run_forward(*layer, *ops, Role::kDecode, {{&sequence, 5, kept}}, random);
        if (random.below(2) == 0) continue;
        layer->snapshot(*ops, sequence.state, sequence.pending_rows, sequence.done);
        sequence.pending_rows = 0;
      }
      expect_same(*layer, *ops, sequence, expected, backend.name + " " + layer->name());
      if (HasFatalFailure()) return;
    }
  }
}

// Exact ties go to the lower index: all experts and all blocks score the same.
TEST(RowRule, TiesGoToTheLowerIndex) {
  for (const Backend& backend : backends()) {
    const auto ops = backend.make(2);
    Store store;
    const auto cases = row_ops(*ops, store, format_named("f32"), kRoundSizes, 3);
    const auto moe =
        std::find_if(cases.begin(), cases.end(), [](const RowOp& op) { return op.name == "moe"; });
    const std::vector<float> zeros(static_cast<size_t>(moe->in_width));
    std::vector<float> out(static_cast<size_t>(moe->out_width));
    moe->run(*ops, out.data(), zeros.data(), 1);
    EXPECT_EQ(std::vector<float>(out.begin(), out.begin() + 3), (std::vector<float>{0, 1, 2}))
        << backend.name;

    auto layer = std::move(layer_cases(9, {DType::kF32, 4})[5]);
    ASSERT_EQ(layer->name(), "attention_odd");
    auto sequence = std::move(make_sequences(*layer, 1, 1)[0]);
    std::fill(sequence.inputs.begin(), sequence.inputs.end(), 0.0F);
    Random random(1);
    run_forward(*layer, *ops, Role::kPrompt, {{&sequence, 31, 31}}, random);
    const std::vector<float> last(sequence.outputs.end() - 6, sequence.outputs.end());
    EXPECT_EQ(last, (std::vector<float>{5, 0, 1, 2, 3, 4})) << backend.name;
  }
}

}  // namespace
}  // namespace flashlane::kernels::test
