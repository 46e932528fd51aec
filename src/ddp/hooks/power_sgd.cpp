// SPDX-License-Identifier: Apache-2.0
// PowerSGD: rank-r compression with error feedback. Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank
// Gradient Compression for Distributed Optimization", NeurIPS 2019, algorithm 1 and 2. A gradient M (n x m) is sent as
// P = M Q (n x r), orthogonalised after the sum, and Q = M^T P (m x r), so that M is about P Q^T.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <map>
#include <memory>

#include "core/check.h"
#include "lockstep/ddp/comm_hook.h"

namespace lockstep {
namespace {

struct Factors {
  at::Tensor matrix = {};  // n x m view of one gradient
  at::Tensor sent = {};    // what this rank wanted to send: the gradient and what earlier steps left out
  at::Tensor p = {};
  at::Tensor q = {};
  at::Tensor first_q = {};  // as it was before this step
};

/// What a bucket carries from one step to the next, one entry for each compressed gradient.
struct Memory {
  std::vector<at::Tensor> q;
  std::vector<at::Tensor> error;
};

/// The gradient's memory as rows. REQUIRES: its first dimension has the largest stride.
at::Tensor as_matrix(const at::Tensor& gradient) {
  const auto columns = gradient.numel() / gradient.size(0);
  return gradient.as_strided({gradient.size(0), columns}, {columns, 1});
}

/// One message out of several tensors, and back.
at::Tensor pack(const std::vector<at::Tensor>& parts) {
  std::vector<at::Tensor> flat;
  for (const auto& part : parts) {
    flat.push_back(part.reshape({-1}));
  }
  return at::cat(flat);
}

void unpack(const at::Tensor& message, const std::vector<at::Tensor>& parts) {
  std::int64_t offset = 0;
  for (const auto& part : parts) {
    part.copy_(message.narrow(0, offset, part.numel()).view(part.sizes()));
    offset += part.numel();
  }
}

class PowerSgd : public std::enable_shared_from_this<PowerSgd> {
 public:
  PowerSgd(const World& world, const PowerSgdOptions& options)
      : world_(world), options_(options), plain_(all_reduce_hook(world)) {}

  std::function<void()> start(const GradientBucket& bucket) {
    if (bucket.step < options_.start_step || !bucket.buffer.is_floating_point()) {
      return plain_(bucket);
    }
    const c10::NoGradGuard no_grad;
    auto pending = std::make_shared<Pending>(split(bucket));
    add_error(bucket, *pending);
    begin_factors(bucket, *pending);
    return [self = shared_from_this(), bucket, pending] { self->finish(bucket, *pending); };
  }

 private:
  struct Pending {
    std::vector<Factors> compressed;
    std::vector<at::Tensor> plain;
    at::Tensor plain_message;
    at::Tensor p_message;
    Work plain_work;
    Work p_work;
  };

  Pending split(const GradientBucket& bucket) const {
    Pending pending;
    for (const auto& gradient : bucket.gradients) {
      if (worth_it(gradient)) {
        pending.compressed.push_back({.matrix = as_matrix(gradient)});
      } else {
        pending.plain.push_back(gradient);
      }
    }
    return pending;
  }

  bool worth_it(const at::Tensor& gradient) const {
    if (gradient.dim() < 2 || gradient.numel() == 0) {
      return false;
    }
    const auto n = gradient.size(0);
    const auto m = gradient.numel() / n;
    return gradient.stride(0) == m &&
           static_cast<double>((n + m) * options_.matrix_approximation_rank) * options_.min_compression_rate <
               static_cast<double>(n * m);
  }

  void add_error(const GradientBucket& bucket, Pending& pending) {
    auto& memory = memory_[bucket.index];
    memory.q.resize(pending.compressed.size());
    memory.error.resize(pending.compressed.size());
    for (std::size_t i = 0; options_.use_error_feedback && i < pending.compressed.size(); ++i) {
      auto& factors = pending.compressed[i];
      if (memory.error[i].defined()) {
        factors.matrix.add_(memory.error[i]);
      }
      factors.sent = factors.matrix.clone();
    }
  }

  at::Tensor first_q(const at::Tensor& matrix, std::uint64_t seed) const {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    const auto q = at::randn({matrix.size(1), options_.matrix_approximation_rank}, generator);
    return q.to(matrix.options());
  }

