// Conversion: every format from every other gives a model that loads; what is quantised are the
// matrices but the router; codes are those of the quantiser; what has its format keeps every bit.
#include "model/convert.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "format/json_fields.h"
#include "model/shape.h"
#include "tests/model/weights_fixture.h"

namespace flashlane::model {
namespace {

using Kind = ConversionUnit::Kind;

std::vector<std::string> all_formats() {
  std::vector<std::string> names = {"bf16", "f16", "f32"};
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) names.push_back(fmt::format("q{}g{}", bits, group));
  }
  return names;
}

// One of each number of bits and of each group.
std::vector<std::string> some_formats() {
  return {"bf16", "f16", "f32", "q2g128", "q3g32", "q4g64", "q5g128", "q6g64", "q8g32"};
}

struct Converted {
  Conversion conversion;
  ConversionLoss loss;
  std::shared_ptr<EditableSource> source = std::make_shared<EditableSource>();
  std::unique_ptr<Weights> weights;
};

// Converts and loads what comes out; "" or the error.
std::string convert(const std::shared_ptr<const format::TensorSource>& from,
                    const std::string& format_name, Converted& out, int threads = 2) {
  const auto format = parse_weight_format(format_name);
  if (!format.ok()) return format.error().message;
  auto weights = load_weights(tiny_shape(), from);
  if (!weights.ok()) return weights.error().message;
  auto conversion = plan_conversion(**weights, *format);
  if (!conversion.ok()) return conversion.error().message;
  for (const ConversionUnit& unit : conversion->units) {
    std::vector<std::vector<std::byte>> bytes(unit.tensors.size());
    const auto sink = [&](size_t tensor, std::span<const std::byte> piece) -> Status {
      bytes.at(tensor).insert(bytes.at(tensor).end(), piece.begin(), piece.end());
      return {};
    };
    const Status done = convert_unit(unit, threads, sink, out.loss);
    if (!done.ok()) return done.error().message;
    for (size_t i = 0; i < bytes.size(); ++i) {
      const format::TensorSpec& spec = unit.tensors[i];
      EXPECT_EQ(out.source->find(spec.name), nullptr) << spec.name << " comes twice";
      out.source->put(spec.name, spec.dtype, spec.shape, std::move(bytes[i]));
    }
  }
  out.conversion = std::move(*conversion);
  out.conversion.units.clear();  // they point into what goes away here
  auto loaded = load_weights(tiny_shape(), out.source);
  if (!loaded.ok()) return loaded.error().message;
  out.weights = std::move(*loaded);
  return "";
}

// "" when both hold the same tensors to the bit, else the first difference.
std::string source_difference(const format::TensorSource& a, const format::TensorSource& b) {
  if (a.names() != b.names()) return "names differ";
  for (const std::string& name : a.names()) {
    const TensorView& left = *a.find(name);
    const TensorView& right = *b.find(name);
    if (left.dtype != right.dtype || left.rank != right.rank || left.shape != right.shape) {
      return name + ": " + shape_string(left) + " against " + shape_string(right);
    }
    if (std::memcmp(left.data, right.data, left.bytes()) != 0) return name + ": bytes differ";
  }
  return "";
}

// The same model made in the format from the start: an independent path to the same bytes.
TEST(Convert, EqualsWhatIsMadeInTheFormat) {
  const auto bf16 = editable_tiny();
  for (const std::string& format : all_formats()) {
    if (format[0] != 'q') continue;
    SCOPED_TRACE(format);
    Converted converted;
    ASSERT_EQ(convert(bf16, format, converted), "");
    EXPECT_EQ(source_difference(*converted.source, *editable_tiny(",format=" + format)), "");
    EXPECT_GT(converted.loss.relative(), 0.0);
    EXPECT_LT(converted.loss.relative(), format[1] == '8' ? 0.01 : 0.5);
  }
}

