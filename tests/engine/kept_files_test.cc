// Kept states on files while the engine runs: what memory has no room for comes back for the prompt
// that begins like it, as it was; whatever happens to the file, or to the request that waits for
// it, costs the state and nothing else (H4).
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/engine/bench.h"

namespace flashlane::engine {
namespace {

namespace fs = std::filesystem;
using flashlane::testing::solo_reply;

constexpr int kVocabulary = 16;
constexpr int kPageRows = 4;
constexpr size_t kPageBytes = 4096;
// A prompt of so many tokens keeps its state behind the last but one; the arena has room for one.
constexpr int kPrompt = 61;
constexpr int kStatePages = 2;
constexpr int kKeptPages = kStatePages + kPrompt / kPageRows;

// Pages of the arena as bytes: whose they are, and which.
class PagesDevice : public CallingDevice {
 public:
  explicit PagesDevice(std::function<void()> before)
      : CallingDevice([this](const StepPlan& plan) {
          if (before_) before_();
          return runner.run(plan);
        }),
        before_(std::move(before)) {}

  void read_kept(std::span<const memory::PageId> pages, int index, int rows,
                 std::span<std::byte> out) override {
    const FakeRunner::Copy& copy = runner.arena[pages[static_cast<size_t>(index)]];
    EXPECT_EQ(copy.place, static_cast<size_t>(index));
    EXPECT_EQ(copy.history.size(), static_cast<size_t>(rows));
    Tokens words = {static_cast<int32_t>(copy.place), static_cast<int32_t>(copy.history.size())};
    words.insert(words.end(), copy.history.begin(), copy.history.end());
    CHECK_LE(words.size() * sizeof(int32_t), out.size());
    std::memset(out.data(), 0, out.size());
    std::memcpy(out.data(), words.data(), words.size() * sizeof(int32_t));
  }
  void write_kept(memory::PageId page, std::span<const std::byte> in) override {
    Tokens words(in.size() / sizeof(int32_t));
    std::memcpy(words.data(), in.data(), in.size());
    FakeRunner::Copy& copy = runner.arena[page];
    copy.place = static_cast<size_t>(words[0]);
    copy.history.assign(words.begin() + 2, words.begin() + 2 + words[1]);
  }

  FakeRunner runner;

