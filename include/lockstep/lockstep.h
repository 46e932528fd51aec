// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/comm/launch.h"
#include "lockstep/comm/world.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/error.h"
#include "lockstep/optim/scaled_step.h"
#include "lockstep/version.h"