TEST(Convert, KeepsEveryBitOfWhatHasTheFormat) {
  for (const std::string& format : some_formats()) {
    SCOPED_TRACE(format);
    Converted once;
    Converted twice;
    ASSERT_EQ(convert(editable_tiny(), format, once), "");
    ASSERT_EQ(convert(once.source, format, twice), "");
    EXPECT_EQ(source_difference(*once.source, *twice.source), "");
    EXPECT_EQ(twice.conversion.matrices_converted, 0);
    EXPECT_EQ(twice.loss.relative(), 0.0);
    EXPECT_EQ(twice.conversion.exceptions.size(), once.conversion.exceptions.size());
  }
}

TEST(Convert, FullWidthKeepsEveryValueAndTheWayBackIsTheSame) {
  for (const std::string format : {"bf16", "q2g128", "q3g32", "q4g32", "q6g64", "q8g64"}) {
    SCOPED_TRACE(format);
    const auto source = editable_tiny(",format=" + format);
    auto before = load_weights(tiny_shape(), source);
    ASSERT_TRUE(before.ok());
    Converted wide;
    ASSERT_EQ(convert(source, "f32", wide), "");
    EXPECT_EQ(wide.loss.relative(), 0.0);
    expect_same_weights(**before, *wide.weights);
    for (const std::string& name : wide.source->names()) {
      const DType dtype = wide.source->find(name)->dtype;
      EXPECT_TRUE(dtype == DType::kF32 || dtype == DType::kI64) << name;
    }
    if (format != "bf16") continue;
    Converted back;
    ASSERT_EQ(convert(wide.source, "bf16", back), "");
    EXPECT_EQ(source_difference(*source, *back.source), "");
  }
}

TEST(Convert, EveryFormatFromAnotherQuantisedOne) {
  const auto source = editable_tiny(",format=q6g64");
  for (const std::string& format : some_formats()) {
    SCOPED_TRACE(format);
    Converted converted;
    ASSERT_EQ(convert(source, format, converted), "");
    Converted other_threads;
    ASSERT_EQ(convert(source, format, other_threads, 3), "");
    EXPECT_EQ(source_difference(*converted.source, *other_threads.source), "");
    EXPECT_EQ(converted.loss.squared_error, other_threads.loss.squared_error);
    // The router and all that is no matrix stay as they are in quantised formats.
    if (format[0] != 'q') continue;
    for (const std::string& name : source->names()) {
      if (source->find(name.substr(0, name.rfind('.')) + ".scales") != nullptr) continue;
      const TensorView* kept = converted.source->find(name);
      ASSERT_NE(kept, nullptr) << name;
      EXPECT_EQ(std::memcmp(kept->data, source->find(name)->data, kept->bytes()), 0) << name;
    }
  }
}

// Rows beyond one piece, whatever the threads.
TEST(Convert, PiecesChangeNoByte) {
  constexpr int64_t kRows = 2600;
  constexpr int64_t kCols = 1024;  // 2.5 pieces
  std::vector<float> values(kRows * kCols);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>((i * 2654435761U) % 10007) / 10007.0F - 0.5F;
  }
  ConversionUnit unit;
  unit.kind = Kind::kQuantise;
  unit.is_matrix = true;
  unit.tensors = {{"a.weight", DType::kU32, {kRows, kCols / 8}},
                  {"a.scales", DType::kBf16, {kRows, kCols / 32}},
                  {"a.biases", DType::kBf16, {kRows, kCols / 32}}};
  unit.format.affine = {4, 32};
  unit.source.rows = unit.source.stride_rows = kRows;
  unit.source.cols = kCols;
  unit.source.data = reinterpret_cast<const std::byte*>(values.data());
  std::vector<std::vector<std::byte>> first(3);
  double first_error = 0;
  for (const int threads : {1, 2, 8}) {
    std::vector<std::vector<std::byte>> bytes(3);
    ConversionLoss loss;
    size_t calls = 0;
    const auto sink = [&](size_t tensor, std::span<const std::byte> piece) -> Status {
      ++calls;
      bytes[tensor].insert(bytes[tensor].end(), piece.begin(), piece.end());
      return {};
    };
    ASSERT_TRUE(convert_unit(unit, threads, sink, loss).ok());
    EXPECT_EQ(calls, 9U);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(bytes[i].size(), format::spec_bytes(unit.tensors[i]));
    }
    if (threads == 1) {
      first = bytes;
      first_error = loss.squared_error;
    }
    EXPECT_EQ(bytes, first);
    EXPECT_EQ(loss.squared_error, first_error);
  }
  // What is read back lies within a step (of at most 1/15) of what was written.
  kernels::Matrix back;
  back.layout = kernels::Layout::kAffine;
  back.bits = 4;
  back.group = 32;
  back.rows = back.stride_rows = kRows;
  back.cols = kCols;
  back.data = first[0].data();
  back.scales = first[1].data();
  back.biases = first[2].data();
  std::vector<float> row(kCols);
  for (const int64_t r : {int64_t{0}, int64_t{1023}, int64_t{1024}, kRows - 1}) {
    kernels::dequantize_row(back, 0, r, row.data());
    for (int64_t c = 0; c < kCols; ++c) {
      ASSERT_NEAR(row[static_cast<size_t>(c)], values[static_cast<size_t>(r * kCols + c)], 0.067);
    }
  }
  size_t left = 2;
  const auto stop = [&](size_t, std::span<const std::byte>) -> Status {
    if (left-- == 0) return error(ErrorCode::kCancelled, "stopped");
    return {};
  };
  ConversionLoss loss;
  EXPECT_EQ(convert_unit(unit, 2, stop, loss).error().message, "stopped");
}

