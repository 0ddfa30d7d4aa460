// Pieces of the rendering become pieces of the encoding.
#include "text/chat_prompt.h"

namespace flashlane::text {

Result<std::vector<int32_t>> encode_chat(const Tokenizer& tokenizer,
                                         const ChatTemplate& chat_template,
                                         const boost::json::object& variables) {
  ASSIGN_OR_RETURN(const auto rendered, chat_template.render_pieces(variables));
  std::vector<Tokenizer::Piece> pieces;
  pieces.reserve(rendered.size());
  for (const ChatTemplate::Piece& piece : rendered) {
    pieces.push_back({piece.text, !piece.from_data});
  }
  return tokenizer.encode_pieces(pieces);
}

}  // namespace flashlane::text
