# SPDX-License-Identifier: Apache-2.0
"""What programs that compare two sides over several ranks share: starting ranks, and tables of medians with spread."""
import json
import os
import socket
import statistics
import subprocess


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def environment(rank, ranks, port):
    """torchrun's variables for a rank of this machine."""
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}


def run(command, ranks):
    """Rank 0's lines, {case: {figure: microseconds}}."""
    port = free_port()
    started = [
        subprocess.Popen(command, env=os.environ | environment(r, ranks, port), stdout=subprocess.PIPE, text=True)
        for r in range(ranks)
    ]
    output = [rank.communicate()[0] for rank in started]
    if any(rank.returncode for rank in started):
        raise SystemExit(f"{command} failed")
    rows = [json.loads(line) for line in output[0].splitlines() if line.startswith("{")]
    return {row.pop("case"): row for row in rows}


def in_turns(commands, ranks, repeats):
    """{side: [what run gave, a repeat each]}: each repeat starts every side afresh."""
    runs = {side: [] for side in commands}
    for _ in range(repeats):
        for side, command in commands.items():
            runs[side].append(run(command, ranks))
    return runs


def spread(values, digits=0):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def table(header, rows):
    print("| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print()
