// SPDX-License-Identifier: Apache-2.0
// A world of one is torch's BatchNorm, bit by bit.
#include <sstream>

#include "lockstep/amp/autocast.h"
#include "nn/nn_testing.h"

namespace lockstep {
namespace {

using test::input_error;
using test::mentions;
using torch::nn::BatchNormOptions;

void expect_bits(const at::Tensor& a, const at::Tensor& b, const char* what) {
  ASSERT_EQ(a.defined(), b.defined()) << what;
  EXPECT_TRUE(!a.defined() || (a.scalar_type() == b.scalar_type() && at::equal(a, b))) << what;
}

template <class BatchNorm>
void expect_like(const BatchNormOptions& options, const at::Tensor& input, bool training) {
  BatchNorm plain(options);
  nn::SyncBatchNorm own(options);
  test::set_affine(*plain, 3);
  test::set_affine(*own, 3);
  plain->train(training);
  own->train(training);
  const auto gradient = test::random(input.sizes(), 8).to(input.scalar_type());
  for (int step = 0; step < 2; ++step) {
    const auto a = test::results_of(*own, input + step, gradient);
    const auto b = test::results_of(*plain, input + step, gradient);
    expect_bits(a.output, b.output, "output");
    expect_bits(a.input_grad, b.input_grad, "input's gradient");
    expect_bits(a.weight_grad, b.weight_grad, "weight's gradient");
    expect_bits(a.bias_grad, b.bias_grad, "bias's gradient");
    expect_bits(a.running_mean, b.running_mean, "running mean");
    expect_bits(a.running_var, b.running_var, "running variance");
    expect_bits(a.batches, b.batches, "batches");
  }
}

TEST(SyncBatchNormAlone, is_batch_norm_bit_by_bit) {
  const std::vector<BatchNormOptions> all{BatchNormOptions(5), BatchNormOptions(5).momentum(std::nullopt),
                                          BatchNormOptions(5).momentum(0.0), BatchNormOptions(5).affine(false),
                                          BatchNormOptions(5).track_running_stats(false).eps(0.1)};
  for (const auto& options : all) {
    for (const bool training : {true, false}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        expect_like<torch::nn::BatchNorm1d>(options, test::random({4, 5}, 1).to(dtype), training);
        expect_like<torch::nn::BatchNorm1d>(options, test::random({4, 5, 3}, 1).to(dtype), training);
        expect_like<torch::nn::BatchNorm2d>(options, test::random({4, 5, 3, 2}, 1).to(dtype), training);
        expect_like<torch::nn::BatchNorm3d>(options, test::random({4, 5, 3, 2, 2}, 1).to(dtype), training);
      }
    }
  }
}

TEST(SyncBatchNormAlone, I5_eval_and_train_need_no_group_and_two_forwards_may_precede_a_backward) {
  nn::SyncBatchNorm norm(3);
  const auto x = test::random({4, 3}, 1).requires_grad_();
  const auto y = test::random({4, 3}, 2).requires_grad_();
  (norm->forward(x) + norm->forward(y)).square().sum().backward();
  EXPECT_TRUE(x.grad().defined() && y.grad().defined());
  norm->eval();
  EXPECT_TRUE(norm->forward(x).defined());
  EXPECT_EQ(norm->world().collectives_issued(), 0U);
}

TEST(SyncBatchNormAlone, a_non_finite_batch_leaves_the_running_statistics_unless_told_otherwise) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    for (const bool skip : {true, false}) {
      nn::SyncBatchNorm norm(nn::SyncBatchNormOptions(2).skip_non_finite(skip));
      norm->forward(test::random({4, 2}, 1));
      const auto mean = norm->running_mean.clone();
      auto x = test::random({4, 2}, 2);
      x[1][1] = bad;
      EXPECT_FALSE(at::isfinite(norm->forward(x)).all().item<bool>());
      EXPECT_EQ(at::equal(mean, norm->running_mean), skip);
      EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), skip ? 1 : 2);
    }
  }
}

TEST(SyncBatchNormAlone, an_empty_batch_changes_nothing) {
  nn::SyncBatchNorm norm(2);
  const auto x = at::zeros({0, 2, 3}).requires_grad_();
  norm->forward(x).sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
  EXPECT_EQ(norm->weight.grad().abs().sum().item<float>(), 0);
  EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 0);
}

TEST(SyncBatchNormAlone, inputs_that_do_not_fit_are_named) {
  nn::SyncBatchNorm norm(3);
  const auto error = [&](const at::Tensor& input) { return input_error([&] { norm->forward(input); }); };
  EXPECT_EQ(error(at::zeros({2, 4})),
            "[nn.SyncBatchNorm] the input of 'SyncBatchNorm' does not fit; got sizes [2, 4], expected (N, 3, ...)");
  EXPECT_TRUE(mentions(error(at::zeros({3})), "got sizes [3]"));
  EXPECT_TRUE(mentions(error({}), "an undefined tensor"));
  EXPECT_TRUE(mentions(error(at::zeros({2, 3}, at::kInt)), "not floating; got Int"));
  EXPECT_TRUE(mentions(error(at::zeros({1, 3})), "one value a channel"));
  EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 0);
  EXPECT_TRUE(mentions(input_error([] { nn::SyncBatchNorm none(0); }), "number of channels is not positive"));
  norm->eval();
  EXPECT_TRUE(norm->forward(at::zeros({1, 3})).defined());
}

TEST(SyncBatchNormAlone, is_a_module_like_any_other) {
  nn::SyncBatchNorm norm(nn::SyncBatchNormOptions(4).momentum(std::nullopt));
  std::ostringstream text;
  text << *norm;
  EXPECT_EQ(text.str(),
            "lockstep::nn::SyncBatchNorm(4, eps=1e-05, momentum=None, affine=true, track_running_stats=true, ranks=1)");
  norm->forward(test::random({3, 4}, 1));
  const auto copy = std::dynamic_pointer_cast<nn::SyncBatchNormImpl>(norm->clone());
  EXPECT_TRUE(at::equal(copy->running_mean, norm->running_mean));
  copy->reset_parameters();
  EXPECT_FALSE(at::equal(copy->running_mean, norm->running_mean));
  EXPECT_EQ(norm->named_parameters().keys(), torch::nn::BatchNorm1d(4)->named_parameters().keys());
  EXPECT_EQ(norm->named_buffers().keys(), torch::nn::BatchNorm1d(4)->named_buffers().keys());
  nn::SyncBatchNorm twin(nn::SyncBatchNormImpl::from(*torch::nn::BatchNorm2d(3)));
  EXPECT_EQ(twin->forward(at::ones({2, 3, 1, 1})).sizes(), (std::vector<std::int64_t>{2, 3, 1, 1}));
}

}  // namespace
}  // namespace lockstep
