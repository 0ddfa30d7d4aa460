// CudaOps: the backend's own copies of weights, made at load.
#include "base/int_math.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/matrix_check.h"

namespace flashlane::kernels::cuda {
namespace {

constexpr size_t kAlignment = 256;

// Shapes; the bytes are allocated by whoever keeps it.
DeviceMatrix device_form(const Matrix& matrix) {
  DeviceMatrix device;
  device.layout = matrix.layout;
  device.scale_dtype = matrix.scale_dtype;
  device.bits = matrix.layout == Layout::kBf16 ? kPlainBits : matrix.bits;
  device.group = matrix.group;
  device.rows = matrix.rows;
  device.cols = matrix.cols;
  device.count = matrix.count;
  return device;
}

size_t all_values_bytes(const DeviceMatrix& device) {
  return round_up(static_cast<size_t>(device.count) * device.values_bytes(), kAlignment);
}

size_t all_bytes(const DeviceMatrix& device) {
  return all_values_bytes(device) + static_cast<size_t>(device.count) * device.scales_bytes();
}

}  // namespace

size_t CudaOps::prepared_bytes(const Matrix& matrix) const {
  return all_bytes(device_form(matrix));
}

Status CudaOps::begin_prepare(Matrix& matrix) {
  RETURN_IF_ERROR(check_matrix(matrix));
  DeviceMatrix device = device_form(matrix);
  const size_t bytes = all_bytes(device);
  device.values = memory_.allocate(bytes);
  if (device.values == nullptr) {
    return error(ErrorCode::kNoCapacity,
                 "the GPU has no {} bytes left for a weight of {} x {} x {}", bytes, matrix.count,
                 matrix.rows, matrix.cols);
  }
  device.scales = device.values + all_values_bytes(device);
  matrix.packed = static_cast<int>(matrices_.size());
  matrices_.push_back(device);
  matrix_bytes_.push_back(Buffer::adopt(device.values, bytes, memory_));
  return {};
}

// The part's rows go to the device as they are stored, and from there to their places.
void CudaOps::prepare_part(const Matrix& matrix, const MatrixPart& part) {
  const auto rows = static_cast<size_t>(part.row_count);
  const auto all_rows = static_cast<size_t>(part.count) * rows;
  const size_t values = round_up(all_rows * matrix.row_bytes(), kAlignment);
  const size_t scales = round_up(all_rows * matrix.scale_row_bytes(), kAlignment);
  Buffer stored(values + 2 * scales, memory_);
  const auto send = [&](std::byte* to, const std::byte* from, size_t row_bytes) {
    if (row_bytes == 0) return;
    for (int64_t index = 0; index < part.count; ++index) {
      const auto first =
          static_cast<size_t>((part.first + index) * matrix.stride_rows + part.first_row);
      memory_.copy(to + static_cast<size_t>(index) * rows * row_bytes, from + first * row_bytes,
                   rows * row_bytes);
    }
  };
  send(stored.data(), matrix.data, matrix.row_bytes());
  send(stored.data() + values, matrix.scales, matrix.scale_row_bytes());
  send(stored.data() + values + scales, matrix.biases, matrix.scale_row_bytes());
  pack_rows(matrix, part, stored.data(), stored.data() + values, stored.data() + values + scales);
  memory_.wait();
}

void CudaOps::pack_rows(const Matrix& matrix, const MatrixPart& part, const std::byte* values,
                        const std::byte* scales, const std::byte* biases) {
  const DeviceMatrix& device = prepared(matrix);
  if (device.tiled()) {
    launch_tile_rows(memory_.stream(), device, part, {values, scales, biases});
    CHECK_CUDA(cudaGetLastError());
    return;
  }
  const size_t bytes = static_cast<size_t>(part.row_count) * device.plain_row_bytes();
  for (int64_t index = 0; index < part.count; ++index) {
    const auto row = static_cast<size_t>((part.first + index) * device.rows + part.first_row);
    CHECK_CUDA(cudaMemcpyAsync(device.values + row * device.plain_row_bytes(),
                               values + static_cast<size_t>(index) * bytes, bytes,
                               cudaMemcpyDeviceToDevice, memory_.stream()));
  }
}

const DeviceMatrix& CudaOps::prepared(const Matrix& matrix) const {
  CHECK(matrix.packed >= 0 && matrix.packed < static_cast<int>(matrices_.size()));
  return matrices_[static_cast<size_t>(matrix.packed)];
}

}  // namespace flashlane::kernels::cuda
