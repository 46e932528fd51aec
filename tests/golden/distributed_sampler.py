#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes distributed_sampler.txt: the shares that PyTorch's DistributedSampler deals out."""
import pathlib

import torch
from torch.utils.data import DistributedSampler

CASES = [  # size, num_replicas, seed, epoch, shuffle, drop_last
    (11, 3, 0, 0, 1, 0), (11, 3, 5, 2, 1, 0), (12, 4, 123456789012345, 1, 1, 0), (10, 4, 7, 1, 1, 1),
    (3, 8, 1, 0, 1, 0), (5, 2, 0, 0, 0, 0), (3, 4, 0, 0, 1, 1), (1, 1, 0, 9, 1, 0), (100, 2, 3, 7, 1, 1),
]

lines = [f"# written by distributed_sampler.py, torch {torch.__version__}",
         "# size num_replicas rank seed epoch shuffle drop_last: indices"]
for size, replicas, seed, epoch, shuffle, drop_last in CASES:
    for rank in range(replicas):
        sampler = DistributedSampler(range(size), replicas, rank, bool(shuffle), seed, bool(drop_last))
        sampler.set_epoch(epoch)
        head = f"{size} {replicas} {rank} {seed} {epoch} {shuffle} {drop_last}:"
        lines.append(" ".join([head, *map(str, sampler)]))
pathlib.Path(__file__).with_suffix(".txt").write_text("\n".join(lines) + "\n")
