// One Knuth-Morris-Pratt automaton per stop string; the longest progress of all is what must wait.
#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace flashlane::text {

StopStringFilter::StopStringFilter(std::vector<std::string> stops) {
  for (std::string& text : stops) {
    if (text.empty()) continue;
    Stop stop;
    stop.fallback.assign(text.size() + 1, 0);
    for (size_t length = 1, border = 0; length < text.size(); ++length) {
      while (border > 0 && text[border] != text[length]) border = stop.fallback[border];
      if (text[border] == text[length]) ++border;
      stop.fallback[length + 1] = border;
    }
    stop.text = std::move(text);
    stops_.push_back(std::move(stop));
  }
}

const std::string& StopStringFilter::match() const {
  CHECK(matched());
  return stops_[static_cast<size_t>(matched_)].text;
}

void StopStringFilter::advance(Stop& stop, char byte) {
  while (stop.progress > 0 && stop.text[stop.progress] != byte) {
    stop.progress = stop.fallback[stop.progress];
  }
  if (stop.text[stop.progress] == byte) ++stop.progress;
}

std::string StopStringFilter::push(std::string_view text) {
  if (matched()) return {};
  size_t waiting = 0;
  for (const char byte : text) {
    held_ += byte;
    waiting = 0;
    for (size_t i = 0; i < stops_.size(); ++i) {
      Stop& stop = stops_[i];
      advance(stop, byte);
      waiting = std::max(waiting, stop.progress);
      const bool longer = !matched() || stop.text.size() > match().size();
      if (stop.progress == stop.text.size() && longer) matched_ = static_cast<int>(i);
    }
    if (matched()) {
      held_.resize(held_.size() - match().size());
      return std::exchange(held_, {});
    }
  }
  if (text.empty()) return {};
  std::string out = held_.substr(0, held_.size() - waiting);
  held_.erase(0, out.size());
  return out;
}

std::string StopStringFilter::finish() {
  if (matched()) return {};
  for (Stop& stop : stops_) stop.progress = 0;
  return std::exchange(held_, {});
}

}  // namespace flashlane::text
