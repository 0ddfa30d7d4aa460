// The text of /metrics: a snapshot of the engine in Prometheus' text exposition format, and nothing
// that the snapshot does not hold, so that a reader of metrics never waits for the engine (H6).
#pragma once

#include <string>
#include <string_view>

#include "engine/engine.h"

namespace flashlane::server {

inline constexpr std::string_view kMetricsContentType = "text/plain; version=0.0.4; charset=utf-8";

std::string metrics_text(const engine::EngineStatus& status);

}  // namespace flashlane::server
