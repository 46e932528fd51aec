// SPDX-License-Identifier: Apache-2.0
#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "core/check.h"
#include "lockstep/nn/pooling.h"
#include "nn/fused.h"

namespace lockstep::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using PoolOptions = torch::nn::MaxPool2dOptions;

constexpr std::int64_t kWidestWindow = 15;  // the winner's number is one byte

PoolSizes sizes_of(at::IntArrayRef two) {
  return {.height = static_cast<int>(two[0]), .width = static_cast<int>(two[1])};
}

std::int64_t windows(std::int64_t size, std::int64_t window, std::int64_t stride, std::int64_t padding) {
  return (size + 2 * padding - window) / stride + 1;
}

/// Without the element, which the tensors have.
MaxPoolShape pool_shape(const at::Tensor& x, const PoolOptions& options) {
  MaxPoolShape shape{.images = x.size(0),
                     .channels = x.size(1),
                     .input = sizes_of(x.sizes().slice(2)),
                     .window = sizes_of(*options.kernel_size()),
                     .stride = sizes_of(*options.stride()),
                     .padding = sizes_of(*options.padding())};
  const auto along = [](int size, int window, int stride, int padding) {
    return static_cast<int>(windows(size, window, stride, padding));
  };
  shape.output = {.height = along(shape.input.height, shape.window.height, shape.stride.height, shape.padding.height),
                  .width = along(shape.input.width, shape.window.width, shape.stride.width, shape.padding.width)};
  return shape;
}

class FusedMaxPool : public torch::autograd::Function<FusedMaxPool> {
 public:
  static at::Tensor forward(AutogradContext* context, const Variable& x, const PoolOptions& options) {
    const auto shape = pool_shape(x, options);
    const auto y = at::empty({shape.images, shape.channels, shape.output.height, shape.output.width}, x.options(),
                             at::MemoryFormat::ChannelsLast);
    const auto winners = at::empty({y.numel()}, x.options().dtype(at::kByte));
    max_pool_on_cuda(x, shape, y, winners);
    context->save_for_backward({winners});
    context->saved_data["sizes"] = x.sizes().vec();
    context->saved_data["window"] = at::IntArrayRef(*options.kernel_size()).vec();
    context->saved_data["stride"] = at::IntArrayRef(*options.stride()).vec();
    context->saved_data["padding"] = at::IntArrayRef(*options.padding()).vec();
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    core::check(!at::GradMode::is_enabled(), "nn.MaxPool2d", [] {
      return core::Problem{.what = "the gradient was asked for with a graph of its own (create_graph)",
                           .advice = "for second derivatives use torch::nn::MaxPool2d"};
    });
    const auto saved = [&](const char* name) { return context->saved_data[name].toIntVector(); };
    const auto of_y = packed(gradients[0], at::MemoryFormat::ChannelsLast);
    const auto of_x = at::empty(saved("sizes"), of_y.options(), at::MemoryFormat::ChannelsLast);
    const auto options = PoolOptions(saved("window")).stride(saved("stride")).padding(saved("padding"));
    max_pool_gradient_on_cuda(of_y, pool_shape(of_x, options), context->get_saved_variables()[0], of_x);
    return {of_x, {}};
  }
};

bool input_fits(const at::Tensor& x) {
  const auto dtype = x.scalar_type();
  return x.is_cuda() && (dtype == at::kHalf || dtype == at::kBFloat16) && x.dim() == 4 &&
         x.is_contiguous(at::MemoryFormat::ChannelsLast) && is_aligned(x) && x.size(1) % kPack == 0 && x.numel() > 0 &&
         x.numel() / kPack < std::numeric_limits<std::uint32_t>::max();
}

/// What LibTorch would refuse is left to it.
bool fits(const at::Tensor& x, const PoolOptions& options) {
  if (!input_fits(x) || options.ceil_mode()) {
    return false;
  }
  for (std::size_t i = 0; i < 2; ++i) {
    const auto window = (*options.kernel_size())[i], stride = (*options.stride())[i], padding = (*options.padding())[i];
    const auto size = x.size(static_cast<std::int64_t>(i) + 2);
    if (window < 1 || window > kWidestWindow || stride < 1 || padding < 0 || 2 * padding > window ||
        (*options.dilation())[i] != 1 || size + 2 * padding < window || size > std::numeric_limits<int>::max() / 2) {
      return false;
    }
  }
  return true;
}

}  // namespace

at::Tensor MaxPool2dImpl::forward(const at::Tensor& x) {
  return fits(x, options) ? FusedMaxPool::apply(x, options) : torch::nn::MaxPool2dImpl::forward(x);
}

}  // namespace lockstep::nn
