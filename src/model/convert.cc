// The values' way: a row is dequantised to f32, and written as the wanted format has it. Rows are
// worked in pieces, one a thread, so that the largest tensor takes no more memory than the others.
#include "model/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <thread>

#include "base/check.h"
#include "tensor/affine.h"

namespace flashlane::model {
namespace {

// Values of one piece.
constexpr int64_t kPieceValues = 1 << 20;
constexpr size_t kPieceBytes = size_t{4} << 20;

std::span<const std::byte> as_bytes_of(const std::vector<uint16_t>& values) {
  return std::as_bytes(std::span(values));
}

Status copy_unit(const ConversionUnit& unit, const TensorSink& sink) {
  for (size_t i = 0; i < unit.bytes.size(); ++i) {
    const std::span<const std::byte> all(unit.bytes[i].data, unit.bytes[i].bytes());
    size_t done = 0;
    // Empty tensors are handed out too: every tensor is seen.
    do {
      const size_t piece = std::min(kPieceBytes, all.size() - done);
      RETURN_IF_ERROR(sink(i, all.subspan(done, piece)));
      done += piece;
    } while (done < all.size());
  }
  return {};
}

Error cannot_hold(const ConversionUnit& unit, float value, int64_t row) {
  return invalid("tensor {} has {} in row {}: {} can't hold it", unit.tensors.front().name, value,
                 row, unit.format.name());
}

void add_loss(ConversionLoss& loss, const ConversionUnit& unit, float value, float stored) {
  if (!unit.is_matrix) return;
  const double error = static_cast<double>(stored) - static_cast<double>(value);
  loss.squared_error += error * error;
  loss.squared_value += static_cast<double>(value) * static_cast<double>(value);
}

// Writes plain rows.
class Caster {
 public:
  explicit Caster(const ConversionUnit& unit) : unit_(unit), dtype_(unit.format.dtype) {}

  Status add_row(int64_t row, std::span<const float> values, ConversionLoss& loss) {
    for (const float value : values) {
      float stored = value;
      if (dtype_ == DType::kF32) {
        words_.push_back(std::bit_cast<uint32_t>(value));
      } else {
        const bool is_f16 = dtype_ == DType::kF16;
        const uint16_t bits = is_f16 ? float_to_f16(value) : float_to_bf16(value);
        stored = is_f16 ? f16_to_float(bits) : bf16_to_float(bits);
        halves_.push_back(bits);
      }
      if (std::isfinite(value) && !std::isfinite(stored)) return cannot_hold(unit_, value, row);
      add_loss(loss, unit_, value, stored);
    }
    return {};
  }

  Status flush(const TensorSink& sink) const {
    const auto bytes =
        dtype_ == DType::kF32 ? std::as_bytes(std::span(words_)) : as_bytes_of(halves_);
    return sink(0, bytes);
  }

 private:
  const ConversionUnit& unit_;
  const DType dtype_;
  std::vector<uint32_t> words_;
  std::vector<uint16_t> halves_;
};

// Writes rows of codes, with scales and biases.
class Quantiser {
 public:
  explicit Quantiser(const ConversionUnit& unit)
      : unit_(unit),
        affine_(unit.format.affine),
        cols_(static_cast<size_t>(unit.source.cols)),
        groups_(cols_ / static_cast<size_t>(affine_.group)),
        row_codes_(cols_) {}

