#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel beside Python's, two CPU ranks over Gloo, in turns, as Markdown tables.

    cmake --preset cpu -DLOCKSTEP_BUILD_BENCH=ON && cmake --build --preset cpu --target bench_data_parallel
    python3 -m venv peer && peer/bin/pip install torch==2.11.0
    bench/data_parallel.py --python peer/bin/python

Each repeat starts both programs afresh. A figure is the median over repeats, with the lowest and the highest.
"""
import argparse
import pathlib

from ranks import in_turns, spread, table

HERE = pathlib.Path(__file__).parent
RANKS = 2


def report(runs):
    def values(side, case, of):
        return [of(repeat[case]) for repeat in runs[side]]

    def row(case, of, digits=0, faster_is_more=False):
        ours, theirs = values("lockstep", case, of), values("python", case, of)
        ratios = [a / b if faster_is_more else b / a for a, b in zip(ours, theirs)]
        return [case, spread(ours, digits), spread(theirs, digits), spread(ratios, 2)]

    cases = list(runs["python"][0])
    many = [c for c in cases if c.startswith("parameters")]
    whole = [c for c in cases if c not in many]
    header = ["case", "Lockstep", "Python", "times faster"]
    print("Wrapped step, microseconds of wall time:")
    table(header, [row(c, lambda r: r["wrapped"]) for c in many])
    print("Added by the wrapper, communication included, microseconds of CPU time of one rank's process:")
    table(header, [row(c, lambda r: r["wrapped_cpu"] - r["alone_cpu"]) for c in many])
    print("Added by the wrapper to a step with one all-reduce of the same bytes, microseconds of CPU time:")
    table(header, [row(c, lambda r: r["wrapped_cpu"] - r["by_hand_cpu"]) for c in many])
    print("Steps a second:")
    table(header, [row(c, lambda r: 1e6 / r["wrapped"], 1, True) for c in whole])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", default=HERE.parent / "build" / "cpu", type=pathlib.Path)
    parser.add_argument("--python", default="python3", help="one with all of torch")
    parser.add_argument("--repeats", default=7, type=int)
    options = parser.parse_args()
    commands = {"lockstep": [str(options.build / "bin" / "bench_data_parallel")],
                "python": [options.python, str(HERE / "peers" / "data_parallel.py")]}
    runs = in_turns(commands, RANKS, options.repeats)
    report(runs)


if __name__ == "__main__":
    main()
