// SPDX-License-Identifier: Apache-2.0
// Launches of the CUDA kernels: what lies between C++ that knows torch and CUDA sources that do not.
#pragma once

#include <cstdint>

struct CUstream_st;

namespace lockstep::nn {

enum class Element : std::uint8_t { fp32, fp16, bf16 };

struct LossOptions {
  std::int64_t ignore_index = -100;  // rows with this target have no loss and no gradient
  float smoothing = 0;               // how much of a target is spread over all classes
};

/// Logits and what they are judged by, in device memory. Rows are adjacent.
struct LossRows {
  const void* logits = nullptr;
  const std::int64_t* targets = nullptr;
  std::int64_t rows = 0;
  std::int64_t classes = 0;
  Element element = Element::fp32;
  LossOptions options = {};
};

void launch_row_losses(const LossRows& rows, float* losses, float* log_sums, CUstream_st* stream);
void launch_row_gradients(const LossRows& rows, const float* log_sums, const float* scales, void* output,
                          CUstream_st* stream);

/// Rows of `width` 16-bit elements, a multiple of 8 and at most 2048, all tensors adjacent and aligned to 16 bytes.
struct NormRows {
  std::int64_t rows = 0;
  std::int64_t width = 0;
  Element element = Element::fp16;
  const void* weight = nullptr;
};

struct AddNorm {
  const void* x = nullptr;
  const void* residual = nullptr;  // null: none, and `sum` is not written
  const void* bias = nullptr;
  float eps = 0;
  void* sum = nullptr;
  void* normed = nullptr;
  float* means = nullptr;
  float* inverse_deviations = nullptr;
};

struct NormBackward {
  const void* of_normed = nullptr;
  const void* of_sum = nullptr;  // null: none
  const void* sum = nullptr;
  const float* means = nullptr;
  const float* inverse_deviations = nullptr;
  void* of_x = nullptr;
  void* of_weight = nullptr;
  void* of_bias = nullptr;
  float* parts = nullptr;  // [2, blocks, width]
  int blocks = 0;
};

void launch_add_norm(const NormRows& rows, const AddNorm& pass, CUstream_st* stream);
/// How many blocks launch_norm_backward works with.
int norm_blocks(const NormRows& rows, int multiprocessors);
void launch_norm_backward(const NormRows& rows, const NormBackward& pass, CUstream_st* stream);

/// The gradient of a bias that was added to rows of `width` 16-bit elements, a multiple of 8; and of what lay before a
/// GELU, where there was one. Tensors are adjacent and aligned to 16 bytes.
struct BiasGradient {
  const void* gradient = nullptr;
  const void* before = nullptr;  // what the GELU took; null: there was none
  void* of_before = nullptr;
  void* of_bias = nullptr;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  Element element = Element::fp16;
  int blocks = 0;          // see bias_gradient_blocks
  float* parts = nullptr;  // [blocks, width]; not used where blocks is 1
};

int bias_gradient_blocks(std::int64_t rows, std::int64_t width, int multiprocessors);
void launch_bias_gradient(const BiasGradient& pass, CUstream_st* stream);

/// A channels-last tensor of 16-bit elements as a matrix; channels are a multiple of 8.
struct BatchNormShape {
  std::int64_t rows = 0;  // places in all images together
  std::int64_t channels = 0;
  Element element = Element::fp16;
  int blocks = 0;  // that leave partial sums
  int most_blocks = 0;
};

struct BatchNormForward {
  const void* x = nullptr;
  const void* residual = nullptr;  // null: none
  const float* weight = nullptr;
  const float* bias = nullptr;
  double eps = 0;
  double momentum = 0;
  void* y = nullptr;
  std::uint8_t* passed = nullptr;  // [rows, channels / 8], a bit for each element that the ReLU let through
  float* means = nullptr;
  float* inverse_deviations = nullptr;
  float* running_means = nullptr;
  float* running_variances = nullptr;
  std::int64_t* batches = nullptr;
};

struct BatchNormBackward {
  const void* of_y = nullptr;
  const void* x = nullptr;
  std::uint8_t* passed = nullptr;
  const float* weight = nullptr;
  const float* means = nullptr;
  const float* inverse_deviations = nullptr;
  void* of_x = nullptr;
  void* of_residual = nullptr;  // null: none
  float* of_weight = nullptr;
  float* of_bias = nullptr;
};

/// Sets both numbers of blocks. `parts` below holds 2 * blocks * channels.
void choose_batch_norm_blocks(BatchNormShape& shape, int multiprocessors);
void launch_batch_norm(const BatchNormShape& shape, const BatchNormForward& pass, float* parts, CUstream_st* stream);
void launch_batch_norm_backward(const BatchNormShape& shape, const BatchNormBackward& pass, float* parts,
                                CUstream_st* stream);

struct PoolSizes {
  int height = 0;
  int width = 0;
};

/// Channels-last tensors of 16-bit elements; channels are a multiple of 8, and packs of them fewer than 2^32.
struct MaxPoolShape {
  std::int64_t images = 0;
  std::int64_t channels = 0;
  PoolSizes input = {}, output = {};
  PoolSizes window = {}, stride = {}, padding = {};
  Element element = Element::fp16;

  constexpr std::uint32_t packs() const { return static_cast<std::uint32_t>(channels / 8); }
  constexpr std::uint32_t input_packs() const { return packs_of(input); }
  constexpr std::uint32_t output_packs() const { return packs_of(output); }

 private:
  constexpr std::uint32_t packs_of(const PoolSizes& sizes) const {
    return static_cast<std::uint32_t>(images * sizes.height * sizes.width * (channels / 8));
  }
};

/// `winners`: uint8, one for each output: which place of its window it came from.
void launch_max_pool(const MaxPoolShape& shape, const void* x, void* y, void* winners, CUstream_st* stream);
void launch_max_pool_gradient(const MaxPoolShape& shape, const void* of_y, const void* winners, void* of_x,
                              CUstream_st* stream);

}  // namespace lockstep::nn
