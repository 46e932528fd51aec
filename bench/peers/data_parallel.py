# SPDX-License-Identifier: Apache-2.0
"""The same steps as bench/data_parallel.cpp, with Python's DistributedDataParallel at its fastest options."""
import json
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BLOCKS = 5


def cost_of(step, steps):
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    return (time.perf_counter() - wall) * 1e6 / steps, (time.process_time() - cpu) * 1e6 / steps


def measure(name, steps, ways):
    """`ways`: a step alone, with one all-reduce of all gradients' bytes after it, and wrapped; in turns."""
    costs = {way: [] for way in ways}
    for block in range(-1, BLOCKS):
        for way, step in ways.items():
            dist.barrier()
            cost = cost_of(step, steps)
            if block >= 0:  # the first round warms up
                costs[way].append(cost)
    if dist.get_rank() == 0:
        row = {"case": name}
        for way, pairs in costs.items():
            row[way] = statistics.median(wall for wall, _ in pairs)
            row[way + "_cpu"] = statistics.median(cpu for _, cpu in pairs)
        print(json.dumps(row), flush=True)


def ways_of(alone, wrapped, module):
    data = torch.ones(sum(p.numel() for p in module.parameters()))

    def by_hand():
        alone()
        dist.all_reduce(data)

    return {"alone": alone, "by_hand": by_hand, "wrapped": wrapped}


def wrap(module):
    return DistributedDataParallel(module, gradient_as_bucket_view=True, static_graph=True)


class Chain(nn.Module):
    """Many tiny parameters: nothing but overhead."""

    def __init__(self, count):
        super().__init__()
        self.links = nn.ParameterList(nn.Parameter(torch.ones(16)) for _ in range(count))
        self.in_order = list(self.links)

    def forward(self, x):
        for link in self.in_order:
            x = x * link
        return x


def overhead(count, steps):
    alone, inner = Chain(count), Chain(count)
    ddp = wrap(inner)
    x = torch.ones(16)

    def step(module, forward):
        module.zero_grad()
        forward(x).sum().backward()

    measure(f"parameters_{count}", steps, ways_of(lambda: step(alone, alone), lambda: step(inner, ddp), alone))


def training(name, steps, make, x, target):
    alone, inner = make(), make()
    ddp = wrap(inner)

    def step_of(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

        def step():
            optimizer.zero_grad()
            F.cross_entropy(model(x), target).backward()
            optimizer.step()

        return step

    measure(name, steps, ways_of(step_of(alone), step_of(ddp), alone))


def mlp():
    return nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def cnn():
    return nn.Sequential(nn.Conv2d(1, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
                         nn.Flatten(1), nn.Linear(32 * 6 * 6, 10))


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    overhead(4, 400)
    overhead(64, 150)
    overhead(512, 30)
    target = torch.arange(32) % 10
    training("mlp", 100, mlp, torch.randn(32, 256), target)
    training("cnn", 60, cnn, torch.randn(32, 1, 28, 28), target)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