 private:
  std::function<void()> before_;
};

class KeptFilesTest : public ::testing::Test {
 protected:
  KeptFilesTest() {
    std::string pattern = (fs::temp_directory_path() / "kept-files-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
    start();
  }
  ~KeptFilesTest() override {
    gate_.open();
    engine_.reset();
    fs::remove_all(directory_);
  }

  void start() {
    auto snapshots =
        runner::Snapshots::open(directory_, std::string(64, 'k'), kPageBytes, size_t{1} << 24);
    ASSERT_TRUE(snapshots.ok());
    EngineOptions chosen = options();
    chosen.inbox = 16;
    chosen.scheduler.slots = 4;
    chosen.scheduler.kept_pages = kKeptPages;
    chosen.scheduler.kept_gap = 8;
    chosen.scheduler.pool =
        memory::PoolLayout::make({.page_rows = kPageRows,
                                  .page_bytes = kPageBytes,
                                  .piece_bytes = {kPageBytes, kPageBytes},
                                  .form = memory::PoolLayout::StateForm::kPieces,
                                  .window_rows = scheduler::kMostDecodeRows})
            .value();
    chosen.snapshots = std::move(snapshots).value();
    chosen.report = [this](const std::string& line) {
      std::lock_guard lock(mutex_);
      told_.push_back(line);
    };
    auto device = std::make_unique<PagesDevice>([this] { gate_.pass(); });
    device->runner.slots = chosen.scheduler.slots;
    engine_ = std::make_unique<Engine>(std::move(device), std::move(chosen));
  }

  static Request prompt_of(int32_t first, int length = kPrompt) {
    Tokens prompt(static_cast<size_t>(length));
    for (size_t i = 0; i < prompt.size(); ++i) {
      prompt[i] = static_cast<int32_t>((static_cast<size_t>(first) + i * i) % kVocabulary);
    }
    return request(std::move(prompt), 6);
  }
  // The reply is what it always is; says what was reused.
  PromptReuse ask(const Request& wanted) {
    Reply reply = engine_->submit(wanted).value();
    const Collected all = collect(reply);
    EXPECT_EQ(all.tokens, solo_reply(wanted, kVocabulary).tokens);
    EXPECT_EQ(all.last.reason, FinishReason::kLength) << all.last.error.message;
    return all.last.reuse;
  }
  EngineStatus await(const std::function<bool(const EngineStatus&)>& as_wanted) const {
    EngineStatus now = engine_->status();
    for (int i = 0; i < 20000 && !as_wanted(now); ++i) {
      std::this_thread::sleep_for(milliseconds(1));
      now = engine_->status();
    }
    EXPECT_TRUE(as_wanted(now));
    return now;
  }
  void await_saved(int64_t states) const {
    await([&](const EngineStatus& now) { return now.snapshots_saved >= states; });
  }
  // Both were kept and have files; only the second is in memory.
  void keep_two() {
    ask(prompt_of(1));
    await_saved(1);
    ask(prompt_of(2));
    await_saved(2);
    EXPECT_EQ(engine_->status().prompt_cache.evicted, 1);
    EXPECT_EQ(engine_->status().snapshots_read_back, 0);
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& at : fs::directory_iterator(directory_)) {
      if (at.path().extension() == ".state") found.push_back(at.path());
    }
    return found;
  }
  void expect_at_rest() const {
    const EngineStatus now =
        await([](const EngineStatus& s) { return s.usage == s.usage_at_load; });
    EXPECT_EQ(now.running + now.waiting, 0);
  }
  int times_told(const std::string& part) {
    std::lock_guard lock(mutex_);
    return static_cast<int>(std::count_if(told_.begin(), told_.end(), [&](const std::string& line) {
      return line.find(part) != std::string::npos;
    }));
  }

  std::string directory_;
  Gate gate_;
  std::mutex mutex_;
  std::vector<std::string> told_;  // guarded
  std::unique_ptr<Engine> engine_;
};

TEST_F(KeptFilesTest, WhatWasEvictedIsReadBack) {
  keep_two();
  for (int round = 0; round < 6; ++round) {
    EXPECT_EQ(ask(prompt_of(1 + round % 2)).cached, kPrompt - 1);
    EXPECT_EQ(engine_->status().snapshots_read_back, 1 + round);
  }
  // A longer prompt goes on from there too, and one that parts before it does not.
  Request longer = prompt_of(1);
  longer.prompt.insert(longer.prompt.end(), 9, 3);
  EXPECT_EQ(ask(longer).cached, kPrompt - 1);
  EXPECT_EQ(ask(prompt_of(2, kPrompt - 2)).cached, 0);
  expect_at_rest();
  EXPECT_EQ(times_told("not written"), 0);
}

// What is in memory already is not read, nor what is hardly longer than that.
TEST_F(KeptFilesTest, OnlyWhatIsWorthReadingIsRead) {
  keep_two();
  EXPECT_EQ(ask(prompt_of(2)).cached, kPrompt - 1);
  EXPECT_EQ(engine_->status().snapshots_read_back, 0);
  ask(prompt_of(5, 8));  // one of 7 tokens
  await_saved(3);
  ask(prompt_of(6));
  await_saved(4);
  EXPECT_EQ(ask(prompt_of(5, 8)).cached, 0);
  EXPECT_EQ(engine_->status().snapshots_read_back, 0);
}

// While others' steps go on, states are written and read between them.
TEST_F(KeptFilesTest, BesideRunningReplies) {
  Request endless = prompt_of(9, 5);
  endless.max_tokens = 380;
  std::atomic<bool> stop = false;
  std::thread beside([&] {
    while (!stop) ask(endless);
  });
  for (int round = 0; round < 40; ++round) {
    // Not before its file is there: states may be evicted faster than they are written.
    const int64_t saved = engine_->status().snapshots_saved;
    if (ask(prompt_of(round % 3)).cached == 0) await_saved(saved + 1);
  }
  stop = true;
  beside.join();
  EXPECT_GE(engine_->status().snapshots_read_back, 20);
  expect_at_rest();
}

TEST_F(KeptFilesTest, ADamagedFileIsDroppedAndThePromptStartsFresh) {
  keep_two();
  for (const fs::path& path : files()) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-100, std::ios::end);
    file.put('x');
  }
  EXPECT_EQ(ask(prompt_of(1)).cached, 0);
  EXPECT_EQ(times_told("no whole snapshot"), 1);
  EXPECT_EQ(engine_->status().snapshots_read_back, 0);
  // It was kept again, and written anew.
  await_saved(3);
  ask(prompt_of(3));
  await_saved(4);
  EXPECT_EQ(ask(prompt_of(1)).cached, kPrompt - 1);
}

