#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes what Python's DistributedDataParallel does on two CPU ranks to data_parallel.txt beside this script.

    pip install torch==2.11.0
    OMP_NUM_THREADS=1 python3 tests/golden/data_parallel.py

A line per case and step: case, step, loss of rank 0, loss of rank 1, then all parameters (and, for batch_norm, rank 0's
running mean and variance) after the optimizer's step. Parameters are the same on both ranks, which is checked here.
The file is committed; tests/ddp/golden_test.cpp trains the same models from the same seeds.
"""
import functools
import pathlib
import tempfile
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
STEPS = 5
PER_RANK = 4
OUTPUT = pathlib.Path(__file__).parent / "data_parallel.txt"

# Absolute, for values of magnitude one. fp32 sums in another order differ by a few 2^-24 a step; Adam divides by a
# root, which passes the relative error of small gradients on, times its learning rate of 0.05. A 16-bit wire may round
# one unit the other way (2^-11 for half, 2^-8 for bfloat16) where sums before it differ: times lr 0.1, times 5 steps.
TOLERANCE = {
    "sgd": 2e-6, "adam": 1e-5, "unused": 2e-6, "no_sync": 2e-6, "fp16_hook": 2.5e-4, "bf16_hook": 2e-3, "tied": 2e-6,
    "batch_norm": 1e-5,
}


def random(sizes, seed):
    return torch.randn(sizes, generator=torch.Generator().manual_seed(seed))


def fill_parameters(module, seed):
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_(random(p.shape, seed * 1000 + i) * 0.3)
    return module


def share(joined, rank):
    return joined[rank * PER_RANK : (rank + 1) * PER_RANK]


def mlp(seed):
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1))
    return fill_parameters(net, seed)


class Branches(nn.Module):
    """Takes one of its branches, none, or both."""

    def __init__(self):
        super().__init__()
        self.always, self.a, self.b = nn.Linear(2, 1), nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x, use_a, use_b):
        y = self.always(x)
        y = y + self.a(x) if use_a else y
        return y + self.b(x) if use_b else y


class Tied(nn.Module):
    """Words in, scores of all words out, through one matrix."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.hidden = nn.Linear(3, 3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.table.weight

    def forward(self, words):
        return self.out(torch.tanh(self.hidden(self.table(words))))


def regression_loss(forward, step, rank):
    x = share(random((RANKS * PER_RANK, 2), 500 + step), rank)
    y = share(random((RANKS * PER_RANK, 1), 600 + step), rank)
    return (forward(x) - y).square().mean()


def tied_loss(ddp, step, rank):
    words = share((torch.arange(RANKS * PER_RANK) * (step + 2)) % 5, rank)
    return F.log_softmax(ddp(words), 1).square().mean()


def unused_loss(ddp, step, rank):
    """Branch a: rank 0 only, every second step. Branch b: both ranks, steps 0 and 3 only."""
    return regression_loss(lambda x: ddp(x, rank == 0 and step % 2 == 0, step % 3 == 0), step, rank)


def train(name, module, rank, make_optimizer, loss_of, window=1, hook=None, **options):
    ddp = DistributedDataParallel(module, **options)
    if hook:
        ddp.register_comm_hook(None, hook)
    optimizer = make_optimizer(module.parameters())
    rows = []
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = 0.0
        for micro in range(window):
            with ddp.no_sync() if micro + 1 < window else nullcontext():
                part = loss_of(ddp, step * window + micro, rank) / window
                part.backward()
            loss += part.item()
        optimizer.step()
        losses = [None] * RANKS
        dist.all_gather_object(losses, loss)
        values = torch.cat([p.detach().flatten() for p in module.parameters()])
        everywhere = [torch.empty_like(values) for _ in range(RANKS)]
        dist.all_gather(everywhere, values)
        assert all(torch.equal(values, other) for other in everywhere), name
        running = [b.flatten() for b in module.buffers() if b.is_floating_point()]
        rows.append([name, step, *losses, *torch.cat([values, *running]).tolist()])
    return rows


def cases(rank):
    sgd = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    plain_sgd = functools.partial(torch.optim.SGD, lr=0.1)
    decaying = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1)
    seed = 3 + 17 * rank  # wrapping makes them equal
    norm = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    return [
        *train("sgd", mlp(seed), rank, sgd, regression_loss),
        *train("adam", mlp(seed), rank, functools.partial(torch.optim.Adam, lr=0.05), regression_loss),
        *train("unused", fill_parameters(Branches(), seed), rank, decaying, unused_loss, find_unused_parameters=True),
        *train("no_sync", mlp(seed), rank, sgd, regression_loss, window=2),
        *train("fp16_hook", mlp(seed), rank, plain_sgd, regression_loss, hook=default_hooks.fp16_compress_hook),
        *train("bf16_hook", mlp(seed), rank, plain_sgd, regression_loss, hook=default_hooks.bf16_compress_hook),
        *train("tied", fill_parameters(Tied(), seed), rank, sgd, tied_loss),
        *train("batch_norm", fill_parameters(norm, seed), rank, plain_sgd, regression_loss),
    ]


def run(rank, meeting_point):
    dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=RANKS)
    rows = cases(rank)
    if rank == 0:
        lines = [f"# written by {pathlib.Path(__file__).name}, torch {torch.__version__.split('+')[0]}"]
        lines += [f"tolerance {name} {value!r}" for name, value in TOLERANCE.items()]
        lines += [" ".join(v if isinstance(v, str) else f"{v:.9g}" for v in row) for row in rows]
        OUTPUT.write_text("\n".join(lines) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (f"{folder}/meeting",), nprocs=RANKS)
