// Safetensors files: what is written reads back, real files open, and every way in which a header
// can lie is one line that names the tensor and the numbers.
#include "format/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/format/temp_dir.h"

namespace flashlane::format {
namespace {

// A file in memory, at an aligned address.
std::vector<std::byte> file_of(std::string_view header, size_t data_bytes) {
  std::vector<std::byte> bytes(8 + header.size() + data_bytes);
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  for (size_t i = 0; i < data_bytes; ++i) {
    bytes[8 + header.size() + i] = static_cast<std::byte>(i + 1);
  }
  return bytes;
}

std::string error_of(const std::vector<std::byte>& bytes) {
  const auto parsed = SafetensorsFile::parse(bytes, "bad.safetensors");
  return parsed.ok() ? "" : parsed.error().message;
}

TEST(Safetensors, ReadsBackWhatIsWritten) {
  const TempDir directory;
  std::vector<NamedTensor> tensors = {
      {"b \"quoted\"\n", DType::kI16, {3}, std::vector<std::byte>(6, std::byte{7})},
      {"a", DType::kF32, {2, 1, 2}, std::vector<std::byte>(16, std::byte{1})},
      {"empty", DType::kBf16, {0, 5}, {}},
      {"scalar", DType::kI64, {}, std::vector<std::byte>(8, std::byte{2})},
  };
  const std::string path = directory.file("out.safetensors");
  ASSERT_TRUE(write_safetensors(path, tensors).ok());
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ((*file)->names(), (std::vector<std::string>{"a", "b \"quoted\"\n", "empty", "scalar"}));
  EXPECT_EQ((*file)->description(), path);
  EXPECT_EQ((*file)->file_bytes(), std::filesystem::file_size(path));
  for (const NamedTensor& tensor : tensors) {
    const TensorView* view = (*file)->find(tensor.name);
    ASSERT_NE(view, nullptr) << tensor.name;
    EXPECT_EQ(view->dtype, tensor.dtype);
    EXPECT_EQ(std::vector<int64_t>(view->shape.begin(), view->shape.begin() + view->rank),
              tensor.shape);
    ASSERT_EQ(view->bytes(), tensor.data.size());
    if (!tensor.data.empty()) {
      EXPECT_EQ(std::memcmp(view->data, tensor.data.data(), tensor.data.size()), 0);
    }
  }
  EXPECT_EQ((*file)->find("c"), nullptr);
  // The header is padded, so the first tensor of a file lies on a multiple of 8.
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*file)->find("b \"quoted\"\n")->data) % 8, 0U);
}

TEST(Safetensors, OpensTheBundledModel) {
  const auto file =
      SafetensorsFile::open(FLASHLANE_SOURCE_DIR "/models/flash-next-nano-6bit/model.safetensors");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ((*file)->names().size(), 602U);
  const TensorView* view = (*file)->find("language_model.model.embed_tokens.weight");
  ASSERT_NE(view, nullptr);
  EXPECT_EQ(view->dtype, DType::kU32);
  EXPECT_EQ(shape_string(*view), "[8192, 72]");
}

TEST(Safetensors, AllowsGapsTrailingBytesAndMetadata) {
  const auto bytes = file_of(
      R"({"__metadata__":{"format":"x"},"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},)"
      R"("b":{"dtype":"U8","shape":[1],"data_offsets":[6,7]}})",
      9);
  const auto file = SafetensorsFile::parse(bytes, "gaps");
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ((*file)->names().size(), 2U);
  EXPECT_EQ((*file)->find("a")->data[0], std::byte{2});
  EXPECT_EQ((*file)->find("b")->data[0], std::byte{7});
}

// MLX does not pad its headers, so such a file is ordinary; whoever reads typed pointers asks.
TEST(Safetensors, SaysWhichViewsAreAligned) {
  for (const std::string pad : {"", " ", "  ", "   "}) {
    const std::string header =
        R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[1],)"
        R"("data_offsets":[4,5]}})" +
        pad;
    const auto bytes = file_of(header, 5);
    const auto file = SafetensorsFile::parse(bytes, "unpadded");
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(is_aligned(*(*file)->find("a")), header.size() % 4 == 0) << header.size();
    EXPECT_TRUE(is_aligned(*(*file)->find("b")));
    uint32_t word = 0;
    std::memcpy(&word, (*file)->find("a")->data, 4);
    EXPECT_EQ(word, 0x04030201U);
  }
}

struct BadHeader {
  const char* header;
  const char* message;  // all of it, after "bad.safetensors: "
};

