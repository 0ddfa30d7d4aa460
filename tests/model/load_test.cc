// MODEL on the command line: where it is looked for, what is refused and in which words, and that
// every kind of model loads on the backends there are.
#include "model/load.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "kernels/gpu.h"

namespace flashlane::model {
namespace {

namespace fs = std::filesystem;

std::string source_path(const std::string& relative) {
  return std::string(FLASHLANE_SOURCE_DIR) + "/" + relative;
}

// A fresh directory that goes away with the test.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (fs::temp_directory_path() / "flashlane_load_XXXXXX").string();
    CHECK(mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const fs::path& path() const { return path_; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }

 private:
  fs::path path_;
};

std::string locate_error(const std::string& model) {
  const auto located = locate_model(model);
  return located.ok() ? "" : located.error().message;
}

TEST(LocateModel, NanoIsFoundFromTheBuildFolder) {
  const auto nano = locate_model("nano");
  ASSERT_TRUE(nano.ok()) << nano.error().message;
  EXPECT_EQ(nano->name, "flash-next-nano-6bit");
  EXPECT_TRUE(fs::is_regular_file(fs::path(nano->directory) / "model.safetensors"));
  EXPECT_EQ(nano->synth, "");
}

TEST(LocateModel, DirectoriesAreNamedAfterTheirLastPart) {
  const TempFolder folder;
  const std::string plain = folder.path().string();
  for (const std::string& given : {plain, plain + "/", plain + "/."}) {
    const auto located = locate_model(given);
    ASSERT_TRUE(located.ok()) << located.error().message;
    EXPECT_EQ(located->name, folder.path().filename().string()) << given;
    EXPECT_TRUE(fs::equivalent(located->directory, folder.path()));
  }
}

TEST(LocateModel, SyntheticSpecificationsAreParsedAtOnce) {
  const auto tiny = locate_model("synth:tiny,seed=3");
  ASSERT_TRUE(tiny.ok());
  EXPECT_EQ(tiny->name, "synth:tiny,seed=3");
  EXPECT_EQ(tiny->synth, "tiny,seed=3");
  EXPECT_EQ(tiny->directory, "");
  EXPECT_NE(locate_error("synth:").find("it may be tiny, nano or true"), std::string::npos);
  EXPECT_NE(locate_error("synth:tiny,format=q9").find("format=q9"), std::string::npos);
}

TEST(LocateModel, AnythingElseIsRefusedInOneLine) {
  const TempFolder folder;
  EXPECT_NE(locate_error("no-such-thing")
                .find("model \"no-such-thing\" is no such directory: it may "
                      "be a checkpoint directory, nano"),
            std::string::npos);
  EXPECT_EQ(locate_model("no-such-thing").error().code, ErrorCode::kNotFound);
  const std::string file = folder.write("model.safetensors", "x");
  EXPECT_NE(locate_error(file).find("is a file: it may be a checkpoint directory"),
            std::string::npos);
  EXPECT_NE(locate_error(""), "");
}

TEST(ReadShape, ComesFromTheConfigurationOrTheSpecification) {
  const auto nano = read_shape(*locate_model("nano"));
  ASSERT_TRUE(nano.ok()) << nano.error().message;
  EXPECT_EQ(nano->hidden, 384);
  const auto slice = read_shape(*locate_model("synth:tiny,layers=4"));
  ASSERT_TRUE(slice.ok()) << slice.error().message;
  EXPECT_EQ(slice->layers, 4);
  EXPECT_FALSE(read_shape(*locate_model("synth:tiny,layers=99")).ok());

  const TempFolder folder;
  const auto missing = read_shape(*locate_model(folder.path().string()));
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("config.json"), std::string::npos);
  folder.write("config.json", "{\"text_config\": {\"hidden_size\": -1}}");
  const auto broken = read_shape(*locate_model(folder.path().string()));
  ASSERT_FALSE(broken.ok());
  EXPECT_NE(broken.error().message.find(folder.path().string()), std::string::npos)
      << broken.error().message;
}

TEST(MakeOps, RefusesWhatItDoesNotHave) {
  const struct {
    BackendOptions options;
    const char* said;
  } cases[] = {
      {{"cuda", "avx2", 1}, "isa is avx2, but the cuda backend"},
      {{"gpu", "auto", 1}, "backend is \"gpu\", expected auto, reference, cpu or cuda"},
      {{"reference", "avx2", 1}, "isa is avx2, but the reference backend"},
      {{"reference", "auto", -1}, "threads is -1, expected 1 to 256"},
      {{"cpu", "auto", 257}, "threads is 257, expected 1 to 256"},
      {{"cpu", "sse9", 1}, "sse9"},
  };
  for (const auto& c : cases) {
    const auto made = make_ops(c.options);
    ASSERT_FALSE(made.ok()) << c.said;
    EXPECT_NE(made.error().message.find(c.said), std::string::npos) << made.error().message;
  }
}

TEST(MakeOps, CudaIsRefusedByNameWhereThereIsNoGpu) {
  const auto made = make_ops({"cuda", "auto", 1});
  ASSERT_EQ(made.ok(), kernels::first_gpu().has_value());
  if (made.ok()) return;
  EXPECT_TRUE(made.error().message.starts_with("backend cuda: ")) << made.error().message;
}

TEST(MakeOps, AutoIsTheCpuBackend) {
  const auto reference = make_ops({"reference", "auto", 1});
  ASSERT_TRUE(reference.ok());
  EXPECT_EQ((*reference)->info().name, "reference");
  const auto automatic = make_ops({"auto", "auto", 2});
  ASSERT_TRUE(automatic.ok()) << automatic.error().message;
  EXPECT_EQ((*automatic)->info().name, "cpu");
  EXPECT_EQ((*automatic)->info().threads, 2);
}

TEST(LoadModel, LoadsEveryKindOfModel) {
  for (const std::string& model :
       {std::string("synth:tiny"), std::string("synth:tiny,format=q4g32,ngram=stored"),
        std::string("nano"), source_path("tests/fixtures/micro_a")}) {
    for (const char* backend : {"reference", "cpu"}) {
      LoadOptions options;
      options.backend = {backend, "auto", 2};
      options.max_rows = 16;
      options.context = 512;
      auto loaded = load_model(*locate_model(model), options);
      ASSERT_TRUE(loaded.ok()) << model << ": " << loaded.error().message;
      EXPECT_TRUE((*loaded)->weights().has_mtp) << model;
      EXPECT_EQ((*loaded)->backend().name, backend);
    }
  }
}

TEST(LoadModel, RefusesBeforeItReadsWeights) {
  const TempFolder folder;
  fs::copy_file(source_path("tests/fixtures/micro_a/config.json"), folder.path() / "config.json");
  const ModelLocation location = *locate_model(folder.path().string());
  LoadOptions options;
  options.backend = {"reference", "auto", 1};
  options.context = 4097;
  // There are no weights here, so these errors come first.
  EXPECT_EQ(load_model(location, options).error().message,
            "context is 4097, but the model has 4096 positions");
  options.context = 0;
  options.max_rows = 0;
  EXPECT_EQ(load_model(location, options).error().message, "max_rows is 0, expected 1 or more");
  options.max_rows = 1;
  EXPECT_NE(load_model(location, options).error().message.find(folder.path().string()),
            std::string::npos);
}

TEST(LoadModel, SaysHowFarItIs) {
  std::vector<std::string> lines;
  LoadOptions options;
  options.backend = {"reference", "auto", 1};
  options.context = 64;
  options.progress_every = std::chrono::milliseconds(1);
  options.progress = [&](const std::string& line) { lines.push_back(line); };
  // Making these weights takes much longer than a millisecond.
  ASSERT_TRUE(load_model(*locate_model("synth:nano,format=q4g32"), options).ok());
  ASSERT_FALSE(lines.empty());
  bool making = false;
  for (const std::string& line : lines) {
    making = making || (line.rfind("making synthetic weights, ", 0) == 0 &&
                        line.find(" MiB") != std::string::npos);
  }
  EXPECT_TRUE(making) << lines[0];
}

}  // namespace
}  // namespace flashlane::model
