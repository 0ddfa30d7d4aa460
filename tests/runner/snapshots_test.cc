// Kept states as files: what was saved comes back to the byte, in the order of use; whatever was
// cut, changed, made with another key or left unfinished is never taken for a state (H4).
#include "runner/snapshots.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

namespace flashlane::runner {
namespace {

namespace fs = std::filesystem;
using Tokens = std::vector<int32_t>;

constexpr size_t kPageBytes = 512;
const std::string kKey(64, 'a');

class SnapshotsTest : public ::testing::Test {
 protected:
  SnapshotsTest() {
    std::string pattern = (fs::temp_directory_path() / "snapshots-XXXXXX").string();
    directory_ = ::mkdtemp(pattern.data());
  }
  ~SnapshotsTest() override { fs::remove_all(directory_); }

  std::unique_ptr<Snapshots> open(const std::string& key = kKey, size_t limit = 1 << 20) const {
    auto snapshots = Snapshots::open(directory_, key, kPageBytes, limit);
    EXPECT_TRUE(snapshots.ok()) << (snapshots.ok() ? "" : snapshots.error().message);
    return snapshots.ok() ? std::move(snapshots).value() : nullptr;
  }
  static Status save(Snapshots& snapshots, const Tokens& tokens, int pages) {
    // Files that were made at one moment would have no order.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return snapshots.save(tokens, pages, [&](int first, std::span<std::byte> some) {
      for (size_t i = 0; i < some.size(); ++i) some[i] = byte_of(tokens, first, i);
      return true;
    });
  }
  static std::byte byte_of(const Tokens& tokens, int page, size_t place) {
    return static_cast<std::byte>(static_cast<size_t>(tokens.front()) * 31 + tokens.size() +
                                  static_cast<size_t>(page) * kPageBytes * 7 + place * 7);
  }
  // Whether the entry loads, and then as it was saved.
  static Status load(const Snapshots& snapshots, const Snapshots::Entry& entry) {
    int next = 0;
    bool right = true;
    Status loaded = snapshots.load(entry, [&](int first, std::span<const std::byte> some) {
      right = right && first == next && some.size() % kPageBytes == 0;
      next += static_cast<int>(some.size() / kPageBytes);
      for (size_t i = 0; i < some.size(); ++i) {
        right = right && some[i] == byte_of(entry.tokens, first, i);
      }
      return true;
    });
    EXPECT_TRUE(!loaded.ok() || (right && next == entry.pages));
    return loaded;
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> found;
    for (const auto& at : fs::directory_iterator(directory_)) {
      if (at.path().filename() != ".lock") found.push_back(at.path());
    }
    return found;
  }

  std::string directory_;
  int damaged_ = 0;
};

TEST_F(SnapshotsTest, WhatWasSavedComesBackLastUsedFirst) {
  {
    const auto snapshots = open();
    ASSERT_TRUE(save(*snapshots, {1, 2, 3}, 2).ok());
    ASSERT_TRUE(save(*snapshots, {4}, 1).ok());
    ASSERT_TRUE(save(*snapshots, {5, 6}, 3).ok());
    ASSERT_TRUE(save(*snapshots, {4}, 1).ok());  // there already: used again
    EXPECT_EQ(files().size(), 3U);
  }
  const auto snapshots = open();
  auto entries = snapshots->list(damaged_);
  EXPECT_EQ(damaged_, 0);
  ASSERT_EQ(entries.size(), 3U);
  EXPECT_EQ(entries[0].tokens, (Tokens{4}));
  EXPECT_EQ(entries[1].tokens, (Tokens{5, 6}));
  EXPECT_EQ(entries[2].tokens, (Tokens{1, 2, 3}));
  for (const auto& entry : entries) EXPECT_TRUE(load(*snapshots, entry).ok());
}

// Each byte of a file counts, the last one too.
TEST_F(SnapshotsTest, NoChangedOrShortenedFileIsTakenForAState) {
  const auto snapshots = open();
  ASSERT_TRUE(save(*snapshots, {7, 8}, 2).ok());
  const fs::path path = files().front();
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string whole = text.str();
  const auto put = [&](const std::string& bytes) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
  };
  const auto usable = [&] {
    const auto entries = snapshots->list(damaged_);
    return !entries.empty() && load(*snapshots, entries.front()).ok();
  };
  ASSERT_TRUE(usable());
  for (size_t at = 0; at < whole.size(); at += at < 120 ? 1 : 61) {
    std::string changed = whole;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    put(changed);
    EXPECT_FALSE(usable()) << "byte " << at;
  }
  for (const size_t length :
       {size_t{0}, size_t{10}, size_t{95}, whole.size() / 2, whole.size() - 1}) {
    put(whole.substr(0, length));
    EXPECT_FALSE(usable()) << length << " bytes";
  }
  put(whole + "x");
  EXPECT_FALSE(usable());
  EXPECT_FALSE(fs::exists(path)) << "a damaged file is removed";
  put(whole);
  EXPECT_TRUE(usable());
}

