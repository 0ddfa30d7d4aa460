// The promise at the model's own level, to the bit: any cut of a prompt (E7), any prefix of a
// decode window committed (E1), any company in the forward (E2), any page order (E3), any thread
// count (E4).
#include <cstring>
#include <random>

#include "tests/model/harness.h"

namespace flashlane::model {
namespace {

struct Case {
  std::string backend;
  std::string model;
};

std::vector<int32_t> random_tokens(const ModelShape& shape, int count, uint32_t seed) {
  std::mt19937 random(seed);
  std::uniform_int_distribution<int32_t> token(0, shape.vocabulary - 1);
  std::vector<int32_t> tokens;
  for (int i = 0; i < count; ++i)
    tokens.push_back(random() % 9 == 0 ? shape.eos_token : token(random));
  return tokens;
}

// The rows' bits, so that a difference in the sign of a zero or a NaN counts.
void expect_same_bits(const std::vector<float>& a, const std::vector<float>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
}

void append(std::vector<float>& all, const std::vector<float>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

class Exactness : public testing::TestWithParam<Case> {
 protected:
  Exactness()
      : model_(load(1)), harness_(*model_), tokens_(random_tokens(model_->shape(), 48, 7)) {}

  static std::string place(const std::string& model) {
    return model == "micro_a" ? std::string(FLASHLANE_SOURCE_DIR) + "/tests/fixtures/micro_a"
                              : model;
  }
  static std::unique_ptr<Model> load(int threads) {
    return load_for_test(place(GetParam().model), GetParam().backend, threads);
  }
  std::vector<int32_t> slice(size_t from, size_t to) const {
    return {tokens_.begin() + static_cast<std::ptrdiff_t>(from),
            tokens_.begin() + static_cast<std::ptrdiff_t>(to)};
  }
  // Everything after the first `prompt` tokens one row at a time.
  std::vector<float> plain(size_t prompt) {
    TestSequence sequence(*model_, 128);
    harness_.prompt(sequence, slice(0, prompt));
    std::vector<float> logits;
    for (size_t i = prompt; i < tokens_.size(); ++i) {
      append(logits, harness_.window(sequence, {tokens_[i]}, 1));
    }
    return logits;
  }

  std::unique_ptr<Model> model_;
  Harness harness_;
  std::vector<int32_t> tokens_;
};

TEST_P(Exactness, AnyCutOfAPromptGivesTheSameBits) {
  TestSequence whole(*model_, 128);
  const auto expected = harness_.prompt(whole, tokens_);
  for (size_t cut = 1; cut < tokens_.size(); ++cut) {
    TestSequence sequence(*model_, 128);
    auto logits = harness_.prompt(sequence, slice(0, cut));
    append(logits, harness_.prompt(sequence, slice(cut, tokens_.size())));
    expect_same_bits(expected, logits, ("cut at " + std::to_string(cut)).c_str());
  }
  TestSequence single(*model_, 128);
  std::vector<float> logits;
  for (const int32_t token : tokens_) append(logits, harness_.prompt(single, {token}));
  expect_same_bits(expected, logits, "one row at a time");
  // The states that later rows stand on are equal too, not only the logits so far.
  for (size_t i = 0; i < whole.state.gdn.size(); ++i) {
    EXPECT_EQ(std::memcmp(whole.state.gdn[i].recurrent, single.state.gdn[i].recurrent,
                          whole.layout.pieces[i * 5].bytes),
              0)
        << "DeltaNet layer " << i;
  }
}

// A window of four drafts of which some are wrong, cut to each length, then continued.
TEST_P(Exactness, AnyPrefixOfAWindowCanBeCommitted) {
  const size_t prompt = 21;
  const auto expected = plain(prompt);
  const auto width = static_cast<size_t>(model_->shape().vocabulary);
  for (int kept = 1; kept <= 4; ++kept) {
    TestSequence sequence(*model_, 128);
    harness_.prompt(sequence, slice(0, prompt));
    std::vector<float> logits;
    size_t next = prompt;
    while (next < tokens_.size()) {
      const auto left = static_cast<int>(tokens_.size() - next);
      const int keep = std::min(kept, left);
      auto window = slice(next, next + static_cast<size_t>(keep));
      // Rows after the kept ones carry tokens that are not the true ones.
      while (window.size() < 4) window.push_back((tokens_[next] + 17) % model_->shape().vocabulary);
      auto rows = harness_.window(sequence, window, keep);
      rows.resize(static_cast<size_t>(keep) * width);
      append(logits, rows);
      next += static_cast<size_t>(keep);
    }
    expect_same_bits(expected, logits, ("windows of 4 cut to " + std::to_string(kept)).c_str());
    // Settled, the states equal those of plain decoding as well.
    model_->settle(sequence.state);
    TestSequence single(*model_, 128);
    harness_.prompt(single, slice(0, prompt));
    for (size_t i = prompt; i < tokens_.size(); ++i) harness_.window(single, {tokens_[i]}, 1);
    model_->settle(single.state);
    for (size_t i = 0; i < single.state.gdn.size(); ++i) {
      EXPECT_EQ(std::memcmp(sequence.state.gdn[i].recurrent, single.state.gdn[i].recurrent,
                            single.layout.pieces[i * 5].bytes),
                0)
          << "DeltaNet layer " << i;
    }
  }
}

// A prompt chunk may follow a decode window (the next turn of a chat), pending rows and all.
TEST_P(Exactness, PromptRowsAfterAWindowTakeItsKeptRows) {
  TestSequence expected_sequence(*model_, 128);
  harness_.prompt(expected_sequence, slice(0, 20));
  for (size_t i = 20; i < 23; ++i) harness_.window(expected_sequence, {tokens_[i]}, 1);
  const auto expected = harness_.prompt(expected_sequence, slice(23, tokens_.size()));
  TestSequence sequence(*model_, 128);
  harness_.prompt(sequence, slice(0, 20));
  auto window = slice(20, 23);
  window.push_back(3);
  harness_.window(sequence, window, 3);
  expect_same_bits(expected, harness_.prompt(sequence, slice(23, tokens_.size())),
                   "after a window");
}

TEST_P(Exactness, CompanyAndPlaceDoNotMatter) {
  const auto width = static_cast<size_t>(model_->shape().vocabulary);
  const auto other_tokens = random_tokens(model_->shape(), 40, 99);
  const auto expected = plain(20);
  for (int place_among = 0; place_among < 3; ++place_among) {
    std::vector<std::unique_ptr<TestSequence>> sequences;
    for (int i = 0; i < 3; ++i) {
      sequences.push_back(std::make_unique<TestSequence>(*model_, 128, 64, i * 3));
    }
    std::vector<Harness::Part> prompts;
    for (int i = 0; i < 3; ++i) {
      const auto count = i == place_among ? 20 : 5 + 9 * i;
      const auto& source = i == place_among ? tokens_ : other_tokens;
      prompts.push_back(
          {sequences[static_cast<size_t>(i)].get(), {source.begin(), source.begin() + count}});
    }
    harness_.run(kernels::Role::kPrompt, prompts);
    std::vector<float> logits;
    for (size_t next = 20; next < tokens_.size(); ++next) {
      std::vector<Harness::Part> parts;
      for (int i = 0; i < 3; ++i) {
        const bool ours = i == place_among;
        std::vector<int32_t> rows = ours ? std::vector<int32_t>{tokens_[next]}
                                         : std::vector<int32_t>{other_tokens[next % 40], 5, 6};
        if (!ours) rows.resize(1 + (next + static_cast<size_t>(i)) % 3);
        parts.push_back({sequences[static_cast<size_t>(i)].get(), rows});
      }
      const auto all = harness_.run(kernels::Role::kDecode, parts);
      size_t row = 0;
      for (int i = 0; i < 3; ++i) {
        auto& part = parts[static_cast<size_t>(i)];
        if (i == place_among) {
          logits.insert(logits.end(), all.begin() + static_cast<std::ptrdiff_t>(row * width),
                        all.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
        }
        row += part.tokens.size();
        Harness::keep(*part.sequence, part.tokens,
                      i == place_among ? 1 : static_cast<int>(part.tokens.size()));
      }
    }
    expect_same_bits(expected, logits, ("place " + std::to_string(place_among)).c_str());
  }
}

TEST_P(Exactness, ThreadsAndPageSizesDoNotMatter) {
  const auto expected = plain(25);
  for (int threads = 2; threads <= 3; ++threads) {
    auto model = load(threads);
    for (const int page_rows : {4, 12, 64}) {
      Harness harness(*model, 512, 8192);
      TestSequence sequence(*model, 128, page_rows);
      harness.prompt(sequence, slice(0, 25));
      std::vector<float> logits;
      for (size_t i = 25; i < tokens_.size(); ++i) {
        append(logits, harness.window(sequence, {tokens_[i]}, 1));
      }
      expect_same_bits(expected, logits, ("threads " + std::to_string(threads)).c_str());
    }
  }
}

// Prompt and decode arithmetic are bit-equal on both host backends: docs/row_rule.md says so.
TEST_P(Exactness, PromptAndDecodeArithmeticAgree) {
  TestSequence sequence(*model_, 128);
  auto logits = harness_.prompt(sequence, tokens_);
  logits.erase(logits.begin(), logits.begin() + 20 * model_->shape().vocabulary);
  expect_same_bits(plain(20), logits, "prompt against decode");
}

std::string case_name(const testing::TestParamInfo<Case>& tested) {
  const bool tiny = tested.param.model.starts_with("synth:");
  return tested.param.backend + (tiny ? "_tiny" : "_micro");
}

INSTANTIATE_TEST_SUITE_P(Host, Exactness,
                         testing::Values(Case{"reference", "synth:tiny"},
                                         Case{"reference", "micro_a"}, Case{"cpu", "synth:tiny"},
                                         Case{"cpu", "micro_a"}),
                         case_name);

}  // namespace
}  // namespace flashlane::model