  Status add_row(int64_t row, std::span<const float> values, ConversionLoss& loss) {
    for (const float value : values) {
      // Not a number has no code, and the quantiser must not meet it.
      if (!std::isfinite(value)) return cannot_hold(unit_, value, row);
    }
    const size_t first = scales_.size();
    scales_.resize(first + groups_);
    biases_.resize(first + groups_);
    const auto scales = std::span(scales_).subspan(first);
    const auto biases = std::span(biases_).subspan(first);
    affine_quantize_row(values, affine_.bits, affine_.group, row_codes_, scales, biases);
    const size_t row_bytes = cols_ * static_cast<size_t>(affine_.bits) / 8;
    codes_.resize(codes_.size() + row_bytes);
    affine_pack(row_codes_, affine_.bits, std::span(codes_).last(row_bytes));
    for (size_t i = 0; i < cols_; ++i) {
      const size_t group = i / static_cast<size_t>(affine_.group);
      const float product = bf16_to_float(scales[group]) * static_cast<float>(row_codes_[i]);
      const float stored = product + bf16_to_float(biases[group]);
      if (!std::isfinite(stored)) return cannot_hold(unit_, values[i], row);
      add_loss(loss, unit_, values[i], stored);
    }
    return {};
  }

  Status flush(const TensorSink& sink) const {
    RETURN_IF_ERROR(sink(0, codes_));
    RETURN_IF_ERROR(sink(1, as_bytes_of(scales_)));
    return sink(2, as_bytes_of(biases_));
  }

 private:
  const ConversionUnit& unit_;
  const QuantizationDefault affine_;
  const size_t cols_;
  const size_t groups_;  // of a row
  std::vector<uint8_t> row_codes_;
  std::vector<std::byte> codes_;
  std::vector<uint16_t> scales_;
  std::vector<uint16_t> biases_;
};

// Some rows of a unit, worked on by one thread.
template <typename Writer>
struct Piece {
  Writer writer;
  int64_t first_row = 0;
  int64_t end_row = 0;
  ConversionLoss loss = {};
  Status status = {};

  void work(const kernels::Matrix& source) {
    std::vector<float> values(static_cast<size_t>(source.cols));
    for (int64_t row = first_row; row < end_row && status.ok(); ++row) {
      kernels::dequantize_row(source, 0, row, values.data());
      status = writer.add_row(row, values, loss);
    }
  }
};

// Pieces are cut by size alone and handed out in order, so that neither the bytes nor the loss
// depend on the number of threads.
template <typename Writer>
Status write_rows(const ConversionUnit& unit, int threads, const TensorSink& sink,
                  ConversionLoss& loss) {
  const kernels::Matrix& source = unit.source;
  const int64_t step = std::max<int64_t>(1, kPieceValues / std::max<int64_t>(1, source.cols));
  int64_t next_row = 0;
  // A unit without rows is handed out too: every tensor is seen.
  do {
    std::vector<Piece<Writer>> pieces;
    for (int i = 0; i < threads && (i == 0 || next_row < source.rows); ++i) {
      const int64_t end = std::min(source.rows, next_row + step);
      pieces.push_back({Writer(unit), next_row, end});
      next_row = end;
    }
    {
      std::vector<std::jthread> helpers;
      for (size_t i = 1; i < pieces.size(); ++i) {
        helpers.emplace_back([&source, &piece = pieces[i]] { piece.work(source); });
      }
      pieces[0].work(source);
    }
    for (Piece<Writer>& piece : pieces) {
      RETURN_IF_ERROR(piece.status);
      RETURN_IF_ERROR(piece.writer.flush(sink));
      loss.squared_error += piece.loss.squared_error;
      loss.squared_value += piece.loss.squared_value;
    }
  } while (next_row < source.rows);
  return {};
}

}  // namespace

double ConversionLoss::relative() const {
  return squared_value == 0 ? 0 : std::sqrt(squared_error / squared_value);
}

Status convert_unit(const ConversionUnit& unit, int threads, const TensorSink& sink,
                    ConversionLoss& loss) {
  CHECK_GE(threads, 1);
  switch (unit.kind) {
    case ConversionUnit::Kind::kCopy:
      return copy_unit(unit, sink);
    case ConversionUnit::Kind::kCast:
      return write_rows<Caster>(unit, threads, sink, loss);
    case ConversionUnit::Kind::kQuantise:
      return write_rows<Quantiser>(unit, threads, sink, loss);
  }
  UNREACHABLE();
}

}  // namespace flashlane::model