TEST_F(SnapshotsTest, AFileThatChangesBetweenListAndLoadIsFoundOut) {
  const auto snapshots = open();
  ASSERT_TRUE(save(*snapshots, {7, 8}, 2).ok());
  auto entries = snapshots->list(damaged_);
  entries.front().tokens = {7, 9};
  const Status loaded = load(*snapshots, entries.front());
  ASSERT_FALSE(loaded.ok());
  EXPECT_NE(loaded.error().message.find("another one now"), std::string::npos);
}

TEST_F(SnapshotsTest, StatesOfAnotherKeyAreLeftAloneAndNotFound) {
  ASSERT_TRUE(save(*open(), {1}, 1).ok());
  const auto other = open(std::string(64, 'b'));
  EXPECT_TRUE(other->list(damaged_).empty());
  EXPECT_EQ(damaged_, 0);
  ASSERT_TRUE(save(*other, {1}, 1).ok());
  EXPECT_EQ(files().size(), 2U);
}

TEST_F(SnapshotsTest, OnlyFilesAreLookedAt) {
  fs::create_directory(fs::path(directory_) / "1.state");
  ASSERT_EQ(::mkfifo((directory_ + "/2.state").c_str(), 0600), 0);
  fs::create_symlink("/etc/passwd", fs::path(directory_) / "3.state");
  std::ofstream(fs::path(directory_) / "4.text") << "not one of ours";
  const auto snapshots = open();
  EXPECT_TRUE(snapshots->list(damaged_).empty());
  EXPECT_EQ(damaged_, 0);
  EXPECT_EQ(files().size(), 4U);
}

TEST_F(SnapshotsTest, TheLeastRecentlyUsedMakeRoom) {
  const size_t one = 96 + 4 + kPageBytes + 64;
  const auto snapshots = open(kKey, 3 * one);
  for (const int32_t token : {1, 2, 3}) ASSERT_TRUE(save(*snapshots, {token}, 1).ok());
  ASSERT_TRUE(save(*snapshots, {1}, 1).ok());
  ASSERT_TRUE(save(*snapshots, {4}, 1).ok());
  std::set<int32_t> left;
  for (const auto& entry : snapshots->list(damaged_)) left.insert(entry.tokens.front());
  EXPECT_EQ(left, (std::set<int32_t>{1, 3, 4}));
  const Status refused = save(*snapshots, {9}, 5);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoCapacity);
  EXPECT_EQ(files().size(), 3U) << "nobody goes for one that never fits";
}

TEST_F(SnapshotsTest, ADirectoryHasOneOwnerAndNothingUnfinished) {
  std::ofstream(fs::path(directory_) / "0123.state.unfinished") << "half";
  auto first = open();
  EXPECT_TRUE(files().empty());
  const auto second = Snapshots::open(directory_, kKey, kPageBytes, 1 << 20);
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.error().message.find("in use"), std::string::npos);
  first.reset();
  EXPECT_NE(open(), nullptr);
  EXPECT_FALSE(Snapshots::open(directory_ + "/a/b", kKey, kPageBytes, 1).ok());
}

TEST_F(SnapshotsTest, AFailedWriteLeavesNothing) {
  const auto snapshots = open();
  ASSERT_TRUE(save(*snapshots, {1}, 1).ok());
  const fs::path path = files().front();
  fs::remove(path);
  fs::remove_all(directory_);
  const Status gone = save(*snapshots, {1}, 1);
  ASSERT_FALSE(gone.ok());
  EXPECT_EQ(gone.error().code, ErrorCode::kIo);
  EXPECT_FALSE(fs::exists(directory_));
  // And where it is to be written first.
  fs::create_directories(path.string() + ".unfinished");
  EXPECT_FALSE(save(*snapshots, {1}, 1).ok());
  EXPECT_FALSE(fs::exists(path));
}

// More than is handed over at once, in whole pages.
TEST_F(SnapshotsTest, ManyPagesAreHandedOverInParts) {
  constexpr int kPages = 40000;
  const auto snapshots = open(kKey, size_t{1} << 30);
  int parts = 0;
  ASSERT_TRUE(snapshots
                  ->save(Tokens{6, 5}, kPages,
                         [&](int first, std::span<std::byte> some) {
                           ++parts;
                           EXPECT_LE(some.size(), size_t{8} << 20);
                           for (size_t i = 0; i < some.size(); ++i) {
                             some[i] = byte_of({6, 5}, first, i);
                           }
                           return true;
                         })
                  .ok());
  EXPECT_EQ(parts, 3);
  EXPECT_TRUE(load(*snapshots, snapshots->list(damaged_).front()).ok());
}

