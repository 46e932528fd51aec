# SPDX-License-Identifier: Apache-2.0
"""Writes optimizers.txt: parameters after 20 steps of torch.optim's Adam, AdamW and SGD, single-tensor form.

    python tests/golden/optimizers.py > tests/golden/optimizers.txt      (torch 2.11)
One line a run: name, then the parameters. Element i starts at sin(i + 1); its gradient in step t (from 0) is
cos((i + 1) (t + 1)) 10^(i - 3): both computed in double precision and rounded to fp32.
"""
import math

import torch

ELEMENTS, STEPS = 7, 20
RUNS = {
    "adam": (torch.optim.Adam, dict(lr=0.1)),
    "adam_decay_amsgrad": (torch.optim.Adam, dict(lr=0.1, weight_decay=0.1, amsgrad=True)),
    "adam_maximize": (torch.optim.Adam, dict(lr=0.1, betas=(0.8, 0.9), eps=1e-3, maximize=True)),
    "adamw": (torch.optim.AdamW, dict(lr=0.1)),
    "adamw_decay_amsgrad": (torch.optim.AdamW, dict(lr=0.1, weight_decay=0.2, amsgrad=True, eps=1e-6)),
    "sgd": (torch.optim.SGD, dict(lr=0.1)),
    "sgd_momentum": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.1)),
    "sgd_nesterov": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True, maximize=True)),
}


def run(make, options):
    w = torch.tensor([math.sin(i + 1) for i in range(ELEMENTS)], dtype=torch.float64).float().requires_grad_()
    optimizer = make([w], foreach=False, fused=False, **options)
    for t in range(STEPS):
        g = [math.cos((i + 1) * (t + 1)) * 10.0 ** (i - 3) for i in range(ELEMENTS)]
        w.grad = torch.tensor(g, dtype=torch.float64).float()
        optimizer.step()
    return w.detach().tolist()


for name, (make, options) in RUNS.items():
    print(name, *(repr(v) for v in run(make, options)))
