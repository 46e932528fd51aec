# SPDX-License-Identifier: Apache-2.0
"""Writes lr_schedule.txt: the learning rates, and cycled momenta, of torch.optim.lr_scheduler at every step.

    python tests/golden/lr_schedule.py > tests/golden/lr_schedule.txt      (torch 2.11)
One line a sequence: name, then values. `name/momentum` holds the momentum of the same sequence.
"""
import warnings

import torch
from torch.optim import SGD, lr_scheduler as s

warnings.simplefilter("ignore")
STEPS = 25
BASE = 0.5


def sequence(make):
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=BASE, momentum=0.9)
    scheduler = make(optimizer)
    rates, momenta = [], []
    for _ in range(STEPS):
        rates.append(optimizer.param_groups[0]["lr"])
        momenta.append(optimizer.param_groups[0]["momentum"])
        optimizer.step()
        scheduler.step()
    return rates, momenta


SCHEDULES = {
    "step": lambda o: s.StepLR(o, 3, 0.1),
    "multi_step": lambda o: s.MultiStepLR(o, [2, 5, 5, 11], 0.5),
    "exponential": lambda o: s.ExponentialLR(o, 0.9),
    "constant": lambda o: s.ConstantLR(o, 0.25, 4),
    "linear": lambda o: s.LinearLR(o, 0.25, 0.75, 7),
    "polynomial": lambda o: s.PolynomialLR(o, 10, 2.0),
    "cosine": lambda o: s.CosineAnnealingLR(o, 10, 0.01),
    "restarts": lambda o: s.CosineAnnealingWarmRestarts(o, 4, 1, 0.01),
    "restarts_longer": lambda o: s.CosineAnnealingWarmRestarts(o, 3, 2, 0.01),
    "lambda": lambda o: s.LambdaLR(o, lambda t: 1 / (1 + t)),
    "one_cycle": lambda o: s.OneCycleLR(o, 2.0, total_steps=25),
    "one_cycle_linear": lambda o: s.OneCycleLR(o, 2.0, total_steps=25, pct_start=0.4, anneal_strategy="linear"),
    "one_cycle_three": lambda o: s.OneCycleLR(o, 2.0, total_steps=25, three_phase=True, final_div_factor=100.0),
    "chained": lambda o: s.ChainedScheduler([s.ConstantLR(o, 0.5, 6), s.ExponentialLR(o, 0.8), s.StepLR(o, 5, 0.3)]),
    "sequential": lambda o: s.SequentialLR(
        o, [s.ConstantLR(o, 0.5, 20), s.ExponentialLR(o, 0.8), s.StepLR(o, 2, 0.5)], [4, 9]),
    "warm_up": lambda o: s.SequentialLR(o, [s.LinearLR(o, 0.1, 1.0, 5), s.CosineAnnealingLR(o, 20, 0.0)], [5]),
}

# Metrics with progress, stalls, a NaN and, for the maximising runs, values below zero.
METRICS = [3, 2, 2, 2, 1.9999, 1.9, 1.9, float("nan"), 1.95, 1.91, 1.5, 1.5, 1.5, 1.5, 1.5, 1.4, 1.6, 1.6, 1.6, 1.6]
RISING = [-8, -7, -6, -5, -5, -5, -5, -4, -3, -3, -3, -3, -3, -1, 0, 0, 0, 1, 1, 1]
PLATEAUS = {
    "plateau_min": (METRICS, dict(patience=2)),
    "plateau_abs": (METRICS, dict(patience=1, threshold=0.05, threshold_mode="abs", factor=0.5)),
    "plateau_cooldown": (METRICS, dict(patience=1, cooldown=2, factor=0.5, min_lr=0.1)),
    "plateau_max": (RISING, dict(mode="max", patience=2)),
    "plateau_max_abs": (RISING, dict(mode="max", patience=1, threshold=0.5, threshold_mode="abs", factor=0.5)),
}


def plateau(metrics, options):
    optimizer = SGD([torch.zeros(1, requires_grad=True)], lr=BASE)
    scheduler = s.ReduceLROnPlateau(optimizer, **options)
    rates = []
    for metric in metrics:
        scheduler.step(metric)
        rates.append(optimizer.param_groups[0]["lr"])
    return rates


def line(name, values):
    print(name, *(repr(float(v)) for v in values))


for name, make in SCHEDULES.items():
    rates, momenta = sequence(make)
    line(name, rates)
    if name.startswith("one_cycle"):
        line(name + "/momentum", momenta)
line("metrics", METRICS)
line("rising", RISING)
for name, (metrics, options) in PLATEAUS.items():
    line(name, plateau(metrics, options))
