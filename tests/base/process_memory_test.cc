// What is left and what is held, read from made-up /proc and cgroup files of both versions, and
// once from this process itself.
#include "base/process_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

namespace flashlane {
namespace {

namespace fs = std::filesystem;

// A folder that stands for the root of a machine.
class FakeRoot {
 public:
  FakeRoot() {
    std::string pattern = (fs::temp_directory_path() / "flashlane_root_XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) ADD_FAILURE() << "no temporary directory";
    path_ = pattern;
  }
  ~FakeRoot() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  void put(const std::string& name, const std::string& text) const {
    const fs::path file = fs::path(path_) / name;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

constexpr const char* kMeminfo = "MemTotal: 900 kB\nMemFree: 10 kB\nMemAvailable:    700 kB\n";

TEST(AvailableMemory, IsMemAvailableWithoutCgroups) {
  const FakeRoot root;
  EXPECT_EQ(available_memory(root.path()), std::nullopt);
  root.put("proc/meminfo", kMeminfo);
  EXPECT_EQ(available_memory(root.path()), 700U * 1024);
  root.put("proc/self/cgroup", "garbage\n0::/a\n\n:\n");
  EXPECT_EQ(available_memory(root.path()), 700U * 1024);
}

TEST(AvailableMemory, IsTheLeastOfAllCgroupsAbove) {
  const FakeRoot root;
  root.put("proc/meminfo", kMeminfo);
  root.put("proc/self/cgroup", "0::/outer/inner\n");
  root.put("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  root.put("sys/fs/cgroup/outer/inner/memory.current", "1000\n");
  EXPECT_EQ(available_memory(root.path()), 700U * 1024);
  root.put("sys/fs/cgroup/outer/memory.max", "500000\n");
  root.put("sys/fs/cgroup/outer/memory.current", "300000\n");
  EXPECT_EQ(available_memory(root.path()), 200000U);
  // Pages of files that nobody used lately are as good as free.
  root.put("sys/fs/cgroup/outer/memory.stat", "anon 7\ninactive_file 120000\nactive_file 5\n");
  EXPECT_EQ(available_memory(root.path()), 320000U);
  // More held than allowed leaves nothing, and no number below it.
  root.put("sys/fs/cgroup/memory.max", "10\n");
  root.put("sys/fs/cgroup/memory.current", "4096\n");
  EXPECT_EQ(available_memory(root.path()), 0U);
}

TEST(AvailableMemory, ReadsTheFirstVersionToo) {
  const FakeRoot root;
  root.put("proc/meminfo", kMeminfo);
  root.put("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/box\n1:cpuset:/other\n0::/\n");
  root.put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  root.put("sys/fs/cgroup/memory/memory.usage_in_bytes", "999999\n");
  EXPECT_EQ(available_memory(root.path()), 700U * 1024);
  root.put("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "400000\n");
  root.put("sys/fs/cgroup/memory/box/memory.usage_in_bytes", "150000\n");
  root.put("sys/fs/cgroup/memory/box/memory.stat", "total_inactive_file 50000\n");
  EXPECT_EQ(available_memory(root.path()), 300000U);
}

TEST(TotalMemory, IsTheLeastOfMemTotalAndTheLimits) {
  const FakeRoot root;
  EXPECT_EQ(total_memory(root.path()), std::nullopt);
  root.put("proc/meminfo", kMeminfo);
  EXPECT_EQ(total_memory(root.path()), 900U * 1024);
  root.put("proc/self/cgroup", "0::/outer/inner\n4:memory:/box\n");
  root.put("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  EXPECT_EQ(total_memory(root.path()), 900U * 1024);
  // Whatever is in use.
  root.put("sys/fs/cgroup/outer/memory.max", "500000\n");
  root.put("sys/fs/cgroup/outer/memory.current", "300000\n");
  EXPECT_EQ(total_memory(root.path()), 500000U);
  root.put("sys/fs/cgroup/memory/box/memory.limit_in_bytes", "400000\n");
  EXPECT_EQ(total_memory(root.path()), 400000U);
}

TEST(ResidentMemory, ReadsBothKinds) {
  const FakeRoot root;
  EXPECT_EQ(resident_memory(root.path()).anonymous_bytes, 0U);
  root.put("proc/self/status", "VmRSS:\t 30 kB\nRssAnon:\t      20 kB\nRssFile:\t  10 kB\n");
  EXPECT_EQ(resident_memory(root.path()).anonymous_bytes, 20U * 1024);
  EXPECT_EQ(resident_memory(root.path()).file_bytes, 10U * 1024);
}

TEST(ResidentMemory, GrowsWithWhatThisProcessTakes) {
  constexpr size_t kBytes = size_t{32} << 20;
  const size_t before = resident_memory().anonymous_bytes;
  const std::vector<char> block(kBytes, 1);
  const size_t after = resident_memory().anonymous_bytes;
  EXPECT_EQ(block[kBytes / 2], 1);
  EXPECT_GE(after, before + kBytes / 2);
}

}  // namespace
}  // namespace flashlane
