// Pages go back when nobody needs them, and not before: on memory, where a page that went reads as
// zeros, and on a mapped checkpoint file, where the kernel's own count says what is left.
#include "format/page_ledger.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <fstream>

#include "format/safetensors.h"
#include "tests/format/temp_dir.h"

namespace flashlane::format {
namespace {

const auto kPage = static_cast<size_t>(::sysconf(_SC_PAGESIZE));

// Pages of memory, every byte 1.
class Memory {
 public:
  explicit Memory(size_t pages)
      : bytes_(pages * kPage),
        data_(static_cast<std::byte*>(
            ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    std::memset(data_, 1, bytes_);
  }
  ~Memory() { ::munmap(data_, bytes_); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  std::span<const std::byte> span(size_t bytes) const { return {data_, bytes}; }
  std::span<const std::byte> span() const { return {data_, bytes_}; }
  // "1" for a page that holds its bytes, "0" for one that was given back.
  std::string pages() const {
    std::string text;
    for (size_t at = 0; at < bytes_; at += kPage) text += data_[at] == std::byte{1} ? '1' : '0';
    return text;
  }

 private:
  size_t bytes_;
  std::byte* data_;
};

TEST(PageLedger, GivesBackWholePagesOnly) {
  const Memory memory(6);
  PageLedger ledger(memory.span());
  ledger.drop(kPage + 1, 4 * kPage - 1);
  EXPECT_EQ(memory.pages(), "110111");
  EXPECT_EQ(ledger.dropped_page_bytes(), kPage);
}

TEST(PageLedger, ASharedPageGoesWithItsLastByte) {
  const Memory memory(4);
  PageLedger ledger(memory.span());
  ledger.drop(0, kPage + 100);
  EXPECT_EQ(memory.pages(), "0111");
  ledger.drop(kPage + 200, 3 * kPage);
  EXPECT_EQ(memory.pages(), "0101");
  ledger.drop(kPage + 100, kPage + 200);
  EXPECT_EQ(memory.pages(), "0001");
  EXPECT_EQ(ledger.dropped_page_bytes(), 3 * kPage);
}

TEST(PageLedger, WhatIsNeededAgainStays) {
  const Memory memory(4);
  PageLedger ledger(memory.span());
  ledger.drop(0, kPage / 2);
  ledger.need(0, kPage / 4);
  ledger.drop(kPage / 2, 3 * kPage);
  EXPECT_EQ(memory.pages(), "1001");
  ledger.drop(0, kPage / 4);
  EXPECT_EQ(memory.pages(), "0001");
  // Out of the middle of one range.
  ledger.need(kPage + 8, kPage + 16);
  EXPECT_EQ(ledger.dropped_page_bytes(), 2 * kPage);
}

TEST(PageLedger, TheLastPageIsWholeAtTheEndOfTheMapping) {
  const Memory memory(2);
  PageLedger ledger(memory.span(kPage + 10));
  ledger.drop(kPage, kPage + 9);
  EXPECT_EQ(memory.pages(), "11");
  ledger.drop(kPage + 9, kPage + 10);
  EXPECT_EQ(memory.pages(), "10");
}

// The resident bytes of the mappings from `begin` on that lie before `end`.
size_t resident_bytes(const std::byte* begin, const std::byte* end) {
  std::ifstream file("/proc/self/smaps");
  std::string line;
  bool inside = false;
  size_t kibibytes = 0;
  while (std::getline(file, line)) {
    unsigned long long first = 0;
    unsigned long long last = 0;
    unsigned long long rss = 0;
    if (std::sscanf(line.c_str(), "%llx-%llx ", &first, &last) == 2) {
      inside =
          first < reinterpret_cast<uintptr_t>(end) && last > reinterpret_cast<uintptr_t>(begin);
    } else if (inside && std::sscanf(line.c_str(), "Rss: %llu kB", &rss) == 1) {
      kibibytes += rss;
    }
  }
  return kibibytes * 1024;
}

TEST(PageLedger, ACheckpointFileGivesBackWhatWasDropped) {
  const TempDir directory;
  const size_t bytes = 256 * kPage + 40;
  std::vector<NamedTensor> tensors;
  for (const char* name : {"a", "b", "c"}) {
    tensors.push_back({name,
                       DType::kU8,
                       {static_cast<int64_t>(bytes)},
                       std::vector<std::byte>(bytes, std::byte{3})});
  }
  const std::string path = directory.file("out.safetensors");
  ASSERT_TRUE(write_safetensors(path, tensors).ok());
  const auto opened = SafetensorsFile::open(path);
  ASSERT_TRUE(opened.ok());
  const SafetensorsFile& file = **opened;
  EXPECT_TRUE(file.file_backed());
  const auto range = [&](const char* name) {
    return ByteRange{file.find(name)->data, file.find(name)->bytes()};
  };
  const std::byte* begin = range("a").data;
  const std::byte* end = range("c").data + bytes;
  const auto touch = [&](const char* name) {
    size_t sum = 0;
    for (size_t i = 0; i < bytes; ++i) sum += static_cast<size_t>(range(name).data[i]);
    return sum;
  };
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(touch(name), 3 * bytes);
  EXPECT_GE(resident_bytes(begin, end), 3 * bytes);

  const ByteRange b = range("b");
  file.drop({&b, 1});
  const size_t left = resident_bytes(begin, end);
  EXPECT_LE(left, 2 * bytes + 6 * kPage);
  EXPECT_GE(left, 2 * bytes);
  // Still the file's bytes when somebody looks.
  EXPECT_EQ(touch("b"), 3 * bytes);
  for (const char* name : {"a", "b", "c"}) {
    const ByteRange all = range(name);
    file.drop({&all, 1});
  }
  // The header and the page that two tensors share went too.
  EXPECT_EQ(resident_bytes(begin, end), 0U);
  // Hints change nothing that can be read.
  file.advise({&b, 1}, Advice::kRandom);
  file.advise({&b, 1}, Advice::kSoon);
  EXPECT_EQ(touch("b"), 3 * bytes);
}

}  // namespace
}  // namespace flashlane::format
