#include "runner/runner_sizes.h"

#include <algorithm>
#include <utility>

#include "base/int_math.h"
#include "runner/head_backlog.h"
#include "runner/slot.h"

namespace flashlane::runner {
namespace {

using kernels::kMaxWindow;

constexpr int kMostSlots = 256;
constexpr int kMostPages = 1 << 30;

}  // namespace

Status check_options(const model::Model& model, const RunnerOptions& options) {
  const model::ModelShape& shape = model.shape();
  if (options.slots < 1 || options.slots > kMostSlots) {
    return invalid("slots is {}; it must be 1 to {}", options.slots, kMostSlots);
  }
  if (options.context < 1 || options.context > shape.max_position) {
    return invalid("context is {}; it must be 1 to {}, the model's limit", options.context,
                   shape.max_position);
  }
  if (options.max_rows < 1)
    return invalid("max_rows is {}; it must be 1 or more", options.max_rows);
  for (const auto& [name, pages] :
       {std::pair("pages", options.pages), std::pair("kept_pages", options.kept_pages)}) {
    if (pages >= 0 && pages <= kMostPages) continue;
    return invalid("{} is {}; it must be 0 to {}", name, pages, kMostPages);
  }
  if (options.max_draft < 0 || options.max_draft >= kMaxWindow) {
    return invalid("max_draft is {}; it must be 0 to {}", options.max_draft, kMaxWindow - 1);
  }
  if (options.max_draft > 0 && !model.weights().has_mtp) {
    return invalid("max_draft is {}, but the model has no MTP head", options.max_draft);
  }
  if (options.kv_dtype != DType::kF32 && options.kv_dtype != DType::kBf16) {
    return error(ErrorCode::kUnsupported, "kv_dtype is {}; it must be F32 or BF16",
                 dtype_name(options.kv_dtype));
  }
  return {};
}

// None where nothing is ever drafted; a backlog goes into the head in one batch.
int backlog_rows(const RunnerOptions& options) {
  return options.max_draft == 0 ? 0 : std::min(HeadBacklog::kMostRows, options.max_rows);
}

int pool_pages(const Storage& storage, const RunnerOptions& options) {
  return options.pages > 0 ? options.pages : options.slots * storage.pool.need(options.context);
}

// The null page stands behind the others: zeroed, and what a table names where no rows are.
size_t pool_bytes(const Storage& storage, int pages) {
  return (static_cast<size_t>(pages) + 1) * storage.pool.page_bytes();
}

Result<Storage> sequence_storage(const model::ModelShape& shape, const RunnerOptions& options) {
  return make_storage(shape, options.kv_dtype, options.page_rows, options.state_form,
                      backlog_rows(options));
}

size_t slot_bytes(const Storage& storage, int context) {
  return Slot::bytes(storage, context);
}

Result<RunnerMemory> runner_memory(const model::ModelShape& shape, const RunnerOptions& options) {
  ASSIGN_OR_RETURN(const Storage storage, sequence_storage(shape, options));
  const int pages = pool_pages(storage, options);
  // Sixteen rows fill whole cache lines of every buffer, so bytes grow in proportion from there on.
  const size_t sixteen_rows = model::Activations(shape, 16).bytes();
  const auto window = static_cast<size_t>(kMaxWindow);
  return RunnerMemory{
      .pages = pages,
      .pool_bytes = pool_bytes(storage, pages),
      .slots_bytes = static_cast<size_t>(options.slots) * Slot::bytes(storage, options.context),
      .kept_bytes = static_cast<size_t>(options.kept_pages) * storage.pool.page_bytes(),
      .step_bytes = sixteen_rows * static_cast<size_t>(div_ceil(options.max_rows, 16)) +
                    window * static_cast<size_t>(shape.vocabulary) * sizeof(float)};
}

}  // namespace flashlane::runner
