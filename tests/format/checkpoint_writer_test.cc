// Writing checkpoints: what is written piece by piece reads back, aligned and without gaps; files
// are cut by a limit; a directory appears whole or not at all and never over another.
#include "format/checkpoint_writer.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "format/checkpoint.h"
#include "format/json_fields.h"
#include "format/json_writer.h"
#include "tests/format/temp_dir.h"

namespace flashlane::format {
namespace {

namespace fs = std::filesystem;

std::vector<std::byte> bytes_of(const TensorSpec& spec) {
  std::vector<std::byte> bytes(spec_bytes(spec));
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + spec.name.size());
  }
  return bytes;
}

// Units of odd sizes and all widths; the first has empty tensors.
constexpr size_t kAllBytes = 1374;
std::vector<TensorUnit> some_units() {
  std::vector<TensorUnit> units;
  for (int i = 0; i < 12; ++i) {
    const std::string path = fmt::format("layer.{:02}", i);
    units.push_back({{path + ".weight", DType::kU32, {i, 3}},
                     {path + ".scales", DType::kBf16, {2 * i + 1}},
                     {path + ".count", DType::kI64, {}},
                     {path + ".mask", DType::kU8, {3, 1, i}}});
  }
  return units;
}

// Writes in random pieces, tensors of a unit in turn.
void write_units(CheckpointWriter& writer, const std::vector<TensorUnit>& units, unsigned seed) {
  std::mt19937 random(seed);
  for (size_t u = 0; u < units.size(); ++u) {
    std::vector<std::vector<std::byte>> left;
    for (const TensorSpec& spec : units[u]) left.push_back(bytes_of(spec));
    std::vector<size_t> done(left.size(), 0);
    for (bool more = true; more;) {
      more = false;
      for (size_t t = 0; t < left.size(); ++t) {
        const size_t piece = std::min<size_t>(random() % 5, left[t].size() - done[t]);
        ASSERT_TRUE(writer.append(u, t, std::span(left[t]).subspan(done[t], piece)).ok());
        done[t] += piece;
        more = more || done[t] < left[t].size();
      }
    }
  }
  const Status finished = writer.finish();
  ASSERT_TRUE(finished.ok()) << finished.error().message;
}

void expect_units(const TensorSource& source, const std::vector<TensorUnit>& units) {
  size_t count = 0;
  for (const TensorUnit& unit : units) {
    for (const TensorSpec& spec : unit) {
      ++count;
      const TensorView* view = source.find(spec.name);
      ASSERT_NE(view, nullptr) << spec.name;
      EXPECT_EQ(view->dtype, spec.dtype);
      EXPECT_EQ(std::vector<int64_t>(view->shape.begin(), view->shape.begin() + view->rank),
                spec.shape);
      EXPECT_TRUE(is_aligned(*view)) << spec.name;
      const std::vector<std::byte> bytes = bytes_of(spec);
      ASSERT_EQ(view->bytes(), bytes.size());
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), view->data)) << spec.name;
    }
  }
  EXPECT_EQ(source.names().size(), count);
}

std::string contents(const std::string& path) {
  auto text = read_text_file(path);
  EXPECT_TRUE(text.ok()) << path;
  return text.ok() ? *text : "";
}

std::unique_ptr<PendingDirectory> pending(const TempDir& place, const std::string& name) {
  auto made = PendingDirectory::create(place.file(name), 0);
  EXPECT_TRUE(made.ok()) << (made.ok() ? "" : made.error().message);
  return std::move(made).value();
}

std::string refusal(const std::string& target, size_t bytes = 0) {
  const auto made = PendingDirectory::create(target, bytes);
  return made.ok() ? "" : made.error().message;
}

size_t entries_of(const std::string& directory) {
  return static_cast<size_t>(
      std::distance(fs::directory_iterator(directory), fs::directory_iterator()));
}

