// Checkpoint directories: which files count, what an index may say, where the chat template is.
#include "format/checkpoint.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/format/temp_dir.h"

namespace flashlane::format {
namespace {

constexpr const char* kModel = FLASHLANE_SOURCE_DIR "/models/flash-next-nano-6bit";
constexpr const char* kIndex = "model.safetensors.index.json";

void put_tensor(const TempDir& directory, const std::string& file, const std::string& tensor) {
  const std::vector<NamedTensor> tensors = {
      {tensor, DType::kU8, {1}, std::vector<std::byte>(1, std::byte{1})}};
  ASSERT_TRUE(write_safetensors(directory.file(file), tensors).ok());
}

std::string open_error(const TempDir& directory) {
  const auto opened = Checkpoint::open(directory.path());
  return opened.ok() ? "" : opened.error().message;
}

TEST(Checkpoint, OpensTheBundledModel) {
  const auto checkpoint = Checkpoint::open(kModel);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->names().size(), 602U);
  EXPECT_NE((*checkpoint)->find("language_model.lm_head.scales"), nullptr);
  EXPECT_EQ((*checkpoint)->find("language_model.lm_head"), nullptr);
  EXPECT_EQ((*checkpoint)->weight_bytes(), 44806024U);
  const auto texts = read_checkpoint_texts(kModel);
  ASSERT_TRUE(texts.ok()) << texts.error().message;
  EXPECT_EQ(texts->config_json.size(), 3709U);
  EXPECT_EQ(texts->tokenizer_json.value().size(), 542398U);
  EXPECT_EQ(texts->chat_template.value().size(), 5262U);
  EXPECT_EQ(texts->generation_config_json.value().size(), 170U);
}

// The fixtures lie beside the weights there, and their names repeat.
TEST(Checkpoint, TakesModelFilesBeforeOthers) {
  const auto checkpoint = Checkpoint::open(FLASHLANE_SOURCE_DIR "/tests/fixtures/micro_a");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_NE((*checkpoint)->find("lm_head.weight"), nullptr);
  EXPECT_EQ((*checkpoint)->find("logsumexp"), nullptr);
}

TEST(Checkpoint, TakesEveryFileWhenNoneIsCalledModel) {
  const TempDir directory;
  directory.write("config.json", "{}");
  put_tensor(directory, "weights-2.safetensors", "b");
  put_tensor(directory, "weights-1.safetensors", "a");
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->names(), (std::vector<std::string>{"a", "b"}));
}

TEST(Checkpoint, TakesTheDraftHeadBesideTheModel) {
  const TempDir directory;
  directory.write("config.json", "{}");
  put_tensor(directory, "model.safetensors", "a");
  put_tensor(directory, "mtp.safetensors", "mtp.b");
  put_tensor(directory, "other.safetensors", "c");
  auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->names(), (std::vector<std::string>{"a", "mtp.b"}));
  directory.write(kIndex, R"({"weight_map":{"a":"model.safetensors"}})");
  checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->names(), (std::vector<std::string>{"a", "mtp.b"}));
}

TEST(Checkpoint, FollowsTheIndex) {
  const TempDir directory;
  directory.write("config.json", "{}");
  put_tensor(directory, "model-1.safetensors", "a");
  put_tensor(directory, "model-2.safetensors", "b");
  put_tensor(directory, "model-3.safetensors", "b");
  directory.write(kIndex, R"({"metadata":{"total_size":2},)"
                          R"("weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}})");
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ((*checkpoint)->weight_bytes(),
            std::filesystem::file_size(directory.file("model-1.safetensors")) * 2);
}

TEST(Checkpoint, RefusesIndexesThatLie) {
  const TempDir directory;
  directory.write("config.json", "{}");
  put_tensor(directory, "model-1.safetensors", "a");
  put_tensor(directory, "model-2.safetensors", "b");
  const std::string index = directory.file(kIndex);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"({"weight_map":{"a":"model-9.safetensors"}})",
       "names \"model-9.safetensors\", which is not in " + directory.path()},
      {R"({"weight_map":{"a":"model-1.safetensors","b":"model-1.safetensors"}})",
       "tensor \"b\" should be in " + directory.file("model-1.safetensors") + " and is not"},
      {R"({"weight_map":{"a":"model-2.safetensors","b":"model-1.safetensors"}})",
       "tensor \"a\" should be in " + directory.file("model-2.safetensors") + " and is not"},
      {R"({"weight_map":{"a":"../model-1.safetensors"}})",
       "tensor \"a\" is in \"../model-1.safetensors\": must be a plain *.safetensors name of the "
       "directory"},
      {R"({"weight_map":{"a":"/etc/passwd"}})",
       "tensor \"a\" is in \"/etc/passwd\": must be a plain *.safetensors name of the directory"},
      {R"({"weight_map":{"a":"..safetensors"}})",
       "tensor \"a\" is in \"..safetensors\": must be a plain *.safetensors name of the directory"},
      {R"({"weight_map":{"a":"x\u0000.safetensors"}})",
       "tensor \"a\" is in \"x\\x00.safetensors\": must be a plain *.safetensors name of the "
       "directory"},
      {R"({"weight_map":{"a":3}})", "weight_map.a is 3: must be a string"},
      {R"({"weight_map":{}})", "weight_map is empty"},
      {R"({"weight_map":[]})", "weight_map is a list: must be an object"},
      {R"({})", "weight_map is missing: must map tensor names to file names"},
      {R"([])", "is a list: must be an object"},
  };
  for (const auto& [json, message] : cases) {
    directory.write(kIndex, json);
    const std::string separator = message.starts_with("is a list") ? " " : ": ";
    EXPECT_EQ(open_error(directory), index + separator + message);
  }
}

