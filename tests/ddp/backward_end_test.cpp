// SPDX-License-Identifier: Apache-2.0
#include "ddp/backward_end.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/variable.h>

#include "support/checkpoint_function.h"
#include "support/models.h"

namespace lockstep::ddp {
namespace {

namespace ag = torch::autograd;

class Recorder : public BackwardListener {
 public:
  void backward_done() override {
    ++done;
    armed = false;
    if (throw_at_end) {
      throw std::runtime_error("end");
    }
  }
  void backward_failed() noexcept override {
    ++failed;
    armed = false;
  }
  int fires = 0;
  int done = 0;
  int failed = 0;
  int fires_at_done = 0;
  bool armed = false;
  bool throw_at_end = false;
};

class Hook : public ag::PostAccumulateGradHook {
 public:
  explicit Hook(std::shared_ptr<Recorder> recorder) : recorder_(std::move(recorder)) {}
  void operator()(const at::Tensor& /*tensor*/) override {
    ++recorder_->fires;
    if (!recorder_->armed) {
      recorder_->armed = true;
      notify_at_end_of_backward(recorder_);
    }
  }

 private:
  std::shared_ptr<Recorder> recorder_;
};

struct Throwing : ag::Function<Throwing> {
  static at::Tensor forward(ag::AutogradContext* /*context*/, const at::Tensor& x) { return x.clone(); }
  static ag::variable_list backward(ag::AutogradContext* /*context*/, ag::variable_list /*gradients*/) {
    throw std::runtime_error("from a backward");
  }
};

struct BackwardEnd : testing::Test {
  std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
  at::Tensor w = at::ones({3}).requires_grad_();
  at::Tensor v = at::ones({3}).requires_grad_();
  BackwardEnd() {
    for (const auto& p : {w, v}) {
      ag::impl::set_post_acc_grad_hooks(p, std::make_unique<Hook>(recorder));
    }
  }
};

TEST_F(BackwardEnd, is_told_once_per_backward) {
  for (int i = 1; i <= 3; ++i) {
    (w * v).sum().backward();
    EXPECT_EQ(recorder->done, i);
  }
  EXPECT_EQ(recorder->failed, 0);
}

TEST_F(BackwardEnd, comes_after_the_last_gradient_of_nested_passes) {
  for (int depth = 1; depth <= 3; ++depth) {
    recorder->fires = 0;
    test::Segment segment = [&](const at::Tensor& x) { return x * w; };
    for (int d = 1; d < depth; ++d) {
      segment = [inner = segment](const at::Tensor& x) { return test::checkpoint(x, inner); };
    }
    const auto x = at::ones({3}).requires_grad_();
    (test::checkpoint(test::checkpoint(x, segment), segment) * v).sum().backward();
    EXPECT_EQ(recorder->done, depth);
    EXPECT_EQ(recorder->fires, 3) << "w twice, v once";
  }
}

TEST_F(BackwardEnd, a_failed_pass_is_told_too_and_the_next_is_right) {
  EXPECT_THROW((Throwing::apply(w * 1) + v).sum().backward(), std::runtime_error);
  EXPECT_EQ(recorder->done, 0);
  EXPECT_EQ(recorder->failed, recorder->fires > 0 ? 1 : 0);
  (w * v).sum().backward();
  EXPECT_EQ(recorder->done, 1);
}

TEST_F(BackwardEnd, a_failed_inner_pass_is_a_failed_pass) {
  const test::Segment segment = [&](const at::Tensor& x) { return Throwing::apply(x * 1) + w; };
  const auto x = at::ones({3}).requires_grad_();
  EXPECT_THROW((test::checkpoint(x, segment) * v).sum().backward(), std::runtime_error);
  EXPECT_EQ(recorder->done, 0);
  EXPECT_FALSE(recorder->armed);
  (w * v).sum().backward();
  EXPECT_EQ(recorder->done, 1);
}

TEST_F(BackwardEnd, what_the_listener_throws_reaches_the_caller) {
  recorder->throw_at_end = true;
  EXPECT_THROW((w * v).sum().backward(), std::runtime_error);
  EXPECT_EQ(recorder->failed, 0);
}

TEST_F(BackwardEnd, a_listener_that_is_gone_is_not_called) {
  const std::weak_ptr<Recorder> gone = std::make_shared<Recorder>();
  struct Arms : ag::PostAccumulateGradHook {
    std::weak_ptr<Recorder> listener;
    void operator()(const at::Tensor& /*tensor*/) override { notify_at_end_of_backward(listener); }
  };
  auto arms = std::make_unique<Arms>();
  arms->listener = gone;
  const auto u = at::ones({3}).requires_grad_();
  ag::impl::set_post_acc_grad_hooks(u, std::move(arms));
  EXPECT_NO_THROW(u.sum().backward());
}

}  // namespace
}  // namespace lockstep::ddp
