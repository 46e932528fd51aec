#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All-reduces of every size beside torch.distributed's, in turns, as a Markdown table.

    cmake --preset cuda -DLOCKSTEP_BUILD_BENCH=ON && cmake --build --preset cuda --target bench_all_reduce
    bench/all_reduce.py --ranks 8 [--python peer/bin/python]

One rank a device, over NCCL, where there are devices; else over Gloo. Each repeat starts both programs afresh.
"""
import argparse
import pathlib

import ranks as several

HERE = pathlib.Path(__file__).parent


def bus_rate(size, microseconds, ranks):
    """GB/s that each link carries where the sum goes round a ring."""
    return 2 * (ranks - 1) / ranks * size / microseconds * 1e-3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=HERE.parent / "build" / "cuda", type=pathlib.Path)
    parser.add_argument("--python", default="python3", help="one with all of torch")
    parser.add_argument("--ranks", default=2, type=int)
    parser.add_argument("--repeats", default=5, type=int)
    options = parser.parse_args()
    commands = {"lockstep": [str(options.build / "bin" / "bench_all_reduce")],
                "python": [options.python, str(HERE / "peers" / "all_reduce.py")]}
    runs = several.in_turns(commands, options.ranks, options.repeats)
    rows = []
    for case in runs["python"][0]:
        ours, theirs = ([repeat[case]["us"] for repeat in runs[side]] for side in ("lockstep", "python"))
        rates = [bus_rate(int(case), us, options.ranks) for us in ours]
        ratios = [b / a for a, b in zip(ours, theirs)]
        rows.append([case, several.spread(ours, 1), several.spread(theirs, 1), several.spread(ratios, 2), several.spread(rates, 2)])
    several.table(["bytes", "Lockstep, us", "Python, us", "times faster", "Lockstep, GB/s a link"], rows)


if __name__ == "__main__":
    main()
