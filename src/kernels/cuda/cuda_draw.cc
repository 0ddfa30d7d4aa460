// Synthetic rows on the GPU: made in stored form in the room that the caller keeps, then packed
// from there, both in the order of the stream.
#include "base/int_math.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/draw_rows.h"

namespace flashlane::kernels::cuda {
namespace {

constexpr size_t kLine = 256;  // where values, scales and biases begin

// The part's matrices one behind the other: one launch each, or one for all where they are whole
// and follow each other in the tensor too.
void draw(cudaStream_t stream, const Matrix& matrix, const MatrixPart& part, const DrawnRows& drawn,
          std::byte* values, std::byte* scales, std::byte* biases) {
  const bool together = part.row_count == matrix.rows && matrix.stride_rows == matrix.rows;
  const int64_t runs = together ? 1 : part.count;
  const int64_t rows = together ? part.count * part.row_count : part.row_count;
  for (int64_t run = 0; run < runs; ++run) {
    const int64_t first = (part.first + run) * matrix.stride_rows + part.first_row;
    const auto before = static_cast<size_t>(run * rows);
    launch_draw_rows(stream, drawn.rule, drawn.first_row + first, rows, matrix.cols, matrix.bits,
                     matrix.group, values + before * matrix.row_bytes(),
                     reinterpret_cast<uint16_t*>(scales + before * matrix.scale_row_bytes()),
                     reinterpret_cast<uint16_t*>(biases + before * matrix.scale_row_bytes()));
  }
}

}  // namespace

Status CudaOps::draw_part(const Matrix& matrix, const MatrixPart& part, const DrawnRows& drawn,
                          Buffer& room) {
  CHECK(matrix.layout == Layout::kBf16 ||
        (matrix.layout == Layout::kAffine && matrix.scale_dtype == DType::kBf16));
  const auto rows = static_cast<size_t>(part.count * part.row_count);
  const size_t values = round_up(rows * matrix.row_bytes(), kLine);
  const size_t scales = round_up(rows * matrix.scale_row_bytes(), kLine);
  const size_t needed = values + 2 * scales;
  if (room.bytes() < needed) {
    room = Buffer();
    std::byte* bytes = memory_.allocate(needed);
    if (bytes == nullptr) {
      return error(ErrorCode::kNoCapacity, "the GPU has no {} bytes left to make weights in",
                   needed);
    }
    room = Buffer::adopt(bytes, needed, memory_);
  }
  const Launches launches(*this);
  std::byte* at = room.data();
  draw(memory_.stream(), matrix, part, drawn, at, at + values, at + values + scales);
  pack_rows(matrix, part, at, at + values, at + values + scales);
  // What is told to be done is done.
  memory_.wait();
  return {};
}

}  // namespace flashlane::kernels::cuda
