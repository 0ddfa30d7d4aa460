// Rows that the GPU makes by their rule: to the byte what the rule and the quantiser of the host
// give, and matrices made of them are those made of the host's bytes. There is a test for the GPU
// of this machine, or for the one that TEST_BACKEND asks for; elsewhere there are none.
#ifdef FLASHLANE_CUDA
#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/int_math.h"
#include "base/keyed_random.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/draw_rows.h"
#include "kernels/gpu.h"
#include "tensor/affine.h"
#include "tests/kernels/test_cases.h"

namespace flashlane::kernels::test {
namespace {

constexpr DrawRule kRules[] = {
    {0x123456789abcdefULL, 1, 0}, {~uint64_t{0} - 99, 0.25F, 1}, {77, 0.0625F, 0}};

struct Rows {
  std::vector<std::byte> values;
  std::vector<uint16_t> scales;
  std::vector<uint16_t> biases;
};

// As they are stored.
Rows rows_of(const DrawRule& rule, int64_t first_row, int64_t rows, int64_t cols, int bits,
             int group) {
  const auto width = static_cast<size_t>(cols);
  const size_t row_bytes = bits == 0 ? width * 2 : width * static_cast<size_t>(bits) / 8;
  const size_t groups = bits == 0 ? 0 : width / static_cast<size_t>(group);
  const auto count = static_cast<size_t>(rows);
  Rows made{std::vector<std::byte>(count * row_bytes), std::vector<uint16_t>(count * groups),
            std::vector<uint16_t>(count * groups)};
  std::vector<float> row(width);
  std::vector<uint8_t> codes(width);
  for (size_t r = 0; r < count; ++r) {
    const uint64_t first = static_cast<uint64_t>((first_row + static_cast<int64_t>(r)) * cols);
    std::byte* out = made.values.data() + r * row_bytes;
    for (size_t k = 0; k < width; ++k) {
      const auto drawn = static_cast<float>(splitmix64(rule.hash + first + k) >> 40);
      row[k] = round_to_bf16(rule.scale * (drawn * 0x1.0p-23F - 1.0F) + rule.offset);
      const uint16_t word = float_to_bf16(row[k]);
      if (bits == 0) std::memcpy(out + 2 * k, &word, 2);
    }
    if (bits == 0) continue;
    affine_quantize_row(row, bits, group, codes, {made.scales.data() + r * groups, groups},
                        {made.biases.data() + r * groups, groups});
    affine_pack(codes, bits, {out, row_bytes});
  }
  return made;
}

// Rows on the GPU with bytes behind them that nobody may write to.
class DeviceRows {
 public:
  explicit DeviceRows(const Rows& like) {
    for (const size_t bytes :
         {like.values.size(), like.scales.size() * 2, like.biases.size() * 2}) {
      offsets_.push_back(before_.size());
      before_.resize(round_up(before_.size() + bytes + 1, size_t{256}), std::byte{0xa5});
    }
    buffer_ = Buffer(before_.size(), cuda::cuda_memory());
    cuda::cuda_memory().copy(buffer_.data(), before_.data(), before_.size());
  }
  std::byte* at(size_t array) { return buffer_.data() + offsets_[array]; }
  // Whether it is these rows, and nothing else, that was written.
  bool holds(const Rows& rows) {
    std::vector<std::byte> expected = before_;
    std::vector<std::byte> found(before_.size());
    const auto put = [&](size_t array, const void* data, size_t bytes) {
      if (bytes > 0) std::memcpy(expected.data() + offsets_[array], data, bytes);
    };
    put(0, rows.values.data(), rows.values.size());
    put(1, rows.scales.data(), rows.scales.size() * 2);
    put(2, rows.biases.data(), rows.biases.size() * 2);
    cuda::cuda_memory().copy(found.data(), buffer_.data(), found.size());
    return found == expected;
  }

