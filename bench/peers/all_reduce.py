# SPDX-License-Identifier: Apache-2.0
"""The same all-reduces as bench/all_reduce.cpp, with torch.distributed."""
import json
import os
import statistics
import time

import torch
import torch.distributed as dist

BLOCKS = 5
BYTES_A_BLOCK = 64 << 20
CUDA = torch.cuda.is_available() and os.environ.get("LOCKSTEP_DEVICE") != "cpu"


def settle():
    if CUDA:
        torch.cuda.synchronize()


def microseconds_a_call(data, calls):
    dist.barrier()
    settle()
    begin = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(data)
    settle()
    return (time.perf_counter() - begin) * 1e6 / calls


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if CUDA else "gloo", device_id=device if CUDA else None)
    size = 1 << 10
    while size <= (256 << 20 if CUDA else 16 << 20):
        data = torch.zeros(size // 4, device=device)
        microseconds_a_call(data, 3)
        calls = min(max(BYTES_A_BLOCK // size, 4), 500 if CUDA else 100)
        time_of = statistics.median(microseconds_a_call(data, calls) for _ in range(BLOCKS))
        if dist.get_rank() == 0:
            print(json.dumps({"case": str(size), "us": time_of}), flush=True)
        size *= 4
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
