// SPDX-License-Identifier: Apache-2.0
// Batch normalisation of channels-last tensors: a matrix with a row for each place and a column for each channel. A
// thread keeps to a pack of eight channels and walks down the rows, a block to one chunk of channels.
#include <algorithm>

#include "nn/cuda_packs.cuh"
#include "nn/fused_kernels.h"

namespace lockstep::nn {
namespace {

constexpr int kThreads = 256;
constexpr int kPack = 8;
constexpr int kBlocksPerMultiprocessor = 4;
constexpr int kSumRows = 16;  // threads that share a channel's partial sums

/// Which channels and which rows are this thread's.
struct Place {
  int packs;           // of this block
  int pack;            // this thread's, in the whole row
  int lanes;           // rows that the block works on at once
  std::int64_t row;    // the first
  std::int64_t steps;  // rows to the next
  bool idle;

  __device__ explicit Place(const BatchNormShape& shape) {
    const int all = static_cast<int>(shape.channels / kPack);
    const int begin = static_cast<int>(blockIdx.y) * kThreads;
    packs = min(all - begin, kThreads);
    lanes = kThreads / packs;
    const int lane = static_cast<int>(threadIdx.x) / packs;
    pack = begin + static_cast<int>(threadIdx.x) % packs;
    row = static_cast<std::int64_t>(blockIdx.x) * lanes + lane;
    steps = static_cast<std::int64_t>(gridDim.x) * lanes;
    idle = lane >= lanes;
  }
};

template <class T>
__device__ Pack<T> load(const void* tensor, const BatchNormShape& shape, std::int64_t row, int pack) {
  return static_cast<const Pack<T>*>(tensor)[row * (shape.channels / kPack) + pack];
}
template <class T>
__device__ void save(void* tensor, const BatchNormShape& shape, std::int64_t row, int pack, const Pack<T>& values) {
  static_cast<Pack<T>*>(tensor)[row * (shape.channels / kPack) + pack] = values;
}

struct Channels {
  float at[kPack] = {};

  Channels() = default;
  __device__ Channels(const float* values, int pack) {
    for (int k = 0; k < kPack; ++k) {
      at[k] = values[pack * kPack + k];
    }
  }
};

/// Adds the block's lanes in order and leaves the sums in the block's row of `parts`. All threads call it.
__device__ void save_sums(const BatchNormShape& shape, const Place& place, const Channels& sums, float* parts) {
  __shared__ float shared[kThreads][kPack];
  __syncthreads();
  for (int k = 0; k < kPack; ++k) {
    shared[threadIdx.x][k] = sums.at[k];
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < place.packs) {
    for (int k = 0; k < kPack; ++k) {
      float sum = 0;
      for (int lane = 0; lane < place.lanes; ++lane) {
        sum += shared[lane * place.packs + threadIdx.x][k];
      }
      parts[blockIdx.x * shape.channels + place.pack * kPack + k] = sum;
    }
  }
}

/// Sums of the values and their squares, counted from the first row's, so that a large mean cancels nothing.
template <class T>
__global__ void __launch_bounds__(kThreads) moments(BatchNormShape shape, const void* x, float* parts) {
  const Place place(shape);
  Channels plain, squares;
  const Pack<T> origin = load<T>(x, shape, 0, place.pack);
  for (std::int64_t row = place.row; row < shape.rows && !place.idle; row += place.steps) {
    const Pack<T> values = load<T>(x, shape, row, place.pack);
    for (int k = 0; k < kPack; ++k) {
      const float apart = wide(values.at[k]) - wide(origin.at[k]);
      plain.at[k] += apart;
      squares.at[k] += apart * apart;
    }
  }
  save_sums(shape, place, plain, parts);
  save_sums(shape, place, squares, parts + gridDim.x * shape.channels);
}

/// Both sums of a channel over all blocks, in fp64; in the threads with threadIdx.y 0. All threads call it.
struct ChannelSums {
  double first = 0, second = 0;