const BadHeader kBadHeaders[] = {
    {R"({"a":3})", "tensor \"a\" is 3: must be an object"},
    {R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,17]}})",
     "tensor \"a\": ends at byte 17 of the data, the file holds 16: truncated or "
     "damaged"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":)"
     R"([9223372036854775803,9223372036854775807]}})",
     "tensor \"a\": ends at byte 9223372036854775807 of the data, the file holds 16: "
     "truncated or damaged"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[8,4]}})",
     "tensor \"a\": data_offsets begin at 8 after their end 4"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[-4,0]}})",
     "tensor \"a\": data_offsets holds -4: must be integers from 0 to "
     "9223372036854775807"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})",
     "tensor \"a\": data_offsets holds 18446744073709551615: must be integers from 0 "
     "to 9223372036854775807"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4]}})",
     "tensor \"a\": data_offsets must be two numbers"},
    {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})",
     "tensor \"a\": data_offsets has more than 2 entries, the limit"},
    {R"({"a":{"dtype":"F32","shape":[1]}})",
     "tensor \"a\": data_offsets is missing: must be a list"},
    {R"({"a":{"dtype":"F32","data_offsets":[0,4]}})",
     "tensor \"a\": shape is missing: must be a list"},
    {R"({"a":{"shape":[1],"data_offsets":[0,4]}})",
     "tensor \"a\": dtype is missing: must be a string"},
    {R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})",
     "tensor \"a\": dtype is \"F33\": not a known type"},
    {R"({"a":{"dtype":4,"shape":[1],"data_offsets":[0,4]}})",
     "tensor \"a\": dtype is 4: must be a string"},
    {R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,16]}})",
     "tensor \"a\": shape [3] of F32 is 12 bytes, data_offsets span 16"},
    {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
     "tensor \"a\": shape holds -1: must be integers from 0 to 9223372036854775807"},
    {R"({"a":{"dtype":"F32","shape":[1.5],"data_offsets":[0,4]}})",
     "tensor \"a\": shape holds 1.5: must be integers from 0 to 9223372036854775807"},
    {R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1],"data_offsets":[0,4]}})",
     "tensor \"a\": shape has more than 6 entries, the limit"},
    {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})",
     "tensor \"a\": shape [4294967296, 4294967296] has more bytes than can be counted"},
    {R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]},)"
     R"("b":{"dtype":"U8","shape":[2],"data_offsets":[8,10]}})",
     "tensors \"a\" (bytes 0 to 9) and \"b\" (bytes 8 to 10) overlap"},
    {R"({"z":{"dtype":"U8","shape":[1],"data_offsets":[5,6]},)"
     R"("b":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}})",
     "tensors \"b\" (bytes 0 to 16) and \"z\" (bytes 5 to 6) overlap"},
    {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
     R"("a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
     "header: a is given twice"},
    {R"({"a":{"dtype":"U8","dtype":"F32","shape":[1],"data_offsets":[0,1]}})",
     "tensor \"a\": dtype is given twice"},
    {"{\"a\\nb\":3}", "tensor \"a\\x0ab\" is 3: must be an object"}};

TEST(Safetensors, RefusesLyingHeadersInOneLine) {
  for (const BadHeader& bad : kBadHeaders) {
    const std::string message = error_of(file_of(bad.header, 16));
    EXPECT_EQ(message, std::string("bad.safetensors: ") + bad.message);
    EXPECT_EQ(message.find('\n'), std::string::npos);
  }
}

TEST(Safetensors, RefusesHeadersThatAreNoJson) {
  for (const char* header : {"{", "", "{}}", "\xff\xff", "{\"a\":\"\xff\"}"}) {
    EXPECT_EQ(error_of(file_of(header, 16)).find("bad.safetensors: header: not valid JSON: "), 0U)
        << header;
  }
  std::string deep(100'000, '[');
  EXPECT_EQ(error_of(file_of(deep, 0)).find("bad.safetensors: header: not valid JSON: "), 0U);
}

TEST(Safetensors, RefusesFilesCutAnywhere) {
  const TempDir directory;
  const std::vector<NamedTensor> tensors = {
      {"a", DType::kF32, {2}, std::vector<std::byte>(8)},
      {"b", DType::kU8, {3}, std::vector<std::byte>(3)},
  };
  const std::string path = directory.file("whole.safetensors");
  ASSERT_TRUE(write_safetensors(path, tensors).ok());
  const size_t size = std::filesystem::file_size(path);
  for (size_t kept = 0; kept < size; ++kept) {
    std::filesystem::resize_file(path, kept);
    const auto cut = SafetensorsFile::open(path);
    ASSERT_FALSE(cut.ok()) << kept;
    EXPECT_NE(cut.error().message.find(path), std::string::npos);
    EXPECT_NE(cut.error().message.find("truncated"), std::string::npos) << cut.error().message;
    std::filesystem::remove(path);
    ASSERT_TRUE(write_safetensors(path, tensors).ok());
  }
}

TEST(Safetensors, RefusesHeaderLengthsBeforeReadingThem) {
  auto bytes = file_of("{}", 8);
  const auto with_length = [&](uint64_t length) {
    std::memcpy(bytes.data(), &length, 8);
    return error_of(bytes);
  };
  EXPECT_EQ(with_length(2), "");
  EXPECT_EQ(with_length(11),
            "bad.safetensors: header of 11 bytes, the file holds 10 after the length field: "
            "truncated");
  EXPECT_EQ(with_length(UINT64_MAX),
            "bad.safetensors: header of 18446744073709551615 bytes, the limit is 100000000: not a "
            "safetensors file?");
}

TEST(Safetensors, RefusesWhatIsNoFile) {
  const TempDir directory;
  const auto missing = SafetensorsFile::open(directory.file("none.safetensors"));
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  EXPECT_EQ(missing.error().message,
            directory.file("none.safetensors") + ": No such file or directory");
  EXPECT_EQ(SafetensorsFile::open(directory.path()).error().message,
            directory.path() + ": not a regular file");
  const std::vector<NamedTensor> none;
  EXPECT_FALSE(write_safetensors(directory.file("no/such/place"), none).ok());
}

}  // namespace
}  // namespace flashlane::format
