#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cases of bench_optimizer_tail, as Python has them: AdamW with fused=True, foreach=True, and the plain loop.

    bench/optimizer_tail.py [path of bench_optimizer_tail]

With a path it runs that program before and after itself, so that the figures of both are of one run. Needs torch 2.11.
"""
import subprocess
import sys
import time

import torch

REPEATS = 9
KINDS = {"fused": dict(fused=True), "foreach": dict(foreach=True), "loop": dict(foreach=False, fused=False)}


def milliseconds(step, times):
    begin = time.perf_counter()
    for _ in range(times):
        step()
    return (time.perf_counter() - begin) / times * 1e3


def cpu_case(name, count, size, times):
    steps = {}
    for kind, options in KINDS.items():
        parameters = [torch.randn(size, requires_grad=True) for _ in range(count)]
        for p in parameters:
            p.grad = torch.randn(size)
        steps[kind] = torch.optim.AdamW(parameters, lr=1e-3, **options).step
    took = {kind: [] for kind in KINDS}
    for round_ in range(REPEATS + 1):
        for kind, step in steps.items():
            took[kind].append(milliseconds(step, times))
    shown = []
    for kind, values in took.items():
        values = sorted(values[1:])
        shown.append(f"{kind} {values[REPEATS // 2]:.3f} ms ({values[0]:.3f}-{values[-1]:.3f})")
    print(f"python {name:22} {torch.get_num_threads()} threads: {', '.join(shown)}", flush=True)


def main():
    ours = [sys.argv[1], "cpu"] if len(sys.argv) > 1 else None
    if ours:
        subprocess.run(ours, check=True)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        cpu_case("500 x 1000", 500, 1000, 20)
        cpu_case("20 x 1000000", 20, 1000000, 1)
    if ours:
        subprocess.run(ours, check=True)


if __name__ == "__main__":
    main()