TEST(Checkpoint, RefusesTheSameTensorTwice) {
  const TempDir directory;
  directory.write("config.json", "{}");
  put_tensor(directory, "model-1.safetensors", "a");
  put_tensor(directory, "model-2.safetensors", "a");
  EXPECT_EQ(open_error(directory), directory.file("model-2.safetensors") +
                                       ": tensor \"a\" is also in " +
                                       directory.file("model-1.safetensors"));
}

TEST(Checkpoint, SaysWhatIsMissing) {
  const TempDir directory;
  EXPECT_EQ(open_error(directory),
            directory.path() + ": no config.json: not a checkpoint directory");
  EXPECT_EQ(read_checkpoint_texts(directory.path()).error().message,
            directory.path() + ": no config.json: not a checkpoint directory");
  directory.write("config.json", "{}");
  EXPECT_EQ(open_error(directory),
            directory.path() + ": no *.safetensors file: the weights are missing");
  EXPECT_EQ(Checkpoint::open(directory.file("none")).error().message,
            directory.file("none") + ": No such file or directory");
  EXPECT_EQ(Checkpoint::open(directory.file("config.json")).error().message,
            directory.file("config.json") + ": not a directory");
  directory.write("model.safetensors", "");
  EXPECT_EQ(open_error(directory), directory.file("model.safetensors") +
                                       ": 0 bytes, a safetensors file has at least 8: truncated");
}

TEST(CheckpointTexts, FindTheTemplate) {
  const TempDir directory;
  directory.write("config.json", "{}");
  const auto found = [&] {
    const auto texts = read_checkpoint_texts(directory.path());
    if (!texts.ok()) return texts.error().message;
    return texts->chat_template.value_or("(none)");
  };
  const std::string path = directory.file("tokenizer_config.json");
  EXPECT_EQ(found(), "(none)");
  EXPECT_FALSE(read_checkpoint_texts(directory.path())->tokenizer_json.has_value());
  directory.write("tokenizer_config.json", R"({"eos_token":"x"})");
  EXPECT_EQ(found(), "(none)");
  directory.write("tokenizer_config.json", R"({"chat_template":"{{ a }}"})");
  EXPECT_EQ(found(), "{{ a }}");
  directory.write("tokenizer_config.json", R"({"chat_template":[{"name":"tool","template":"T"},)"
                                           R"({"name":"default","template":"D"}]})");
  EXPECT_EQ(found(), "D");
  directory.write("tokenizer_config.json", R"({"chat_template":[{"name":"t","template":"T"}]})");
  EXPECT_EQ(found(), path + ": chat_template is a list: must hold one named \"default\"");
  directory.write("tokenizer_config.json", R"({"chat_template":[{"name":"t"}]})");
  EXPECT_EQ(found(), path + ": chat_template[].template is missing: must be a string");
  directory.write("tokenizer_config.json", R"({"chat_template":7})");
  EXPECT_EQ(found(), path + ": chat_template is 7: must be a string");
  directory.write("tokenizer_config.json", "nonsense");
  EXPECT_EQ(found().find(path + ": not valid JSON: "), 0U);
  directory.write("chat_template.jinja", "J");
  EXPECT_EQ(found(), "J");
}

TEST(ReadTextFile, ReadsUpToItsLimit) {
  const TempDir directory;
  std::string text(200'000, 'x');
  text += std::string("\0\n\r\xff", 4);
  directory.write("text", text);
  const std::string path = directory.file("text");
  const auto whole = read_text_file(path, text.size());
  ASSERT_TRUE(whole.ok()) << whole.error().message;
  EXPECT_EQ(*whole, text);
  EXPECT_EQ(read_text_file(path, 200'003).error().message,
            path + ": 200004 bytes or more, the limit is 200003");
  EXPECT_EQ(read_text_file(directory.file("none")).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(read_text_file(directory.path()).error().message,
            directory.path() + ": not a regular file");
}

}  // namespace
}  // namespace flashlane::format
