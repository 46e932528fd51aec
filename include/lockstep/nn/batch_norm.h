// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>

#include "lockstep/comm/world.h"
#include "lockstep/ddp/join.h"
#include "lockstep/export.h"

namespace lockstep::nn {

/// torch::nn::BatchNorm2d that can take the residual's addition and the ReLU after it along:
///
///     y = norm->forward_relu(x);               // relu(batch_norm(x))
///     y = norm->forward_relu(x, residual);     // relu(batch_norm(x) + residual)
///
/// Two passes over memory forward and two backward, summed in fp32 and in a fixed order, so that every run gives the
/// same bits. That is for training on CUDA with channels-last fp16 or bf16 tensors, a number of channels that is a
/// multiple of 8, fp32 weight, bias and running statistics (as O2 keeps them), and a fixed momentum. Elsewhere, in
/// evaluation too, it is LibTorch's own. A second derivative throws InputError where it is fused.
class LOCKSTEP_API BatchNorm2dImpl : public torch::nn::BatchNorm2dImpl {
 public:
  using torch::nn::BatchNorm2dImpl::BatchNorm2dImpl;

  /// `residual` of x's shape, dtype and layout; undefined: none.
  at::Tensor forward_relu(const at::Tensor& x, const at::Tensor& residual = {});
};
TORCH_MODULE(BatchNorm2d);

/// The fields of torch::nn::BatchNormOptions, from which it converts, and what several ranks add.
struct LOCKSTEP_API SyncBatchNormOptions {
  SyncBatchNormOptions(std::int64_t num_features) : num_features_(num_features) {}
  SyncBatchNormOptions(const torch::nn::BatchNormOptions& options);

  /// Channels: dimension 1 of the input.
  TORCH_ARG(std::int64_t, num_features);
  /// Added to the variance.
  TORCH_ARG(double, eps) = 1e-5;
  /// Weight of a batch in the running statistics; none: all batches weigh the same.
  TORCH_ARG(std::optional<double>, momentum) = 0.1;
  /// Learn a weight and a bias for each channel.
  TORCH_ARG(bool, affine) = true;
  /// Keep running statistics, for evaluation. Off: evaluation normalises each rank's batch by its own statistics.
  TORCH_ARG(bool, track_running_stats) = true;
  /// A batch whose statistics hold inf or NaN on any rank leaves the running statistics and their counter as they are
  /// on every rank: a loss scaler leaves out that batch's step, too. Off: as in torch::nn::BatchNorm2d.
  TORCH_ARG(bool, skip_non_finite) = true;
};

/// BatchNorm over the batches of all ranks of a world, for (N, C), (N, C, L), (N, C, H, W) and (N, C, D, H, W), in
/// fp32, fp16, bf16 and double. Statistics are fp32 (double for double input) whatever the input. Ranks may have
/// batches of different sizes, and empty ones. Formulas and numbers: Ioffe and Szegedy 2015; Chan et al. 1983 for the
/// merge.
///
/// In training each forward issues one collective, and each backward that needs the input's gradient another one:
/// also under DistributedDataParallel's `no_sync`. Evaluation, and a world of one, issue none and are plain BatchNorm.
/// All ranks run their SyncBatchNorm modules in the same order. Gradients of weight and bias are this rank's part, to
/// be averaged by DistributedDataParallel as all others.
///
/// Parameters and buffers have BatchNorm's names, so that files of one fit the other.
class LOCKSTEP_API SyncBatchNormImpl : public torch::nn::Cloneable<SyncBatchNormImpl>, public ForwardCollective {
 public:
  /// Give all modules one world that nothing else uses (`world.split(0, world.rank())`), or leave it to
  /// `convert_sync_batch_norm`, which does so: reductions of gradients may then overtake them on some rank.
  explicit SyncBatchNormImpl(const SyncBatchNormOptions& options, const World& world = {});