TEST(Convert, ConversionsOfOtherStylesKeepTheirNames) {
  for (const char* mtp : {"language_model.mtp.", "mtp."}) {
    MlxStyle style;
    style.mtp = mtp;
    const auto source = as_mlx(style);
    Converted quantised;
    ASSERT_EQ(convert(source, "q8g128", quantised), "");
    const std::string path = style.text + "layers.0.mlp.switch_mlp.gate_proj";
    EXPECT_EQ(shape_string(*quantised.source->find(path + ".weight")), "[16, 64, 32]");
    EXPECT_EQ(shape_string(*quantised.source->find(path + ".scales")), "[16, 64, 1]");
    EXPECT_EQ(quantised.weights->norms, NormConvention::kFolded);
    Converted back;
    ASSERT_EQ(convert(quantised.source, "bf16", back), "");
    EXPECT_EQ(back.source->names(), source->names());
  }
  // Official banks have no suffix when plain.
  Converted quantised;
  Converted back;
  ASSERT_EQ(convert(editable_tiny(), "q8g64", quantised), "");
  ASSERT_EQ(convert(quantised.source, "bf16", back), "");
  EXPECT_EQ(back.source->names(), editable_tiny()->names());
}

TEST(Convert, RefusesValuesThatTheFormatCannotHold) {
  const std::string name = std::string(kText) + "layers.2.mlp.shared_expert.up_proj.weight";
  const auto source = editable_tiny();
  auto& bytes = source->at(name).bytes;
  const auto put = [&](float value) {
    const uint16_t bits = float_to_bf16(value);
    std::memcpy(bytes.data() + (2 * 128 + 5) * 2, &bits, 2);
  };
  Converted out;
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    put(value);
    const std::string said = convert(source, "q4g32", out);
    EXPECT_NE(said.find(name), std::string::npos) << said;
    EXPECT_NE(said.find(" in row 2: q4g32 can't hold it"), std::string::npos) << said;
    out = {};
  }
  put(70000.0F);
  EXPECT_EQ(convert(source, "f16", out),
            "tensor " + name + " has 70144 in row 2: f16 can't hold it");
  out = {};
  EXPECT_EQ(convert(source, "f32", out), "");
}

TEST(Convert, FormatsAreNamedOrRefused) {
  for (const std::string& name : all_formats()) EXPECT_EQ(parse_weight_format(name)->name(), name);
  for (const char* name : {"", "q", "q4", "q7g32", "q4g16", "q4g32x", "q 4g32", "4bit", "BF16"}) {
    const auto parsed = parse_weight_format(name);
    ASSERT_FALSE(parsed.ok()) << name;
    EXPECT_NE(parsed.error().message.find("q<bits>g<group>"), std::string::npos);
  }
  for (const char* name : {"fp8", "nvfp4"}) {
    EXPECT_EQ(parse_weight_format(name).error().code, ErrorCode::kUnsupported);
  }
}

