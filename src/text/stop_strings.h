// Holds back text that may be the start of a stop string. Text before a match is delivered; the
// match and all after it are not. The stop that is complete first wins, the longest of those that
// end at the same byte; how the text is cut into pushes changes nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashlane::text {

class StopStringFilter {
 public:
  // An empty stop string matches nothing; requests that name one are refused before they come here.
  explicit StopStringFilter(std::vector<std::string> stops);
  std::string push(std::string_view text);  // deliverable text
  bool matched() const { return matched_ >= 0; }
  const std::string& match() const;  // only after matched()
  std::string finish();

 private:
  struct Stop {
    std::string text;
    std::vector<size_t> fallback;  // by length of a prefix: its longest proper border
    size_t progress = 0;           // bytes of the stop that end the text so far
  };
  void advance(Stop& stop, char byte);

  std::vector<Stop> stops_;
  std::string held_;
  int matched_ = -1;
};

}  // namespace flashlane::text