  /// A module that shares all tensors, options and the training flag with `plain`, a BatchNorm1d, 2d or 3d.
  template <class BatchNorm>
  static std::shared_ptr<SyncBatchNormImpl> from(const BatchNorm& plain, const World& world = {}) {
    auto made = std::make_shared<SyncBatchNormImpl>(
        SyncBatchNormOptions(plain.options), world,
        Tensors{plain.weight, plain.bias, plain.running_mean, plain.running_var, plain.num_batches_tracked});
    made->train(plain.is_training());
    return made;
  }

  void reset() override;
  void reset_running_stats();
  void reset_parameters();
  void pretty_print(std::ostream& stream) const override;

  /// `input`: (N, C, ...), floating, on the device of the parameters. The result has its shape, dtype and memory
  /// format. Throws InputError for other inputs, before anything is sent or changed, and, on every rank, where all
  /// ranks together have one value a channel in training. WorldError: another rank failed, or runs other modules.
  at::Tensor forward(const at::Tensor& input);

  /// In training, in a world of several.
  bool communicates_in_forward() const override { return is_training() && world_.size() > 1; }

  const World& world() const { return world_; }
  /// `name` is shown in errors, and compared: modules of different names are never paired.
  void set_world(const World& world, const std::string& name = {});

  SyncBatchNormOptions options;
  at::Tensor weight;               ///< (C), undefined without `affine`
  at::Tensor bias;                 ///< (C), undefined without `affine`
  at::Tensor running_mean;         ///< (C), undefined without `track_running_stats`, as the next two
  at::Tensor running_var;          ///< (C), unbiased
  at::Tensor num_batches_tracked;  ///< one integer

  /// Used by `from`.
  struct Tensors {
    at::Tensor weight, bias, running_mean, running_var, num_batches_tracked;
  };
  SyncBatchNormImpl(const SyncBatchNormOptions& options, const World& world, const Tensors& tensors);

 private:
  void check_input(const at::Tensor& input) const;
  void register_tensors(const Tensors& tensors);
  at::Tensor forward_alone(const at::Tensor& input);
  at::Tensor forward_together(const at::Tensor& input);
  at::Tensor plain(const at::Tensor& input, const at::Tensor& mean, const at::Tensor& var, bool training,
                   double factor) const;

  World world_;
  std::string name_;
};

TORCH_MODULE(SyncBatchNorm);

/// What `convert_sync_batch_norm` may be told.
struct ConvertOptions {
  /// See SyncBatchNormOptions.
  bool skip_non_finite = true;
};

/// Puts a SyncBatchNorm of `world` in the place of every BatchNorm1d, 2d and 3d below `module`, and gives `world` to
/// every SyncBatchNorm that is there already. Returns how many modules that were. Parameters and buffers stay the very
/// tensors they are, so that optimizers keep them; options and training flags stay, too.
///
/// C++ cannot rebind a member such as `torch::nn::BatchNorm2d norm`, which would go on with the plain module. So a
/// BatchNorm that anything but its parent's registry and a Sequential, ModuleList or ModuleDict refers to is an error.
/// Declare such members as `lockstep::nn::SyncBatchNorm` (BatchNorm until it is given a world), or as a Sequential.
///
/// Collective: every rank calls it on the same model, before it is wrapped in DistributedDataParallel. The modules get
/// a group of their own. Throws InputError, the same on every rank and with nothing changed, for members as above,
/// for classes derived from BatchNorm, where `module` is a BatchNorm itself, and where the ranks' models differ.
LOCKSTEP_API int convert_sync_batch_norm(torch::nn::Module& module, const World& world,
                                         const ConvertOptions& options = {});

/// The same for a holder, such as torch::nn::Sequential.
template <class Holder>
int convert_sync_batch_norm(const Holder& holder, const World& world,
                            const ConvertOptions& options = {}) requires requires {
  static_cast<torch::nn::Module&>(*holder.ptr());
}
{ return convert_sync_batch_norm(static_cast<torch::nn::Module&>(*holder.ptr()), world, options); }

}  // namespace lockstep::nn