std::string config_of(const std::string& text, const Conversion& conversion) {
  const auto config = converted_config(text, conversion);
  if (!config.ok()) return config.error().message;
  format::JsonDocument document;
  EXPECT_TRUE(document.parse(*config, "config").ok()) << *config;
  return simdjson::minify(document.root());
}

TEST(ConvertConfig, SaysTheFormatAndLeavesTheRest) {
  const std::string text =
      R"({"a":[1,2.5],"text_config":{"dtype":"bfloat16","b":null,"quantization":{"bits":8}},)"
      R"("torch_dtype":"bfloat16","quantization":{"bits":6,"group_size":64,"v":{"bits":5}}})";
  Conversion plain;
  plain.format = *parse_weight_format("f16");
  EXPECT_EQ(config_of(text, plain),
            R"({"a":[1,2.5],"text_config":{"dtype":"float16","b":null},"torch_dtype":"float16"})");
  EXPECT_EQ(config_of(R"({"a":1})", plain), R"({"a":1,"dtype":"float16"})");
  EXPECT_EQ(config_of(R"({"text_config":{}})", plain), R"({"text_config":{"dtype":"float16"}})");

  Conversion affine;
  affine.format = *parse_weight_format("q4g64");
  affine.exceptions = {{"x", {4, 32}}, {"v", {}}};
  const std::string said = config_of(text, affine);
  const std::string quantization =
      R"({"group_size":64,"bits":4,"mode":"affine","x":{"group_size":32,"bits":4},"v":)";
  EXPECT_EQ(said.find("config.json: quantization.v.group_size is missing"), 0U) << said;
  affine.exceptions[1].path = "w";
  EXPECT_EQ(config_of(text, affine),
            R"({"a":[1,2.5],"text_config":{"dtype":"bfloat16","b":null},"torch_dtype":"bfloat16",)"
            R"("quantization":{"group_size":64,"bits":4,"mode":"affine",)"
            R"("x":{"group_size":32,"bits":4},"w":{"group_size":64,"bits":6}},)"
            R"("quantization_config":{"group_size":64,"bits":4,"mode":"affine",)"
            R"("x":{"group_size":32,"bits":4},"w":{"group_size":64,"bits":6}}})");
  EXPECT_EQ(config_of("{}", affine),
            "config.json: quantization is missing, but tensor w.scales is there");
}

// Tensors beside the text model: plain ones change type alone, quantised ones stay or are refused.
TEST(Convert, WhatIsNoPartOfTheTextModel) {
  const auto source = editable_tiny();
  source->put_floats("vision_tower.norm.bias", {3}, {1, 2, 3});
  source->put_floats("vision_tower.scalar", {}, {4});
  Converted out;
  ASSERT_EQ(convert(source, "q4g32", out), "");
  EXPECT_EQ(out.source->find("vision_tower.norm.bias")->dtype, DType::kF32);
  out = {};
  ASSERT_EQ(convert(source, "bf16", out), "");
  EXPECT_EQ(bf16_values(out.source->at("vision_tower.norm.bias")), (std::vector<float>{1, 2, 3}));
  EXPECT_EQ(bf16_values(out.source->at("vision_tower.scalar")), std::vector<float>{4});

  source->put("vision_tower.fc.weight", DType::kU32, {1, 4}, std::vector<std::byte>(16));
  source->put_floats("vision_tower.fc.scales", {1, 1}, {1});
  source->put_floats("vision_tower.fc.biases", {1, 1}, {1});
  out = {};
  EXPECT_EQ(convert(source, "bf16", out),
            "tensor vision_tower.fc.weight is quantised and no part of the text model, so it can't "
            "become bf16");
  out = {};
  ASSERT_EQ(convert(source, "q4g64", out), "");
  EXPECT_EQ(out.source->find("vision_tower.fc.scales")->dtype, DType::kF32);
  const auto& exceptions = out.conversion.exceptions;
  EXPECT_TRUE(std::any_of(exceptions.begin(), exceptions.end(), [](const QuantisedModule& module) {
    return module.path == "vision_tower.fc" && module.affine.bits == 0;
  }));
}

}  // namespace
}  // namespace flashlane::model