 private:
  std::vector<size_t> offsets_;
  std::vector<std::byte> before_;
  Buffer buffer_;
};

class Draw : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { ASSERT_TRUE(first_gpu().has_value()) << "no GPU was found"; }
};

std::vector<std::string> gpus() {
  const char* wanted = std::getenv("TEST_BACKEND");
  const bool needed = wanted != nullptr && std::string_view(wanted) == "cuda";
  if (!needed && !first_gpu().has_value()) return {};
  return {"cuda"};
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Draw);
INSTANTIATE_TEST_SUITE_P(Gpu, Draw, testing::ValuesIn(gpus()));

void expect_equal_bytes(const DrawRule& rule, int64_t first_row, int64_t rows, int64_t cols,
                        int bits, int group) {
  const Rows expected = rows_of(rule, first_row, rows, cols, bits, group);
  DeviceRows made(expected);
  cuda::launch_draw_rows(cuda::cuda_memory().stream(), rule, first_row, rows, cols, bits, group,
                         made.at(0), reinterpret_cast<uint16_t*>(made.at(1)),
                         reinterpret_cast<uint16_t*>(made.at(2)));
  EXPECT_TRUE(made.holds(expected)) << rows << " rows of " << cols << " from " << first_row << ", "
                                    << bits << " bits, groups of " << group;
}

TEST_P(Draw, RowsAreTheHostsToTheByte) {
  for (const DrawRule& rule : kRules) {
    for (const int64_t first_row : {int64_t{0}, int64_t{5}, (int64_t{1} << 33) + 3}) {
      for (const int64_t rows : {1, 3, 37}) {
        for (const int64_t cols : {1, 7, 73, 256}) {
          expect_equal_bytes(rule, first_row, rows, cols, 0, 0);
        }
        for (const int bits : {2, 3, 4, 5, 6, 8}) {
          for (const int group : {32, 64, 128}) {
            for (const int64_t groups : {1, 3, 10}) {
              expect_equal_bytes(rule, first_row, rows, groups * group, bits, group);
            }
          }
        }
      }
    }
  }
}

// Enough groups that some have their edges alike, their farther end at either side, or far off.
TEST_P(Draw, ManyGroupsAreTheHosts) {
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const DrawRule& rule : kRules) expect_equal_bytes(rule, 11, 400, 2560, bits, 32);
  }
}

// Makes the matrix twice: of the host's rows, and by their rule, in parts and out of order.
void prepare_both(Ops& ops, Matrix& host, Matrix& drawn, const DrawnRows& rule,
                  const std::vector<MatrixPart>& parts) {
  drawn = host;
  ASSERT_TRUE(ops.prepare(host).ok());
  ASSERT_TRUE(ops.begin_prepare(drawn).ok());
  Buffer room;
  for (const MatrixPart& part : parts) ASSERT_TRUE(ops.draw_part(drawn, part, rule, room).ok());
}

// Over a tensor's first `width` rows of each of `count` matrices, or those from `from` on.
Matrix matrix_over(const Rows& rows, const Format& format, int64_t count, int64_t width,
                   int64_t stride, int64_t cols, int64_t from) {
  Matrix matrix;
  matrix.layout = format.layout;
  matrix.bits = format.bits;
  matrix.group = format.group;
  matrix.count = count;
  matrix.rows = width;
  matrix.stride_rows = stride;
  matrix.cols = cols;
  const auto before = static_cast<size_t>(from);
  matrix.data = rows.values.data() + before * matrix.row_bytes();
  if (format.layout != Layout::kAffine) return matrix;
  matrix.scales =
      reinterpret_cast<const std::byte*>(rows.scales.data()) + before * matrix.scale_row_bytes();
  matrix.biases =
      reinterpret_cast<const std::byte*>(rows.biases.data()) + before * matrix.scale_row_bytes();
  return matrix;
}

const std::array<const char*, 4> kFormats = {"bf16", "q3g32", "q4g64", "q6g64"};

