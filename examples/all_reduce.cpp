// SPDX-License-Identifier: Apache-2.0
// Each rank brings its number, and each gets the sum.
//
//   $ lockstep run -n 2 all_reduce
//   [0] rank 0 of 2 on cpu: 1 1 1
//   [1] rank 1 of 2 on cpu: 1 1 1
//   [0] RESULT sum=1 ranks=2
#include <ATen/ops/full.h>
#include <lockstep/comm/launch.h>

#include <iostream>
#include <sstream>

int main() {
  return lockstep::run_main([](lockstep::World& world) {
    const auto sum = at::full({3}, world.rank(), at::TensorOptions(world.device()).dtype(at::kFloat));
    world.all_reduce(sum).wait();

    std::ostringstream line;
    line << "rank " << world.rank() << " of " << world.size() << " on " << world.device() << ":";
    for (int i = 0; i < 3; ++i) {
      line << " " << sum[i].item<float>();
    }
    std::cout << line.str() << std::endl;
    world.barrier();
    if (world.rank() == 0) {
      std::cout << "RESULT sum=" << sum[0].item<float>() << " ranks=" << world.size() << std::endl;
    }
  });
}
