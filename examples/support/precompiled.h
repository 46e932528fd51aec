// SPDX-License-Identifier: Apache-2.0
// What most examples include, compiled once. torch/torch.h would do too, but takes five times as long.
#pragma once
#include <ATen/ATen.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
