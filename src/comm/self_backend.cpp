// SPDX-License-Identifier: Apache-2.0
// A world of one: what leaves is what arrives.
#include "comm/backend.h"

namespace lockstep::comm {
namespace {

class SelfBackend final : public Backend {
 public:
  BackendKind kind() const override { return BackendKind::Self; }
  bool accepts(c10::Device) const override { return true; }

  Issued all_reduce(const at::Tensor&, const Call&) override { return {}; }
  Issued broadcast(const at::Tensor&, const Call&) override { return {}; }

  Issued all_gather(const at::Tensor& output, const at::Tensor& input, const Call&) override {
    return copy(output, input);
  }

  Issued reduce_scatter(const at::Tensor& output, const at::Tensor& input, const Call&) override {
    return copy(output, input);
  }

  void wake(const std::string&) noexcept override {}

 private:
  static Issued copy(const at::Tensor& output, const at::Tensor& input) {
    if (output.data_ptr() != input.data_ptr()) {
      at::Tensor(output).copy_(input);
    }
    return {};
  }
};

}  // namespace

std::unique_ptr<Backend> make_self_backend() {
  return std::make_unique<SelfBackend>();
}

}  // namespace lockstep::comm