  __device__ ChannelSums(const BatchNormShape& shape, const float* parts, std::int64_t channel) {
    __shared__ double shared[2][kSumRows][kWarp];
    for (int block = threadIdx.y; block < shape.blocks && channel < shape.channels; block += kSumRows) {
      first += parts[block * shape.channels + channel];
      second += parts[(shape.blocks + block) * shape.channels + channel];
    }
    shared[0][threadIdx.y][threadIdx.x] = first;
    shared[1][threadIdx.y][threadIdx.x] = second;
    __syncthreads();
    for (int i = 1; threadIdx.y == 0 && i < kSumRows; ++i) {
      first += shared[0][i][threadIdx.x];
      second += shared[1][i][threadIdx.x];
    }
  }
};

__device__ void move_on(float* running, double value, double momentum) {
  *running = static_cast<float>((1 - momentum) * *running + momentum * value);
}

template <class T>
__global__ void settle_moments(BatchNormShape shape, BatchNormForward pass, const float* parts) {
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  const ChannelSums sums(shape, parts, channel);
  if (threadIdx.y != 0 || channel >= shape.channels) {
    return;
  }
  const auto count = static_cast<double>(shape.rows);
  const double apart = sums.first / count;
  const double mean = wide(static_cast<const T*>(pass.x)[channel]) + apart;
  const double variance = fmax(sums.second / count - apart * apart, 0.0);
  pass.means[channel] = static_cast<float>(mean);
  pass.inverse_deviations[channel] = static_cast<float>(1 / sqrt(variance + pass.eps));
  move_on(pass.running_means + channel, mean, pass.momentum);
  move_on(pass.running_variances + channel, variance * count / (count - 1), pass.momentum);
  if (channel == 0) {
    *pass.batches += 1;
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) normalise(BatchNormShape shape, BatchNormForward pass) {
  const Place place(shape);
  const Channels mean(pass.means, place.pack), inverse(pass.inverse_deviations, place.pack);
  const Channels weight(pass.weight, place.pack), bias(pass.bias, place.pack);
  for (std::int64_t row = place.row; row < shape.rows && !place.idle; row += place.steps) {
    const Pack<T> values = load<T>(pass.x, shape, row, place.pack);
    Pack<T> residual{}, out;
    if (pass.residual != nullptr) {
      residual = load<T>(pass.residual, shape, row, place.pack);
    }
    for (int k = 0; k < kPack; ++k) {
      float y = (wide(values.at[k]) - mean.at[k]) * inverse.at[k] * weight.at[k] + bias.at[k];
      y += pass.residual != nullptr ? wide(residual.at[k]) : 0.0f;
      store(&out.at[k], y < 0 ? 0.0f : y);  // NaN stays NaN
    }
    save(pass.y, shape, row, place.pack, out);
  }
}

/// The gradient that came through the ReLU.
template <class T>
__device__ float through(const Pack<T>& gradient, const Pack<T>& y, int k) {
  return wide(y.at[k]) > 0 ? wide(gradient.at[k]) : 0.0f;
}

/// Sums of the gradient, and of the gradient times the normed value. The residual's gradient is written on the way.
template <class T>
__global__ void __launch_bounds__(kThreads) gradient_sums(BatchNormShape shape, BatchNormBackward pass, float* parts) {
  const Place place(shape);
  const Channels mean(pass.means, place.pack), inverse(pass.inverse_deviations, place.pack);
  Channels plain, along;
  for (std::int64_t row = place.row; row < shape.rows && !place.idle; row += place.steps) {
    const Pack<T> gradient = load<T>(pass.of_y, shape, row, place.pack);
    const Pack<T> y = load<T>(pass.y, shape, row, place.pack), values = load<T>(pass.x, shape, row, place.pack);
    Pack<T> out;
    for (int k = 0; k < kPack; ++k) {
      const float given = through(gradient, y, k);
      plain.at[k] += given;
      along.at[k] += given * (wide(values.at[k]) - mean.at[k]) * inverse.at[k];
      store(&out.at[k], given);
    }
    if (pass.of_residual != nullptr) {
      save(pass.of_residual, shape, row, place.pack, out);
    }
  }
  save_sums(shape, place, plain, parts);
  save_sums(shape, place, along, parts + gridDim.x * shape.channels);
}

__global__ void settle_gradients(BatchNormShape shape, BatchNormBackward pass, const float* parts) {
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  const ChannelSums sums(shape, parts, channel);
  if (threadIdx.y == 0 && channel < shape.channels) {
    pass.of_bias[channel] = static_cast<float>(sums.first);
    pass.of_weight[channel] = static_cast<float>(sums.second);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) input_gradient(BatchNormShape shape, BatchNormBackward pass) {
  const Place place(shape);
  const Channels mean(pass.means, place.pack), inverse(pass.inverse_deviations, place.pack);
  const Channels weight(pass.weight, place.pack);
  const Channels plain(pass.of_bias, place.pack), along(pass.of_weight, place.pack);
  const float share = 1.0f / static_cast<float>(shape.rows);
  for (std::int64_t row = place.row; row < shape.rows && !place.idle; row += place.steps) {
    const Pack<T> gradient = load<T>(pass.of_y, shape, row, place.pack);
    const Pack<T> y = load<T>(pass.y, shape, row, place.pack), values = load<T>(pass.x, shape, row, place.pack);
    Pack<T> out;
    for (int k = 0; k < kPack; ++k) {
      const float normed = (wide(values.at[k]) - mean.at[k]) * inverse.at[k];
      const float centred = through(gradient, y, k) - share * (plain.at[k] + normed * along.at[k]);
      store(&out.at[k], centred * weight.at[k] * inverse.at[k]);
    }
    save(pass.of_x, shape, row, place.pack, out);
  }
}

dim3 row_grid(const BatchNormShape& shape) {
  const auto packs = shape.channels / kPack;
  return dim3(static_cast<unsigned>(shape.blocks), static_cast<unsigned>((packs + kThreads - 1) / kThreads));
}

dim3 channel_grid(const BatchNormShape& shape) {
  return dim3(static_cast<unsigned>((shape.channels + kWarp - 1) / kWarp));
}

/// Calls `fn(T())`.
template <class Fn>
void with_type(const BatchNormShape& shape, Fn&& fn) {
  if (shape.element == Element::fp16) {
    fn(__half());
  } else {
    fn(__nv_bfloat16());
  }
}

}  // namespace

int batch_norm_blocks(const BatchNormShape& shape, int multiprocessors) {
  const auto packs = std::min<std::int64_t>(shape.channels / kPack, kThreads);
  const auto lanes = kThreads / packs;
  return static_cast<int>(
      std::min<std::int64_t>((shape.rows + lanes - 1) / lanes, multiprocessors * kBlocksPerMultiprocessor));
}

void launch_batch_norm(const BatchNormShape& shape, const BatchNormForward& pass, float* parts, CUstream_st* stream) {
  with_type(shape, [&]<class T>(T) {
    moments<T><<<row_grid(shape), kThreads, 0, stream>>>(shape, pass.x, parts);
    settle_moments<T><<<channel_grid(shape), dim3(kWarp, kSumRows), 0, stream>>>(shape, pass, parts);
    normalise<T><<<row_grid(shape), kThreads, 0, stream>>>(shape, pass);
  });
}

void launch_batch_norm_backward(const BatchNormShape& shape, const BatchNormBackward& pass, float* parts,
                                CUstream_st* stream) {
  with_type(shape, [&]<class T>(T) {
    gradient_sums<T><<<row_grid(shape), kThreads, 0, stream>>>(shape, pass, parts);
    settle_gradients<<<channel_grid(shape), dim3(kWarp, kSumRows), 0, stream>>>(shape, pass, parts);
    input_gradient<T><<<row_grid(shape), kThreads, 0, stream>>>(shape, pass);
  });
}

}  // namespace lockstep::nn