TEST(CheckpointWriter, EveryLimitReadsBackAlignedAndTheSame) {
  const std::vector<TensorUnit> units = some_units();
  const TempDir place;
  size_t most_files = 0;
  for (const size_t limit :
       {size_t{1}, size_t{100}, size_t{200}, kAllBytes - 1, kAllBytes, SIZE_MAX}) {
    SCOPED_TRACE(limit);
    const std::string name = fmt::format("limit-{}", limit);
    const auto directory = pending(place, name);
    CheckpointWriter writer(*directory, units, limit, "mlx");
    write_units(writer, units, static_cast<unsigned>(limit));
    ASSERT_TRUE(directory->write("config.json", "{}").ok());
    ASSERT_TRUE(directory->publish().ok());
    most_files = std::max(most_files, writer.files().size());
    EXPECT_EQ(writer.files().size() == 1, limit >= kAllBytes);
    const bool has_index = fs::exists(place.file(name + "/model.safetensors.index.json"));
    EXPECT_EQ(has_index, writer.files().size() > 1);
    const auto checkpoint = Checkpoint::open(place.file(name));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
    expect_units(**checkpoint, units);
    EXPECT_EQ((*checkpoint)->metadata_format(), "mlx");

    // Files without gaps, within the limit unless one unit is more; units are never parted.
    for (const std::string& file : writer.files()) {
      const std::string path = fs::path(place.file(name)) / file;
      const auto opened = SafetensorsFile::open(path);
      ASSERT_TRUE(opened.ok()) << opened.error().message;
      size_t bytes = 0;
      for (const std::string& tensor : (*opened)->names()) {
        bytes += (*opened)->find(tensor)->bytes();
      }
      uint64_t header = 0;
      const std::string text = contents(path);
      std::memcpy(&header, text.data(), sizeof(header));
      EXPECT_EQ(header % 8, 0U);
      EXPECT_EQ(text.size(), 8 + header + bytes);
      EXPECT_EQ((*opened)->names().size() % 4, 0U);
      EXPECT_TRUE(bytes <= limit || (*opened)->names().size() == 4);
    }
  }
  EXPECT_EQ(most_files, units.size());
}

