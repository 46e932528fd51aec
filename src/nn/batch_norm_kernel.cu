// SPDX-License-Identifier: Apache-2.0
// Batch normalisation of channels-last tensors, with the ReLU after it and the residual's addition before that.
#include <algorithm>

#include "nn/channels_last.cuh"
#include "nn/fused_kernels.h"

namespace lockstep::nn {
namespace {

constexpr int kBlocksPerMultiprocessor = 3;  // as many as its registers hold
constexpr int kRowsOfSums = 4;               // that a thread adds, where there are enough: fewer partial sums to settle
constexpr int kSumRows = 32;                 // threads that share a channel's partial sums

/// Sums of the values and their squares, counted from the first row's, so that a large mean cancels nothing.
template <class T>
__global__ void __launch_bounds__(kThreads, 3) moments(BatchNormShape shape, const void* x, float* parts) {
  const Place place(shape);
  Channels plain, squares;
  const Pack<T> origin = load<T>(x, shape, 0, place.pack);
  constexpr int kAtOnce = 4;
  Pack<T> values[kAtOnce];
  walk<kAtOnce>(
      shape, place, [&](int i, std::int64_t row) { values[i] = load<T>(x, shape, row, place.pack); },
      [&](int i, std::int64_t) {
        for (int k = 0; k < kPack; ++k) {
          const float apart = wide(values[i].at[k]) - wide(origin.at[k]);
          plain.at[k] += apart;
          squares.at[k] += apart * apart;
        }
      });
  save_sums(shape, place, plain, parts);
  save_sums(shape, place, squares, parts + gridDim.x * shape.channels);
}

/// Both sums of a channel over all blocks, in fp64; in the threads with threadIdx.y 0. All threads call it.
struct ChannelSums {
  double first = 0, second = 0;