TEST_F(KeptFilesTest, AFileThatIsGoneCostsItsState) {
  keep_two();
  for (const fs::path& path : files()) fs::remove(path);
  EXPECT_EQ(ask(prompt_of(1)).cached, 0);
  EXPECT_EQ(times_told("No such file"), 1);
  expect_at_rest();
}

TEST_F(KeptFilesTest, ADiskThatTakesNothingSaysSoOnce) {
  fs::remove_all(directory_);
  for (int i = 0; i < 3; ++i) ask(prompt_of(i));
  for (int i = 0; i < 5000 && times_told("not written") == 0; ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(times_told("not written"), 1);
  EXPECT_EQ(engine_->status().snapshots_saved, 0);
}

TEST_F(KeptFilesTest, ACancelBesideOneThatWaitsForAFileEndsOneAlone) {
  keep_two();
  gate_.close();
  Reply running = engine_->submit(prompt_of(7)).value();
  gate_.wait_for_arrival();
  // The engine's thread stands in a step, so these wait for it, and then for their files.
  Reply leaves = engine_->submit(prompt_of(1)).value();
  Reply stays = engine_->submit(prompt_of(2)).value();
  leaves.cancel();
  gate_.open();
  const Collected left = collect(leaves);
  EXPECT_EQ(left.last.reason, FinishReason::kCancelled);
  EXPECT_EQ(collect(stays).tokens, solo_reply(prompt_of(2), kVocabulary).tokens);
  EXPECT_EQ(collect(running).tokens, solo_reply(prompt_of(7), kVocabulary).tokens);
  expect_at_rest();
}

TEST_F(KeptFilesTest, AStopEndsThoseThatWaitForAFile) {
  for (int round = 0; round < 20; ++round) {
    keep_two();
    std::vector<Reply> replies;
    for (int i = 0; i < 8; ++i) replies.push_back(engine_->submit(prompt_of(1 + i % 2)).value());
    std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
    engine_->stop();
    for (Reply& reply : replies) {
      const Collected all = collect(reply);
      EXPECT_TRUE(all.last.reason == FinishReason::kCancelled ||
                  all.last.reason == FinishReason::kLength);
    }
    EXPECT_EQ(engine_->status().usage, engine_->status().usage_at_load);
    engine_.reset();
    for (const fs::path& path : files()) fs::remove(path);
    start();
  }
}

// The next engine takes what fits at once, and reads back the rest.
TEST_F(KeptFilesTest, TheNextEngineGoesOnFromAllOfThem) {
  keep_two();
  engine_.reset();
  start();
  EXPECT_EQ(engine_->status().snapshots_restored, 1);
  EXPECT_EQ(ask(prompt_of(2)).cached, kPrompt - 1);
  EXPECT_EQ(engine_->status().snapshots_read_back, 0);
  EXPECT_EQ(ask(prompt_of(1)).cached, kPrompt - 1);
  EXPECT_EQ(engine_->status().snapshots_read_back, 1);
}

}  // namespace
}  // namespace flashlane::engine
