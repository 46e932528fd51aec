// SPDX-License-Identifier: Apache-2.0
// Lockstep's side of the benchmark: one workload, timed when it is told to, so that rivals can take turns.
//
//   bench_worker --workload gpt2 --batch 16 --mode eager|captured --weights FILE
//   bench_worker --workload gpt2 --batch 16 --mode eager --profile 5     which kernels a step takes, and how long
//
// With torchrun's variables it is one rank of several.
// Prints a JSON line when it is ready, and one for each line it reads: "run N" times N optimizer steps; "quit" ends it.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "support/profile.h"
#include "support/workload.h"

namespace {

using lockstep::bench::Case;
using lockstep::bench::Workload;
using nlohmann::json;

void synchronize(c10::Device device) {
  if (!device.is_cpu()) {
    at::accelerator::synchronizeDevice(device.index());
  }
}

json timed(Workload& work, int steps) {
  const auto device = work.device();
  synchronize(device);
  const auto begin = std::chrono::steady_clock::now();
  at::Tensor loss;
  for (int i = 0; i < steps; ++i) {
    loss = work.step();
  }
  synchronize(device);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  json answer{{"seconds", took.count()}, {"loss", loss.item<double>()}, {"what", work.describe()["what"]}};
  if (!device.is_cpu()) {
    answer["peak_bytes"] = at::accelerator::getDeviceStats(device.index()).allocated_bytes[0].peak;
  }
  return answer;
}

void serve(Workload& work) {
  std::string command;
  while (std::cin >> command && command != "quit") {
    int steps = 0;
    std::cin >> steps;
    std::cout << timed(work, steps) << std::endl;
  }
}

void profile(Workload& work, const Case& wanted) {
  constexpr int kWarmUp = 10;
  timed(work, kWarmUp);
  std::cout << lockstep::bench::kernel_table(wanted.profile, [&] { work.step(); });
}

Case parse(CLI::App& app, int argc, char** argv) {
  Case wanted;
  app.add_option("--workload", wanted.workload);
  app.add_option("--batch", wanted.batch);
  app.add_option("--accumulate", wanted.accumulate);
  app.add_option("--mode", wanted.mode)->check(CLI::IsMember({"eager", "captured"}));
  app.add_option("--device", wanted.device);
  app.add_option("--weights", wanted.weights);
  app.add_option("--profile", wanted.profile);
  app.parse(argc, argv);
  return wanted;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("One workload of the benchmark");
  try {
    const auto wanted = parse(app, argc, argv);
    at::globalContext().setBenchmarkCuDNN(true);
    const auto work =
        wanted.workload == "tail" ? lockstep::bench::make_tail(wanted) : lockstep::bench::make_training(wanted);
    if (wanted.profile > 0) {
      profile(*work, wanted);
      return 0;
    }
    auto ready = work->describe();
    ready["ready"] = true;
    ready["torch"] = TORCH_VERSION;
    std::cout << ready << std::endl;
    serve(*work);
    return 0;
  } catch (const CLI::Error& error) {
    return app.exit(error);
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