TEST_P(Draw, AMatrixMultipliesAsThePreparedOne) {
  const auto ops = std::move(*make_cuda_ops(1, true));
  for (const char* name : kFormats) {
    const Format format = format_named(name);
    const Rows rows = rows_of(kRules[0], 40, 600, 128, format.bits, format.group);
    Matrix host = matrix_over(rows, format, 1, 600, 600, 128, 0);
    Matrix drawn;
    prepare_both(*ops, host, drawn, {kRules[0], 40}, {{0, 1, 512, 88}, {0, 1, 0, 512}});
    Random random(3);
    const std::vector<float> x = random.values(2 * 128, -1, 1);
    std::vector<float> expected(2 * 600);
    std::vector<float> out(expected.size(), -1);
    ops->project(expected.data(), x.data(), 2, host);
    ops->project(out.data(), x.data(), 2, drawn);
    EXPECT_EQ(out, expected) << name;
  }
}

// Gates and ups that step over each other's rows, as a stacked bank has them.
TEST_P(Draw, BanksAreThePreparedOnes) {
  const auto ops = std::move(*make_cuda_ops(1, true));
  OpsLimits limits;
  limits.rows = 16;
  limits.widest = 256;
  limits.vocabulary = 300;
  limits.top_experts = 3;
  limits.expert_width = 64;
  limits.expert_input = 128;
  ASSERT_TRUE(ops->reserve(limits).ok());
  for (const char* name : kFormats) {
    const Format format = format_named(name);
    Store store;
    Random random(5);
    const Rows both = rows_of(kRules[2], 0, 5 * 128, 128, format.bits, format.group);
    const Rows down = rows_of(kRules[1], 9, 5 * 128, 64, format.bits, format.group);
    MoeWeights moe;
    moe.hidden = 128;
    moe.experts = 5;
    moe.top_experts = 3;
    moe.width = 64;
    moe.shared_width = 64;
    moe.gate = matrix_over(both, format, 5, 64, 128, 128, 0);
    moe.up = matrix_over(both, format, 5, 64, 128, 128, 64);
    moe.down = matrix_over(down, format, 5, 128, 128, 64, 0);
    moe.shared_gate = store.matrix(random, format, 1, 64, 128);
    moe.shared_up = store.matrix(random, format, 1, 64, 128);
    moe.shared_down = store.matrix(random, format, 1, 128, 64);
    moe.shared_router = store.matrix(random, format, 1, 1, 128);
    for (Matrix* m : {&moe.shared_gate, &moe.shared_up, &moe.shared_down, &moe.shared_router}) {
      ASSERT_TRUE(ops->prepare(*m).ok());
    }
    MoeWeights drawn = moe;
    prepare_both(*ops, moe.gate, drawn.gate, {kRules[2], 0}, {{2, 3, 0, 64}, {0, 2, 0, 64}});
    prepare_both(*ops, moe.up, drawn.up, {kRules[2], 64}, {{0, 4, 0, 64}, {4, 1, 0, 64}});
    prepare_both(*ops, moe.down, drawn.down, {kRules[1], 9}, {{0, 2, 0, 128}, {2, 3, 0, 128}});
    const std::vector<float> x = random.values(2 * 128, -1, 1);
    const std::vector<int32_t> ids = {4, 0, 2, 1, 3, 4};
    const std::vector<float> gates = {0.5F, 0.25F, 0.25F, 0.5F, 0.25F, 0.25F};
    std::vector<float> expected(2 * 128);
    std::vector<float> out(expected.size(), -1);
    ops->experts(expected.data(), x.data(), ids.data(), gates.data(), 2, moe);
    ops->experts(out.data(), x.data(), ids.data(), gates.data(), 2, drawn);
    EXPECT_EQ(out, expected) << name;
  }
}

}  // namespace
}  // namespace flashlane::kernels::test
#endif