TEST(CheckpointWriter, PiecesChangeNoByte) {
  const std::vector<TensorUnit> units = some_units();
  const TempDir place;
  std::vector<std::string> texts;
  for (const unsigned seed : {1U, 2U}) {
    const auto directory = pending(place, fmt::format("seed-{}", seed));
    CheckpointWriter writer(*directory, units, 300, "");
    write_units(writer, units, seed);
    std::string all;
    for (const std::string& file : writer.files()) all += contents(directory->file(file));
    texts.push_back(all + contents(directory->file("model.safetensors.index.json")));
  }
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(CheckpointWriter, MissingAndSurplusBytesAreOurBugs) {
  const TempDir place;
  const std::vector<TensorUnit> units = {{{"a", DType::kF32, {2}}}};
  const auto directory = pending(place, "out");
  const std::vector<std::byte> bytes(8);
  CheckpointWriter writer(*directory, units, 100, "");
  ASSERT_TRUE(writer.append(0, 0, std::span(bytes).first(5)).ok());
  EXPECT_DEATH(static_cast<void>(writer.finish()), "place.next");
  EXPECT_DEATH(static_cast<void>(writer.append(0, 0, bytes)), "place.end - place.next");
  ASSERT_TRUE(writer.append(0, 0, std::span(bytes).first(3)).ok());
  EXPECT_TRUE(writer.finish().ok());
}

TEST(PendingDirectory, IsGoneUnlessPublished) {
  const TempDir place;
  {
    const auto directory = pending(place, "out");
    ASSERT_TRUE(directory->write("a", "text").ok());
    EXPECT_FALSE(fs::exists(place.file("out")));
    EXPECT_EQ(fs::path(directory->path()).parent_path(), fs::path(place.path()));
    EXPECT_TRUE(fs::path(directory->path()).filename().string().starts_with(".out.partial-"));
  }
  EXPECT_EQ(entries_of(place.path()), 0U);
  {
    const auto directory = pending(place, "out/");
    ASSERT_TRUE(directory->write("a", "text").ok());
    ASSERT_TRUE(directory->publish().ok());
    EXPECT_EQ(directory->target(), place.file("out"));
  }
  EXPECT_EQ(entries_of(place.path()), 1U);
  EXPECT_EQ(contents(place.file("out/a")), "text");
}

TEST(PendingDirectory, NeverReplacesAnything) {
  const TempDir place;
  place.write("file", "");
  fs::create_directory(place.file("empty"));
  fs::create_symlink("nowhere", place.file("link"));
  for (const std::string name : {"file", "empty", "empty/", "link"}) {
    EXPECT_NE(refusal(place.file(name)).find("exists already"), std::string::npos) << name;
  }
  EXPECT_EQ(entries_of(place.path()), 3U);
  // Also when the name is taken while files are made.
  const auto directory = pending(place, "late");
  fs::create_directory(place.file("late"));
  const Status published = directory->publish();
  ASSERT_FALSE(published.ok());
  EXPECT_NE(published.error().message.find("late exists already"), std::string::npos);
  EXPECT_EQ(entries_of(place.file("late")), 0U);
}

TEST(PendingDirectory, RefusesPlacesThatCannotBe) {
  const TempDir place;
  EXPECT_EQ(refusal(""), "\"\" names no directory");
  EXPECT_EQ(refusal(place.file("no/such")),
            place.file("no") + ": no such directory to make such in");
  const std::string full = refusal(place.file("large"), SIZE_MAX);
  EXPECT_NE(full.find("takes 18446744073709551615 bytes"), std::string::npos) << full;
  EXPECT_EQ(entries_of(place.path()), 0U);
}

TEST(Companions, AreListedAndCopiedAsTheyAre) {
  const TempDir source;
  const std::string data("a\0b\r\n\xff", 6);
  source.write("tokenizer.json", data);
  source.write("config.json", "{}");
  source.write("model.safetensors", "");
  source.write("other.safetensors", "");
  source.write("model.safetensors.index.json", "{}");
  fs::create_directory(source.file("folder"));
  fs::create_symlink("tokenizer.json", source.file("linked.json"));
  fs::create_symlink("nowhere", source.file("broken.json"));
  const auto listed = list_companions(source.path());
  ASSERT_TRUE(listed.ok());
  EXPECT_EQ(listed->files, (std::vector<std::string>{"linked.json", "tokenizer.json"}));
  EXPECT_EQ(listed->others, (std::vector<std::string>{"broken.json", "folder"}));
  EXPECT_EQ(listed->bytes, 12U);

  const TempDir place;
  const auto directory = pending(place, "out");
  size_t told = 0;
  const auto count = [&](size_t bytes) -> Status {
    told += bytes;
    return {};
  };
  for (const std::string& name : listed->files) {
    ASSERT_TRUE(copy_file(source.file(name), *directory, count).ok());
    EXPECT_EQ(contents(directory->file(name)), data);
    EXPECT_FALSE(fs::is_symlink(directory->file(name)));
  }
  EXPECT_EQ(told, 12U);
  const auto stop = [](size_t) -> Status { return error(ErrorCode::kCancelled, "stopped"); };
  const TempDir other;
  EXPECT_FALSE(copy_file(source.file("tokenizer.json"), *pending(other, "out"), stop).ok());
  EXPECT_FALSE(copy_file(source.file("absent"), *directory, count).ok());
}

TEST(JsonWriter, PrintsWhatReadsBackTheSame) {
  const std::string text = R"({"a":[1,-2,18446744073709551615,0.1,1e-06,5e-324,true,null,[],{}],)"
                           R"("k\"\\\n\u0001ä":{"":"v\"\\\t\u0002𝄞"}})";
  JsonDocument document;
  ASSERT_TRUE(document.parse(text, "text").ok());
  std::string printed;
  append_json(document.root(), 0, printed);
  JsonDocument again;
  ASSERT_TRUE(again.parse(printed, "printed").ok()) << printed;
  EXPECT_EQ(simdjson::minify(again.root()), simdjson::minify(document.root()));
  EXPECT_NE(printed.find("\n  \"a\": [\n    1,\n    -2,"), std::string::npos) << printed;
  EXPECT_NE(printed.find("[],\n    {}\n  ],"), std::string::npos) << printed;
}

}  // namespace
}  // namespace flashlane::format