  void begin_factors(const GradientBucket& bucket, Pending& pending) {
    const auto& kept = memory_[bucket.index].q;
    std::vector<at::Tensor> ps;
    for (std::size_t i = 0; i < pending.compressed.size(); ++i) {
      auto& factors = pending.compressed[i];
      const bool reuse = options_.warm_start && kept[i].defined();
      const auto seed = options_.seed + bucket.tag * 1009ULL + i;
      factors.q = reuse ? kept[i] : first_q(factors.matrix, seed);
      orthogonalise(factors.q);
      factors.first_q = factors.q;
      factors.p = at::matmul(factors.matrix, factors.q);
      ps.push_back(factors.p);
    }
    pending.plain_message = reduce(pending.plain, "plain gradients", bucket.tag, pending.plain_work);
    pending.p_message = reduce(ps, "PowerSGD P", bucket.tag, pending.p_work);
  }

  at::Tensor reduce(const std::vector<at::Tensor>& parts, const char* name, std::uint32_t tag, Work& work) const {
    if (parts.empty()) {
      return {};
    }
    auto message = pack(parts);
    work = world_.all_reduce(message, ReduceOp::Sum, {name, tag});
    return message;
  }

  void orthogonalise(at::Tensor& factor) const {
    const auto wide = factor.to(factor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
    factor = std::get<0>(at::linalg_qr(wide + options_.orthogonalization_epsilon)).to(factor.scalar_type());
  }

  void finish(const GradientBucket& bucket, Pending& pending) {
    const c10::NoGradGuard no_grad;
    if (pending.plain_message.defined()) {
      pending.plain_work.wait();
      unpack(pending.plain_message.mul_(bucket.remaining_factor), pending.plain);
    }
    if (!pending.compressed.empty()) {
      finish_compressed(bucket, pending);
    }
  }

  void finish_compressed(const GradientBucket& bucket, Pending& pending) {
    std::vector<at::Tensor> ps;
    std::vector<at::Tensor> qs;
    for (const auto& factors : pending.compressed) {
      ps.push_back(factors.p);
    }
    pending.p_work.wait();
    unpack(pending.p_message, ps);
    for (auto& factors : pending.compressed) {
      orthogonalise(factors.p);
      factors.q = at::matmul(factors.matrix.t(), factors.p);
      qs.push_back(factors.q);
    }
    Work work;
    const auto message = reduce(qs, "PowerSGD Q", bucket.tag, work);
    work.wait();
    unpack(message.mul_(bucket.remaining_factor), qs);
    for (std::size_t i = 0; i < pending.compressed.size(); ++i) {
      auto& factors = pending.compressed[i];
      factors.matrix.copy_(at::matmul(factors.p, factors.q.t()));
      remember(bucket, i, factors);
    }
  }

  /// Infinities and NaN, which every rank sees in the summed factor, must not stay: such a step leaves what earlier
  /// ones remembered. Nothing is read on the host.
  void remember(const GradientBucket& bucket, std::size_t index, const Factors& factors) {
    auto& memory = memory_[bucket.index];
    const auto finite = at::isfinite(factors.q).all();
    memory.q[index] = at::where(finite, factors.q, factors.first_q);
    if (options_.use_error_feedback) {
      auto& error = memory.error[index];
      // The bucket holds gradients divided by the pre-divide factor; the result is the average, undivided.
      const auto left_out = factors.sent - factors.matrix / (bucket.remaining_factor * world_.size());
      error = at::where(finite, left_out, error.defined() ? error : at::zeros_like(left_out));
    }
  }

  World world_;
  PowerSgdOptions options_;
  CommHook plain_;
  std::map<int, Memory> memory_;  // per bucket
};

void check(const PowerSgdOptions& options) {
  core::check(options.matrix_approximation_rank > 0 && options.min_compression_rate > 0, "ddp.power_sgd_hook", [&] {
    return core::Problem{"rank and compression rate must be positive",
                         core::str(options.matrix_approximation_rank, " and ", options.min_compression_rate)};
  });
}

}  // namespace

CommHook power_sgd_hook(const World& world, const PowerSgdOptions& options) {
  check(options);
  return [state = std::make_shared<PowerSgd>(world, options)](const GradientBucket& bucket) {
    return state->start(bucket);
  };
}

}  // namespace lockstep
