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
  static Status save(const Snapshots& snapshots, const Tokens& tokens, int pages) {
    // Files that were made at one moment would have no order.
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return snapshots.save(tokens, pages, [&](int index, std::span<std::byte> page) {
      for (size_t i = 0; i < page.size(); ++i) page[i] = byte_of(tokens, index, i);
    });
  }
  static std::byte byte_of(const Tokens& tokens, int page, size_t place) {
    return static_cast<std::byte>(static_cast<size_t>(tokens.front()) * 31 + tokens.size() +
                                  static_cast<size_t>(page) * 7 + place);
  }
  // Whether the entry loads, and then as it was saved.
  static Status load(const Snapshots& snapshots, const Snapshots::Entry& entry) {
    int next = 0;
    bool right = true;
    Status loaded = snapshots.load(entry, [&](int index, std::span<const std::byte> page) {
      right = right && index == next++ && page.size() == kPageBytes;
      for (size_t i = 0; i < page.size(); ++i) {
        right = right && page[i] == byte_of(entry.tokens, index, i);
      }
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

}  // namespace
}  // namespace flashlane::runner
