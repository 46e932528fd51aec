// SPDX-License-Identifier: Apache-2.0
// Averages the rank numbers of three ranks that live as threads of this process. Prints:
//
//   the mean of 3 ranks is 1
#include <ATen/ops/full.h>
#include <lockstep/comm/launch.h>
#include <lockstep/comm/world.h>

#include <iostream>

int main() {
  lockstep::run_ranks(3, [](lockstep::World& world) {
    auto mean = at::full({1}, static_cast<double>(world.rank()));
    world.all_reduce(mean, lockstep::ReduceOp::Average).wait();
    if (world.rank() == 0) {
      std::cout << "the mean of " << world.size() << " ranks is " << mean.item<double>() << '\n';
    }
  });
}
