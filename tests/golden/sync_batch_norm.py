# SPDX-License-Identifier: Apache-2.0
"""Writes sync_batch_norm.txt: three training steps and one evaluation of torch.nn.BatchNorm on the whole batch, which
torch.nn.SyncBatchNorm (CUDA only) equals on all ranks together.

    python tests/golden/sync_batch_norm.py > tests/golden/sync_batch_norm.txt      (pip install torch==2.11.0)
One line a tensor: case/tensor, then values. Inputs are made by formula, here and in the test alike.
"""
import torch

SHAPES = {"1d": (5, 3), "1d_long": (5, 3, 2), "2d": (5, 3, 2, 1), "3d": (5, 3, 1, 2, 1)}
OPTIONS = {
    "default": {},
    "cumulative": {"momentum": None},
    "frozen": {"momentum": 0.0},
    "fast": {"momentum": 0.7, "eps": 0.25},
    "no_affine": {"affine": False},
    "no_tracking": {"track_running_stats": False},
}
KINDS = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}


def values(shape, shift):
    i = torch.arange(torch.Size(shape).numel(), dtype=torch.double)
    return (torch.sin(0.7 * i + shift) * 2 + (i % 7 - 3) * 0.25).view(shape)


def show(case, name, tensor):
    if tensor is not None:
        print(f"{case}/{name}", *(repr(v) for v in tensor.detach().double().flatten().tolist()))


def run(case, shape, options):
    module = KINDS[len(shape)](3, **options).double()
    if module.affine:
        with torch.no_grad():
            module.weight.copy_(torch.tensor([0.5, 0.75, 1.0]))
            module.bias.copy_(torch.tensor([-0.25, 0.0, 0.25]))
    for step in range(3):
        x = values(shape, step).requires_grad_()
        y = module(x)
        y.backward(values(shape, 10 + step))
    show(case, "output", y)
    show(case, "input_grad", x.grad)
    if module.affine:
        show(case, "weight_grad", module.weight.grad)
        show(case, "bias_grad", module.bias.grad)
    show(case, "running_mean", module.running_mean)
    show(case, "running_var", module.running_var)
    show(case, "num_batches_tracked", module.num_batches_tracked)
    if module.track_running_stats:
        show(case, "evaluated", module.eval()(values(shape, 20)))


for shape_name, shape in SHAPES.items():
    for option_name, options in OPTIONS.items():
        run(f"{shape_name}_{option_name}", shape, options)
