// MLX's affine quantisation as bytes: w = scale * code + bias per group, codes in one little-endian
// bit stream per row. Reading a value back is kernels::dequantize_row; here is the packing and the
// quantiser (spec "MLX conversions"), used for synthetic weights, conversion and tests.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace flashlane {

bool affine_bits_supported(int bits);    // 2, 3, 4, 5, 6, 8
bool affine_group_supported(int group);  // 32, 64, 128

// The largest of 128, 64, 32 that is at most `wanted` and divides `cols`; 0 when none does.
int affine_group_that_divides(int wanted, int64_t cols);

// Quantises one row: codes.size() == row.size(), scales/biases (bf16 bits) one per group.
void affine_quantize_row(std::span<const float> row, int bits, int group, std::span<uint8_t> codes,
                         std::span<uint16_t> scales, std::span<uint16_t> biases);

// Packs codes into a bit stream of codes.size() * bits / 8 bytes, and back.
void affine_pack(std::span<const uint8_t> codes, int bits, std::span<std::byte> packed);
void affine_unpack(std::span<const std::byte> packed, int bits, std::span<uint8_t> codes);

}  // namespace flashlane
