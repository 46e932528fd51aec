// SPDX-License-Identifier: Apache-2.0
// Norms and scaling on the host. Sums are made in double precision, block by block in a fixed order, so that the result
// depends neither on the number of threads nor on where they part.
#include "optim/norm.h"

#include "optim/cpu_loops.h"

namespace lockstep::optim {
namespace {

constexpr std::int64_t kBlock = 4096;
constexpr std::int64_t kLanes = 16;

template <class T, Norm kNorm>
[[gnu::always_inline]] inline double power_of(const typename Memory<T>::Cell* __restrict data, std::int64_t count) {
  double lanes[kLanes] = {};
  const std::int64_t whole = count / kLanes * kLanes;
  for (std::int64_t i = 0; i < whole; i += kLanes) {
    for (std::int64_t lane = 0; lane < kLanes; ++lane) {
      const double x = Memory<T>::load(data[i + lane]);
      lanes[lane] = Power<kNorm>::join(lanes[lane], Power<kNorm>::of(x));
    }
  }
  double sum = 0;
  for (std::int64_t i = whole; i < count; ++i) {
    sum = Power<kNorm>::join(sum, Power<kNorm>::of(static_cast<double>(Memory<T>::load(data[i]))));
  }
  for (const double lane : lanes) {
    sum = Power<kNorm>::join(sum, lane);
  }
  return sum;
}

template <Norm kNorm>
double power_of_block(const GradSpan& span, std::int64_t begin) {
  const auto count = std::min(kBlock, span.count - begin);
  double power = 0;
  with_kind(span.kind, [&]<class T>() {
    const auto* data = static_cast<const typename Memory<T>::Cell*>(span.data) + begin;
    core::wide([&]() __attribute__((always_inline)) { power = power_of<T, kNorm>(data, count); });
  });
  return power;
}

/// Where each block of a list of spans begins.
struct Block {
  std::size_t span;
  std::int64_t begin;
};

std::vector<Block> blocks_of(const std::vector<GradSpan>& spans) {
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    for (std::int64_t begin = 0; begin < spans[i].count; begin += kBlock) {
      blocks.push_back({i, begin});
    }
  }
  return blocks;
}

template <Norm kNorm>
double power_of_all(const std::vector<GradSpan>& spans) {
  const auto blocks = blocks_of(spans);
  std::vector<double> parts(blocks.size());
  at::parallel_for(0, static_cast<std::int64_t>(blocks.size()), kGrain / kBlock, [&](auto begin, auto end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      parts[i] = power_of_block<kNorm>(spans[blocks[i].span], blocks[i].begin);
    }
  });
  double power = 0;
  for (const double part : parts) {
    power = Power<kNorm>::join(power, part);
  }
  return power;
}

}  // namespace

double power_on_cpu(const std::vector<GradSpan>& spans, Norm norm) {
  switch (norm) {
    case Norm::one:
      return power_of_all<Norm::one>(spans);
    case Norm::two:
      return power_of_all<Norm::two>(spans);
    case Norm::inf:
      return power_of_all<Norm::inf>(spans);
  }
  return 0;
}

void scale_on_cpu(const std::vector<GradSpan>& spans, const float* factor) {
  if (*factor == 1.0f) {
    return;
  }
  share_out(spans, [&](const GradSpan& span, std::int64_t begin, std::int64_t end) {
    with_kind(span.kind, [&]<class T>() {
      auto* __restrict data = static_cast<typename Memory<T>::Cell*>(span.data);
      const auto by = static_cast<decltype(Memory<T>::load(*data))>(*factor);
      core::wide([&]() __attribute__((always_inline)) {
        for (std::int64_t i = begin; i < end; ++i) {
          data[i] = Memory<T>::store(Memory<T>::load(data[i]) * by);
        }
      });
    });
  });
}

}  // namespace lockstep::optim
