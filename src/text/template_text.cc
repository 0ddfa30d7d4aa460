// Ranges are kept merged, so their number is bounded by the changes of origin.
#include "text/template_text.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace flashlane::text {

Text Text::owned(const std::string& bytes, bool from_data) {
  TextBuilder builder;
  builder.append(bytes, from_data);
  return builder.take();
}

Text Text::borrowed(std::string_view bytes, bool from_data) {
  Text text;
  text.view_ = bytes;
  if (from_data && !bytes.empty()) text.data_.push_back({0, bytes.size()});
  return text;
}

Text Text::slice(size_t begin, size_t end) const {
  CHECK_LE(begin, end);
  CHECK_LE(end, size());
  Text part;
  part.owner_ = owner_;
  part.view_ = view_.substr(begin, end - begin);
  auto range = std::upper_bound(data_.begin(), data_.end(), begin,
                                [](size_t at, const ByteRange& r) { return at < r.end; });
  for (; range != data_.end() && range->begin < end; ++range) {
    part.data_.push_back(
        {std::max(range->begin, begin) - begin, std::min(range->end, end) - begin});
  }
  return part;
}

void TextBuilder::add_data(size_t begin, size_t end) {
  if (begin == end) return;
  if (!data_.empty() && data_.back().end == begin) {
    data_.back().end = end;
  } else {
    data_.push_back({begin, end});
  }
}

void TextBuilder::append(const Text& text) {
  const size_t base = bytes_.size();
  bytes_ += text.view();
  for (const ByteRange& range : text.data()) add_data(base + range.begin, base + range.end);
}

void TextBuilder::append(std::string_view bytes, bool from_data) {
  const size_t base = bytes_.size();
  bytes_ += bytes;
  if (from_data) add_data(base, bytes_.size());
}

Text TextBuilder::take() {
  Text text;
  text.owner_ = std::make_shared<const std::string>(std::exchange(bytes_, {}));
  text.view_ = *text.owner_;
  text.data_ = std::exchange(data_, {});
  return text;
}

}  // namespace flashlane::text
