// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/torch.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/amp/grad_scaler.h"
#include "lockstep/amp/nested.h"
#include "lockstep/amp/opt_level.h"
#include "lockstep/comm/launch.h"
#include "lockstep/comm/world.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/ddp/comm_hook.h"
#include "lockstep/ddp/data_parallel.h"
#include "lockstep/ddp/forward_collective.h"
#include "lockstep/ddp/join.h"
#include "lockstep/error.h"
#include "lockstep/export.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/optim/adam.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/fused.h"
#include "lockstep/optim/lamb.h"
#include "lockstep/optim/lr_schedule.h"
#include "lockstep/optim/scaled_step.h"
#include "lockstep/optim/sgd.h"
#include "lockstep/step/train_step.h"
#include "lockstep/version.h"