  __device__ ChannelSums(const BatchNormShape& shape, const float* parts, std::int64_t channel) {
    __shared__ double shared[2][kSumRows][kWarp];
#pragma unroll 4
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

/// What went through the ReLU: a bit for each element of a pack.
__device__ std::uint8_t& passed(std::uint8_t* bits, const BatchNormShape& shape, std::int64_t row, int pack) {
  return bits[row * (shape.channels / kPack) + pack];
}

template <class T>
__global__ void __launch_bounds__(kThreads, 3) normalise(BatchNormShape shape, BatchNormForward pass) {
  const Place place(shape);
  const Channels mean(pass.means, place.pack), bias(pass.bias, place.pack);
  const Channels scale = Channels(pass.inverse_deviations, place.pack) * Channels(pass.weight, place.pack);
  constexpr int kAtOnce = 2;
  Pack<T> values[kAtOnce], residual[kAtOnce] = {};
  const auto ask = [&](int i, std::int64_t row) {
    values[i] = load<T>(pass.x, shape, row, place.pack);
    if (pass.residual != nullptr) {
      residual[i] = load<T>(pass.residual, shape, row, place.pack);
    }
  };
  const auto use = [&](int i, std::int64_t row) {
    Pack<T> out;
    unsigned bits = 0;
    for (int k = 0; k < kPack; ++k) {
      float y = (wide(values[i].at[k]) - mean.at[k]) * scale.at[k] + bias.at[k];
      y += pass.residual != nullptr ? wide(residual[i].at[k]) : 0.0f;
      store(&out.at[k], y < 0 ? 0.0f : y);  // NaN stays NaN
      bits |= wide(out.at[k]) <= 0 ? 0u : 1u << k;
    }
    save(pass.y, shape, row, place.pack, out);
    passed(pass.passed, shape, row, place.pack) = static_cast<std::uint8_t>(bits);
  };
  walk<kAtOnce>(shape, place, ask, use);
}

/// Sums of the gradient, and of the gradient times the normed value. The residual's gradient is written on the way.
template <class T>
__global__ void __launch_bounds__(kThreads, 3)
    gradient_sums(BatchNormShape shape, BatchNormBackward pass, float* parts) {
  const Place place(shape);
  const Channels mean(pass.means, place.pack);
  Channels plain, along;
  constexpr int kAtOnce = 2;
  Pack<T> gradient[kAtOnce], values[kAtOnce];
  std::uint8_t bits[kAtOnce];
  const auto ask = [&](int i, std::int64_t row) {
    gradient[i] = load<T>(pass.of_y, shape, row, place.pack);
    values[i] = load<T>(pass.x, shape, row, place.pack);
    bits[i] = passed(pass.passed, shape, row, place.pack);
  };
  const auto use = [&](int i, std::int64_t row) {
    Pack<T> out;
    for (int k = 0; k < kPack; ++k) {
      const float given = bits[i] >> k & 1 ? wide(gradient[i].at[k]) : 0.0f;
      plain.at[k] += given;
      along.at[k] += given * (wide(values[i].at[k]) - mean.at[k]);
      store(&out.at[k], given);
    }
    if (pass.of_residual != nullptr) {
      save(pass.of_residual, shape, row, place.pack, out);
    }
  };
  walk<kAtOnce>(shape, place, ask, use);
  save_sums(shape, place, plain, parts);
  save_sums(shape, place, along * Channels(pass.inverse_deviations, place.pack), parts + gridDim.x * shape.channels);
}

__global__ void settle_gradients(BatchNormShape shape, BatchNormBackward pass, const float* parts) {
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  const ChannelSums sums(shape, parts, channel);
  if (threadIdx.y == 0 && channel < shape.channels) {
    pass.of_bias[channel] = static_cast<float>(sums.first);
    pass.of_weight[channel] = static_cast<float>(sums.second);
  }
}

/// The residual's gradient, where there is one, is what came through the ReLU, and saves a look at the bits.
template <class T>
__global__ void __launch_bounds__(kThreads, 3) input_gradient(BatchNormShape shape, BatchNormBackward pass) {
  const Place place(shape);
  const Channels mean(pass.means, place.pack), inverse(pass.inverse_deviations, place.pack);
  const Channels scale = inverse * Channels(pass.weight, place.pack);
  const float share = 1.0f / static_cast<float>(shape.rows);
  const Channels plain = share * Channels(pass.of_bias, place.pack);
  const Channels along = share * (inverse * Channels(pass.of_weight, place.pack));
  constexpr int kAtOnce = 2;
  Pack<T> gradient[kAtOnce], values[kAtOnce];
  std::uint8_t bits[kAtOnce];
  const auto ask = [&](int i, std::int64_t row) {
    gradient[i] = load<T>(pass.of_residual != nullptr ? pass.of_residual : pass.of_y, shape, row, place.pack);
    values[i] = load<T>(pass.x, shape, row, place.pack);
    bits[i] = pass.of_residual != nullptr ? std::uint8_t{0xff} : passed(pass.passed, shape, row, place.pack);
  };
  const auto use = [&](int i, std::int64_t row) {
    Pack<T> out;
    for (int k = 0; k < kPack; ++k) {
      const float given = bits[i] >> k & 1 ? wide(gradient[i].at[k]) : 0.0f;
      const float centred = given - plain.at[k] - (wide(values[i].at[k]) - mean.at[k]) * along.at[k];
      store(&out.at[k], centred * scale.at[k]);
    }
    save(pass.of_x, shape, row, place.pack, out);
  };
  walk<kAtOnce>(shape, place, ask, use);
}

std::int64_t lanes_of(const BatchNormShape& shape) {
  return kThreads / std::min<std::int64_t>(shape.channels / kPack, kThreads);
}

/// `blocks` for each chunk of channels.
dim3 row_grid(const BatchNormShape& shape, std::int64_t blocks) {
  const auto packs = shape.channels / kPack;
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>((packs + kThreads - 1) / kThreads));
}

/// For kernels that leave no sums behind: up to twice as many blocks, and no rows that wait for others.
dim3 wide_grid(const BatchNormShape& shape) {
  const auto enough = (shape.rows + lanes_of(shape) - 1) / lanes_of(shape);
  return row_grid(shape, std::min<std::int64_t>(enough, 2 * shape.most_blocks));
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

void choose_batch_norm_blocks(BatchNormShape& shape, int multiprocessors) {
  const auto rows = kRowsOfSums * lanes_of(shape);
  shape.most_blocks = multiprocessors * kBlocksPerMultiprocessor;
  shape.blocks = static_cast<int>(std::min<std::int64_t>((shape.rows + rows - 1) / rows, shape.most_blocks));
}

void launch_batch_norm(const BatchNormShape& shape, const BatchNormForward& pass, float* parts, CUstream_st* stream) {
  const auto grid = row_grid(shape, shape.blocks);
  with_type(shape, [&]<class T>(T) {
    moments<T><<<grid, kThreads, 0, stream>>>(shape, pass.x, parts);
    settle_moments<T><<<channel_grid(shape), dim3(kWarp, kSumRows), 0, stream>>>(shape, pass, parts);
    normalise<T><<<wide_grid(shape), kThreads, 0, stream>>>(shape, pass);
  });
}

void launch_batch_norm_backward(const BatchNormShape& shape, const BatchNormBackward& pass, float* parts,
                                CUstream_st* stream) {
  const auto grid = row_grid(shape, shape.blocks);
  with_type(shape, [&]<class T>(T) {
    gradient_sums<T><<<grid, kThreads, 0, stream>>>(shape, pass, parts);
    settle_gradients<<<channel_grid(shape), dim3(kWarp, kSumRows), 0, stream>>>(shape, pass, parts);
    input_gradient<T><<<wide_grid(shape), kThreads, 0, stream>>>(shape, pass);
  });
}

}  // namespace lockstep::nn
