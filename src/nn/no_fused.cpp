// SPDX-License-Identifier: Apache-2.0
// Stands in for the fused passes in a build without CUDA, which has no tensor to call them with.
#include "core/check.h"
#include "nn/fused.h"

namespace lockstep::nn {
namespace {

[[noreturn]] void refuse_fused() {
  core::fail("nn.fused",
             {.what = "tensors lie on CUDA, and this build has no CUDA", .advice = "build with -DLOCKSTEP_CUDA=ON"});
}

}  // namespace

void row_losses_on_cuda(const at::Tensor&, const at::Tensor&, const LossOptions&, const at::Tensor&,
                        const at::Tensor&) {
  refuse_fused();
}

void row_gradients_on_cuda(const at::Tensor&, const at::Tensor&, const LossOptions&, const at::Tensor&,
                           const at::Tensor&, const at::Tensor&) {
  refuse_fused();
}

void add_norm_on_cuda(const NormInputs&, double, const NormOutputs&) {
  refuse_fused();
}

void norm_gradients_on_cuda(const NormSaved&, const NormGradients&) {
  refuse_fused();
}

void bias_gradient_on_cuda(const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Tensor&) {
  refuse_fused();
}

void batch_norm_on_cuda(const NormInputs&, const RunningStatistics&, double, const BatchNormOutputs&) {
  refuse_fused();
}

void batch_norm_gradients_on_cuda(const BatchNormSaved&, const BatchNormGradients&) {
  refuse_fused();
}

void max_pool_on_cuda(const at::Tensor&, const MaxPoolShape&, const at::Tensor&, const at::Tensor&) {
  refuse_fused();
}

void max_pool_gradient_on_cuda(const at::Tensor&, const MaxPoolShape&, const at::Tensor&, const at::Tensor&) {
  refuse_fused();
}

}  // namespace lockstep::nn
