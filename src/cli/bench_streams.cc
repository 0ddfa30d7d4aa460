// A case's time goes from the first request to the last reply's end, prompts included.
#include "cli/bench_streams.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/sha256.h"

namespace flashlane::cli {

namespace {

using Ids = std::vector<int32_t>;

// What all streams of one case gave, and how long that took.
struct Together {
  std::vector<Ids> replies;
  double ms = 0;
  scheduler::DraftStats drafts = {};
};

engine::Request request_of(const StreamsCase& wanted, int stream, bool drafts) {
  const auto skipped = static_cast<size_t>(stream) % wanted.prompt.size();
  engine::Request request;
  request.prompt.assign(wanted.prompt.begin() + static_cast<std::ptrdiff_t>(skipped),
                        wanted.prompt.end());
  request.max_tokens = wanted.tokens + 1;
  request.drafts = drafts;
  return request;
}

Result<Together> run_together(engine::Engine& engine, const StreamsCase& wanted, int streams,
                              bool drafts) {
  const auto began = std::chrono::steady_clock::now();
  std::vector<engine::Reply> replies;
  for (int stream = 0; stream < streams; ++stream) {
    ASSIGN_OR_RETURN(engine::Reply reply, engine.submit(request_of(wanted, stream, drafts)));
    replies.push_back(std::move(reply));
  }
  Together together;
  for (engine::Reply& reply : replies) {
    ASSIGN_OR_RETURN(TimedReply timed, finish_reply(reply));
    together.replies.push_back(std::move(timed.ids));
    together.drafts += timed.drafts;
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  together.ms = took.count();
  return together;
}

Status check_alone(const std::vector<Ids>& replies, const std::vector<Ids>& alone, bool drafts) {
  for (size_t i = 0; i < replies.size(); ++i) {
    if (replies[i] == alone[i]) continue;
    return error(ErrorCode::kInternal, "reply {} of {} {} differs from the one it gives alone", i,
                 replies.size(), drafts ? "drafted ones" : "plain ones");
  }
  return {};
}

Cell cell_of(const StreamsCase& wanted, int streams, bool drafts, int max_draft) {
  Cell cell;
  cell.kind = CellKind::kStreams;
  cell.streams = streams;
  cell.rows = drafts ? 1 + max_draft : 1;
  cell.chain = streams == 1;
  cell.context = static_cast<int>(wanted.prompt.size());
  cell.tokens_per_unit = static_cast<double>(streams) * (wanted.tokens + 1);
  return cell;
}

}  // namespace

Result<std::vector<Cell>> bench_streams(model::Model& model, const ServingSizes& sizes,
                                        const StreamsCase& wanted, const BenchProgress& progress) {
  const int most = *std::max_element(wanted.streams.begin(), wanted.streams.end());
  std::vector<Ids> alone;
  {
    ASSIGN_OR_RETURN(const auto engine, make_engine(model, sizes, nullptr));
    for (int stream = 0; stream < most; ++stream) {
      progress(fmt::format("streams: reply {} of {} alone", stream + 1, most));
      ASSIGN_OR_RETURN(engine::Reply reply, engine->submit(request_of(wanted, stream, false)));
      ASSIGN_OR_RETURN(TimedReply timed, finish_reply(reply));
      alone.push_back(std::move(timed.ids));
    }
  }
  std::vector<Cell> cells;
  for (const int streams : wanted.streams) {
    for (const bool drafts : {false, true}) {
      if (drafts && !wanted.drafts) continue;
      Cell cell = cell_of(wanted, streams, drafts, sizes.runner.max_draft);
      progress(fmt::format("streams: counting bytes of {} at once", streams));
      CountingEngine counting(model, sizes);
      RETURN_IF_ERROR(counting.start());
      ASSIGN_OR_RETURN(const Together counted,
                       run_together(counting.engine(), wanted, streams, drafts));
      counting.stop();
      RETURN_IF_ERROR(check_alone(counted.replies, alone, drafts));
      cell.traffic = counting.prompt();
      cell.traffic += counting.decode();
      if (streams == 1) cell.token_sha = token_sha(alone.front());
      cells.push_back(std::move(cell));
    }
  }
  ASSIGN_OR_RETURN(const auto engine, make_engine(model, sizes, nullptr));
  for (int round = 0; round < wanted.rounds; ++round) {
    for (Cell& cell : cells) {
      const bool drafts = cell.rows > 1;
      progress(fmt::format("{} streams, round {} of {}", cell.streams, round + 1, wanted.rounds));
      ASSIGN_OR_RETURN(const Together together,
                       run_together(*engine, wanted, cell.streams, drafts));
      RETURN_IF_ERROR(check_alone(together.replies, alone, drafts));
      cell.ms.push_back(together.ms);
      if (drafts) cell.drafts = together.drafts;
    }
  }
  return cells;
}

}  // namespace flashlane::cli
