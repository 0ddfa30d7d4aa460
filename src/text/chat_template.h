// A model's chat template (the Jinja subset that such templates use): variables to prompt text,
// with the origin of every byte. Immutable once parsed; bounded in depth, steps and size.
#pragma once

#include <boost/json/fwd.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace flashlane::text {

class ChatTemplate {
 public:
  // Errors name line and construct.
  static Result<std::unique_ptr<ChatTemplate>> parse(std::string_view source);
  ~ChatTemplate();

  // `variables`: messages, tools, add_generation_prompt, enable_thinking … What the template raises
  // is kInvalidArgument with its message.
  Result<std::string> render(const boost::json::object& variables) const;

  struct Piece {
    std::string text;
    bool from_data = false;
  };
  // Like render, but says which bytes came from the variables rather than from the template, so
  // that markers spelled in them stay plain text. bos_token, eos_token and their like, which the
  // server takes from the tokenizer's files, count as template text. Pieces alternate and are not
  // empty.
  Result<std::vector<Piece>> render_pieces(const boost::json::object& variables) const;

 private:
  struct Parsed;
  explicit ChatTemplate(std::unique_ptr<Parsed> parsed);
  std::unique_ptr<Parsed> parsed_;
};

}  // namespace flashlane::text
