// Ties parser and evaluator together and keeps their headers out of the public one.
#include "text/chat_template.h"

#include <utility>

#include "text/template_eval.h"
#include "text/template_parser.h"

namespace flashlane::text {

struct ChatTemplate::Parsed {
  Block block;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Parsed> parsed) : parsed_(std::move(parsed)) {}
ChatTemplate::~ChatTemplate() = default;

Result<std::unique_ptr<ChatTemplate>> ChatTemplate::parse(std::string_view source) {
  auto parsed = std::make_unique<Parsed>();
  ASSIGN_OR_RETURN(parsed->block, TemplateParser::parse(source));
  return std::unique_ptr<ChatTemplate>(new ChatTemplate(std::move(parsed)));
}

Result<std::string> ChatTemplate::render(const boost::json::object& variables) const {
  ASSIGN_OR_RETURN(const Text text, TemplateEvaluator(parsed_->block, variables).run());
  return std::string(text.view());
}

Result<std::vector<ChatTemplate::Piece>> ChatTemplate::render_pieces(
    const boost::json::object& variables) const {
  ASSIGN_OR_RETURN(const Text text, TemplateEvaluator(parsed_->block, variables).run());
  std::vector<Piece> pieces;
  const auto add = [&](size_t begin, size_t end, bool from_data) {
    if (begin < end) {
      pieces.push_back({std::string(text.view().substr(begin, end - begin)), from_data});
    }
  };
  size_t done = 0;
  for (const ByteRange& range : text.data()) {
    add(done, range.begin, false);
    add(range.begin, range.end, true);
    done = range.end;
  }
  add(done, text.size(), false);
  return pieces;
}

}  // namespace flashlane::text
