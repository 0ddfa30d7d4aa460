// The configuration's words about formats: `quantization` (and its twin `quantization_config`) with
// the default and one entry for each module that differs, and `dtype` of plain values.
#include "format/json_fields.h"
#include "format/json_writer.h"
#include "model/convert.h"

namespace flashlane::model {
namespace {

using simdjson::dom::element;

constexpr std::string_view kText = "text_config";

std::string_view dtype_word(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kF32:
      return "float32";
    default:
      UNREACHABLE();
  }
}

bool is_part(std::string_view key) {
  return key == kText || key == "vision_config";
}

class ConfigPrinter {
 public:
  ConfigPrinter(const Conversion& conversion, std::vector<QuantisedModule> exceptions)
      : conversion_(conversion), exceptions_(std::move(exceptions)) {}

  std::string print(element root) {
    object(root, 0, "");
    return std::move(out_) + "\n";
  }

 private:
  // `name`: of the part of the configuration; empty at the top.
  void object(element value, int depth, std::string_view name);
  void quantization(int depth);
  void begin_entry(std::string_view key, int depth, bool& any) {
    if (any) out_ += ',';
    any = true;
    format::append_line(depth, out_);
    out_ += format::json_quoted(key) + ": ";
  }
  void affine(const QuantizationDefault& affine, int depth, bool& any) {
    begin_entry("group_size", depth, any);
    out_ += std::to_string(affine.group);
    begin_entry("bits", depth, any);
    out_ += std::to_string(affine.bits);
  }

  const Conversion& conversion_;
  const std::vector<QuantisedModule> exceptions_;
  std::string out_;
};

void ConfigPrinter::object(element value, int depth, std::string_view name) {
  const bool plain = !conversion_.format.is_affine();
  bool any = false;
  bool has_dtype = false;
  bool has_text = false;
  out_ += '{';
  for (const auto& [key, entry] : simdjson::dom::object(value)) {
    if (key == "quantization" || key == "quantization_config") continue;
    begin_entry(key, depth + 1, any);
    const bool is_dtype = key == "dtype" || key == "torch_dtype";
    has_dtype = has_dtype || is_dtype;
    has_text = has_text || key == kText;
    if (name.empty() && is_part(key) && entry.is_object()) {
      object(entry, depth + 1, key);
    } else if (plain && is_dtype) {
      out_ += format::json_quoted(dtype_word(conversion_.format.dtype));
    } else {
      format::append_json(entry, depth + 1, out_);
    }
  }
  // The text model's dtype is always said.
  if (plain && !has_dtype && (name == kText || (name.empty() && !has_text))) {
    begin_entry("dtype", depth + 1, any);
    out_ += format::json_quoted(dtype_word(conversion_.format.dtype));
  }
  if (name.empty() && !plain) {
    for (const char* key : {"quantization", "quantization_config"}) {
      begin_entry(key, depth + 1, any);
      quantization(depth + 1);
    }
  }
  if (any) format::append_line(depth, out_);
  out_ += '}';
}

void ConfigPrinter::quantization(int depth) {
  bool any = false;
  out_ += '{';
  affine(conversion_.format.affine, depth + 1, any);
  begin_entry("mode", depth + 1, any);
  out_ += format::json_quoted("affine");
  for (const QuantisedModule& module : exceptions_) {
    begin_entry(module.path, depth + 1, any);
    bool inner = false;
    out_ += '{';
    affine(module.affine, depth + 2, inner);
    format::append_line(depth + 1, out_);
    out_ += '}';
  }
  format::append_line(depth, out_);
  out_ += '}';
}

// What the source's configuration says of a module that is no part of the text model.
Result<QuantizationDefault> source_quantization(element root, const std::string& path) {
  Status status;
  format::JsonFields top(root, "config.json", "", &status);
  auto fields = top.object("quantization");
  if (!fields) fields = top.object("quantization_config");
  if (!fields) {
    return invalid("config.json: quantization is missing, but tensor {}.scales is there", path);
  }
  auto own = fields->object(path);
  format::JsonFields& entry = own ? *own : *fields;
  QuantizationDefault affine;
  affine.bits = entry.size("bits", 2, 8);
  affine.group = entry.size("group_size", 32, 128);
  RETURN_IF_ERROR(status);
  return affine;
}

}  // namespace

Result<std::string> converted_config(std::string_view config_json, const Conversion& conversion) {
  format::JsonDocument document;
  RETURN_IF_ERROR(document.parse(config_json, "config.json"));
  if (!document.root().is_object()) return invalid("config.json: must be an object");
  std::vector<QuantisedModule> exceptions = conversion.exceptions;
  for (QuantisedModule& module : exceptions) {
    if (module.affine.bits != 0) continue;
    ASSIGN_OR_RETURN(module.affine, source_quantization(document.root(), module.path));
  }
  return ConfigPrinter(conversion, std::move(exceptions)).print(document.root());
}

}  // namespace flashlane::model