TEST_F(SnapshotsTest, WhatIsGivenUpLeavesNothing) {
  const auto snapshots = open(kKey, size_t{1} << 30);
  const auto at_second = [parts = 0](int /*first*/, std::span<std::byte> /*some*/) mutable {
    return ++parts < 2;
  };
  const Status saved = snapshots->save(Tokens{1}, 40000, at_second);
  ASSERT_FALSE(saved.ok());
  EXPECT_EQ(saved.error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(files().empty());
  EXPECT_FALSE(snapshots->find(Tokens{1}));
  ASSERT_TRUE(save(*snapshots, {1}, 40000).ok());
  const Status loaded = snapshots->load(*snapshots->find(Tokens{1}), at_second);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.error().code, ErrorCode::kCancelled);
}

// Against looking at all of them.
TEST_F(SnapshotsTest, FindsTheLongestBeginning) {
  const auto snapshots = open();
  std::vector<Tokens> saved;
  uint64_t state = 7;
  const auto dice = [&](int sides) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<int>((state >> 33) % static_cast<uint64_t>(sides));
  };
  const auto any = [&] {
    Tokens tokens(static_cast<size_t>(1 + dice(9)));
    for (int32_t& token : tokens) token = dice(2);
    return tokens;
  };
  int found = 0;
  for (int round = 0; round < 400; ++round) {
    if (round % 10 == 0) {
      saved.push_back(any());
      ASSERT_TRUE(
          snapshots->save(saved.back(), 1, [](int, std::span<std::byte>) { return true; }).ok());
    }
    const Tokens prompt = any();
    size_t longest = 0;
    for (const Tokens& tokens : saved) {
      const bool begins = tokens.size() <= prompt.size() &&
                          std::equal(tokens.begin(), tokens.end(), prompt.begin());
      if (begins) longest = std::max(longest, tokens.size());
    }
    const auto entry = snapshots->find(prompt);
    ASSERT_EQ(entry ? entry->tokens.size() : 0, longest);
    if (!entry) continue;
    ++found;
    EXPECT_TRUE(std::equal(entry->tokens.begin(), entry->tokens.end(), prompt.begin()));
    EXPECT_TRUE(fs::exists(entry->path));
  }
  EXPECT_GT(found, 100);
  // What was removed is not found any more; at most a beginning of it.
  const auto longest = snapshots->find(saved.front());
  ASSERT_TRUE(longest);
  snapshots->remove(*longest);
  const auto shorter = snapshots->find(saved.front());
  EXPECT_TRUE(!shorter || shorter->tokens.size() < longest->tokens.size());
}

TEST_F(SnapshotsTest, WhatMadeRoomIsNotFound) {
  const size_t one = 96 + 4 + kPageBytes + 64;
  const auto snapshots = open(kKey, 2 * one);
  for (const int32_t token : {1, 2, 3}) ASSERT_TRUE(save(*snapshots, {token}, 1).ok());
  EXPECT_FALSE(snapshots->find(Tokens{1, 9}));
  EXPECT_TRUE(snapshots->find(Tokens{3, 9}));
}

// Of several processes each has one, and each goes with its process; what one that was killed left
// is taken over empty.
TEST_F(SnapshotsTest, ADirectoryOfItsOwnGoesWithTheProcess) {
  const auto own = [&] { return Snapshots::open_own(directory_, kKey, kPageBytes, 1 << 20); };
  {
    const auto first = own();
    const auto second = own();
    ASSERT_TRUE(first.ok() && second.ok());
    EXPECT_FALSE(first.value()->outlives_process());
    EXPECT_NE(first.value()->directory(), second.value()->directory());
    ASSERT_TRUE(save(*first.value(), {1}, 1).ok());
    EXPECT_EQ(fs::status(first.value()->directory()).permissions(), fs::perms::owner_all);
  }
  EXPECT_TRUE(files().empty());
  const std::string left = fmt::format("{}/flashlane-spill-{}-0", directory_, ::geteuid());
  ASSERT_EQ(::mkdir(left.c_str(), 0700), 0);
  std::ofstream(left + "/" + std::string(64, '0') + ".state") << "left behind";
  {
    const auto next = own();
    ASSERT_TRUE(next.ok());
    EXPECT_EQ(next.value()->directory(), left);
    EXPECT_TRUE(next.value()->list(damaged_).empty());
    EXPECT_EQ(damaged_, 0);
  }
  EXPECT_FALSE(fs::exists(left));
  // One that others can read, or that is a link to somewhere else, is nobody's own.
  ASSERT_EQ(::mkdir(left.c_str(), 0700), 0);
  ASSERT_EQ(::chmod(left.c_str(), 0755), 0);
  fs::create_directory_symlink(directory_,
                               fmt::format("{}/flashlane-spill-{}-1", directory_, ::geteuid()));
  const auto third = own();
  ASSERT_TRUE(third.ok());
  EXPECT_TRUE(third.value()->directory().ends_with("-2")) << third.value()->directory();
}

}  // namespace
}  // namespace flashlane::runner
