// SPDX-License-Identifier: Apache-2.0
// Max pooling of channels-last tensors: a thread makes eight channels of one place, forward of the output and backward
// of the input. Which place of its window won is one byte for each output.
#include "nn/cuda_packs.cuh"
#include "nn/fused_kernels.h"

namespace lockstep::nn {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 8;

/// Where the pack with number `at` of a channels-last tensor lies.
struct Place {
  std::uint32_t pack, column, row, image;

  __device__ Place(std::uint32_t at, std::uint32_t packs, std::uint32_t width, std::uint32_t height) {
    pack = at % packs;
    at /= packs;
    column = at % width;
    at /= width;
    row = at % height;
    image = at / height;
  }
};

/// The number of the pack at this place.
__device__ std::int64_t number_of(const Place& place, std::int64_t row, std::int64_t column, std::int64_t height,
                                  std::int64_t width, std::int64_t packs) {
  return ((place.image * height + row) * width + column) * packs + place.pack;
}

template <class T>
__global__ void __launch_bounds__(kThreads) max_pool(MaxPoolShape shape, const void* x, void* y, void* winners) {
  const std::uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= shape.output_packs()) {
    return;
  }
  const Place place(at, shape.packs(), shape.output.width, shape.output.height);
  const int top = static_cast<int>(place.row) * shape.stride.height - shape.padding.height;
  const int left = static_cast<int>(place.column) * shape.stride.width - shape.padding.width;
  float most[kPack];
  Pack<std::uint8_t, kPack> winner;
  for (int k = 0; k < kPack; ++k) {
    most[k] = -INFINITY;
    // The first place inside the input, where all are -inf.
    winner.at[k] = static_cast<std::uint8_t>(max(-top, 0) * shape.window.width + max(-left, 0));
  }
  for (int i = max(-top, 0); i < shape.window.height && top + i < shape.input.height; ++i) {
    for (int j = max(-left, 0); j < shape.window.width && left + j < shape.input.width; ++j) {
      const auto from = number_of(place, top + i, left + j, shape.input.height, shape.input.width, shape.packs());
      const Pack<T> values = static_cast<const Pack<T>*>(x)[from];
      for (int k = 0; k < kPack; ++k) {
        const float value = wide(values.at[k]);
        if (value > most[k] || isnan(value)) {
          most[k] = value;
          winner.at[k] = static_cast<std::uint8_t>(i * shape.window.width + j);
        }
      }
    }
  }
  Pack<T> out;
  for (int k = 0; k < kPack; ++k) {
    store(&out.at[k], most[k]);
  }
  static_cast<Pack<T>*>(y)[at] = out;
  static_cast<Pack<std::uint8_t, kPack>*>(winners)[at] = winner;
}

/// The first window that reaches a place this far from the padded edge.
__device__ int first_window(int at, int window, int stride) {
  return at < window ? 0 : (at - window) / stride + 1;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    max_pool_gradient(MaxPoolShape shape, const void* of_y, const void* winners, void* of_x) {
  const std::uint32_t at = blockIdx.x * kThreads + threadIdx.x;
  if (at >= shape.input_packs()) {
    return;
  }
  const Place place(at, shape.packs(), shape.input.width, shape.input.height);
  const int row = static_cast<int>(place.row) + shape.padding.height;
  const int column = static_cast<int>(place.column) + shape.padding.width;
  const int last_row = min(row / shape.stride.height, shape.output.height - 1);
  const int last_column = min(column / shape.stride.width, shape.output.width - 1);
  float sums[kPack] = {};
  for (int i = first_window(row, shape.window.height, shape.stride.height); i <= last_row; ++i) {
    for (int j = first_window(column, shape.window.width, shape.stride.width); j <= last_column; ++j) {
      const auto from = number_of(place, i, j, shape.output.height, shape.output.width, shape.packs());
      const Pack<T> gradient = static_cast<const Pack<T>*>(of_y)[from];
      const auto winner = static_cast<const Pack<std::uint8_t, kPack>*>(winners)[from];
      const int here = (row - i * shape.stride.height) * shape.window.width + column - j * shape.stride.width;
      for (int k = 0; k < kPack; ++k) {
        sums[k] += winner.at[k] == here ? wide(gradient.at[k]) : 0.0f;
      }
    }
  }
  Pack<T> out;
  for (int k = 0; k < kPack; ++k) {
    store(&out.at[k], sums[k]);
  }
  static_cast<Pack<T>*>(of_x)[at] = out;
}

unsigned blocks_for(std::uint32_t packs) {
  return packs / kThreads + (packs % kThreads != 0 ? 1 : 0);
}

}  // namespace

void launch_max_pool(const MaxPoolShape& shape, const void* x, void* y, void* winners, CUstream_st* stream) {
  const auto blocks = blocks_for(shape.output_packs());
  if (shape.element == Element::fp16) {
    max_pool<__half><<<blocks, kThreads, 0, stream>>>(shape, x, y, winners);
  } else {
    max_pool<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(shape, x, y, winners);
  }
}

void launch_max_pool_gradient(const MaxPoolShape& shape, const void* of_y, const void* winners, void* of_x,
                              CUstream_st* stream) {
  const auto blocks = blocks_for(shape.input_packs());
  if (shape.element == Element::fp16) {
    max_pool_gradient<__half><<<blocks, kThreads, 0, stream>>>(shape, of_y, winners, of_x);
  } else {
    max_pool_gradient<__nv_bfloat16><<<blocks, kThreads, 0, stream>>>(shape, of_y, winners, of_x);
  }
}

}  // namespace lockstep::nn
