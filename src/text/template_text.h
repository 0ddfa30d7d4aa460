// Text inside a template: bytes plus the ranges that came from data (messages, tools) and not from
// the template. Slices share their bytes; every operation keeps the origin of each byte.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace flashlane::text {

struct ByteRange {
  size_t begin = 0;
  size_t end = 0;
};

class Text {
 public:
  Text() = default;
  static Text owned(const std::string& bytes, bool from_data);
  // The caller keeps the bytes alive: literals of the template, strings of the variables.
  static Text borrowed(std::string_view bytes, bool from_data);

  std::string_view view() const { return view_; }
  size_t size() const { return view_.size(); }
  bool empty() const { return view_.empty(); }
  Text slice(size_t begin, size_t end) const;
  // Ranges of data: ascending, not touching, not empty.
  const std::vector<ByteRange>& data() const { return data_; }

 private:
  friend class TextBuilder;
  std::shared_ptr<const std::string> owner_;  // null: borrowed
  std::string_view view_;
  std::vector<ByteRange> data_;
};

class TextBuilder {
 public:
  void append(const Text& text);
  void append(std::string_view bytes, bool from_data);
  size_t size() const { return bytes_.size(); }
  Text take();

 private:
  void add_data(size_t begin, size_t end);

  std::string bytes_;
  std::vector<ByteRange> data_;
};

}  // namespace flashlane::text
