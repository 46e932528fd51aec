# SPDX-License-Identifier: Apache-2.0
"""Writes optimizer_checkpoints.txt: what Python's optimizers hold after 5 steps, and where 5 more steps end.

    python tests/golden/optimizer_checkpoints.py > tests/golden/optimizer_checkpoints.txt      (torch 2.11)
One line an array: run, key of the optimizer's state_dict (or "parameters", or "end" for the parameters after 10 steps),
values. Elements and gradients are those of optimizers.py.
"""
import math

import torch

ELEMENTS, STEPS = 7, 5
RUNS = {
    "adam": (torch.optim.Adam, dict(lr=0.1, weight_decay=0.1)),
    "adam_amsgrad": (torch.optim.Adam, dict(lr=0.1, amsgrad=True)),
    "adamw": (torch.optim.AdamW, dict(lr=0.1, weight_decay=0.2)),
    "sgd": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.5)),
}


def steps(optimizer, w, first):
    for t in range(first, first + STEPS):
        g = [math.cos((i + 1) * (t + 1)) * 10.0 ** (i - 3) for i in range(ELEMENTS)]
        w.grad = torch.tensor(g, dtype=torch.float64).float()
        optimizer.step()


def row(*words, values):
    print(*words, *(repr(v) for v in values.flatten().tolist()))


for name, (make, options) in RUNS.items():
    w = torch.tensor([math.sin(i + 1) for i in range(ELEMENTS)], dtype=torch.float64).float().requires_grad_()
    optimizer = make([w], foreach=False, fused=False, **options)
    steps(optimizer, w, 0)
    row(name, "parameters", values=w.detach())
    for key, value in optimizer.state_dict()["state"][0].items():
        row(name, key, values=torch.as_tensor(value))
    steps(optimizer, w, STEPS)
    row(name, "end", values=w.detach())
