// Products with weights in f32 or f16, which no tensor product takes exactly, and the choice of a
// product's kernel. A warp has one weight row and some rows of x: lane l sums columns l, l + 32, …
// in ascending order, the lanes are summed by halves.
#include <cuda_fp16.h>

#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/product.h"

namespace flashlane::kernels::cuda {
namespace {

constexpr int kWarps = 8;  // of a block
constexpr int kRows = 4;   // of x that are read together

struct F32 {
  using Type = float;
  static __device__ float value(float x) { return x; }
};
struct F16 {
  using Type = __half;
  static __device__ float value(__half x) { return __half2float(x); }
};

// Grid: x over weight rows, y over parts of x, or over the matrices of the bank.
template <typename Stored>
__global__ void __launch_bounds__(kWarps* kWarp) plain_kernel(const Product product) {
  let_later_start();
  wait_for_earlier();
  const DeviceMatrix& weight = product.weight;
  const ExpertLists& lists = product.lists;
  const bool listed = lists.list != nullptr;
  const int64_t matrix = listed ? blockIdx.y : 0;
  const int begin = listed ? lists.starts[matrix] : static_cast<int>(blockIdx.y) * kRows;
  const int end = listed ? lists.starts[matrix + 1] : min(begin + kRows, product.row_count);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t own = int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp;
  if (own >= weight.rows) return;
  const auto* row = reinterpret_cast<const typename Stored::Type*>(
      weight.values + static_cast<size_t>(matrix * weight.rows + own) * weight.plain_row_bytes());
  for (int first = begin; first < end; first += kRows) {
    float sums[kRows] = {};
    const float* x[kRows] = {};
    int64_t pairs[kRows] = {};
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      if (first + r >= end) continue;
      pairs[r] = listed ? lists.list[first + r] : first + r;
      x[r] = product.x + (listed ? pairs[r] / lists.pairs_per_row : pairs[r]) * weight.cols;
    }
    for (int64_t col = lane; col < weight.cols; col += kWarp) {
      const float value = Stored::value(row[col]);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        if (x[r] == nullptr) continue;
        sums[r] = fmaf(__bfloat162float(__float2bfloat16_rn(x[r][col])), value, sums[r]);
      }
    }
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = warp_sum(sums[r]);
      if (lane == 0 && x[r] != nullptr) product.out[pairs[r] * weight.rows + own] = sum;
    }
  }
}

template <typename Stored>
void launch_plain(cudaStream_t stream, const Product& product) {
  const dim3 grid(static_cast<unsigned>((product.weight.rows + kWarps - 1) / kWarps),
                  static_cast<unsigned>(product.lists.list != nullptr
                                            ? product.weight.count
                                            : (product.row_count + kRows - 1) / kRows));
  launch_after(stream, plain_kernel<Stored>, grid, kWarps * kWarp, product);
}

FewProducts as_few(const Product& product) {
  FewProducts one;
  one.row_count = product.row_count;
  one.add({.weight = product.weight, .x = product.x, .out = product.out});
  return one;
}

bool is_few(const Product& product) {
  return product.lists.list == nullptr && product.chunks == 1 && !product.gated &&
         can_launch_few(as_few(product));
}

}  // namespace

int64_t product_room_floats(const Product& product) {
  if (is_few(product)) return few_room_floats(as_few(product));
  return product.room == nullptr ? product.many_room_floats() : 0;
}

void launch_product(cudaStream_t stream, const Product& product, float* room) {
  if (product.row_count == 0 || product.weight.rows == 0) return;
  if (product.weight.layout == Layout::kF32) {
    launch_plain<F32>(stream, product);
  } else if (product.weight.layout == Layout::kF16) {
    launch_plain<F16>(stream, product);
  } else if (is_few(product)) {
    launch_few_rows(stream, as_few(product), room);
  } else {
    Product own = product;
    if (own.room == nullptr) own.room = room;
    launch_many_rows(stream, own);
  }
}

}  // namespace flashlane::kernels::cuda
