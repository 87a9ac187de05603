"""A run that spikes, and the same one with its learning rate lowered at the first warning."""

import pathlib
from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np

from benchmarks.alarms import fitting
from benchmarks.alarms.evaluation import Scored
from benchmarks.alarms.stored import StoredRun
from benchmarks.alarms.training import rows_of
from ntkdiag.judging.spike_risk import THRESHOLD

# The rate of the first warning, divided by this, is that of all later steps.
LOWERED = 3.0


def draw(path: pathlib.Path, reported: Sequence[StoredRun]) -> None:
    """Of the ramps that were caught the one in the middle by its lead."""
    led = []
    for run in reported:
        lead = Scored.of(run, fitting.risk(run)).lead(THRESHOLD)
        if run.run.cause == "rate ramps" and lead is not None:
            led.append((lead, run.run.number, run))
    lead, _, run = sorted(led)[len(led) // 2]
    warned = run.n_judged - lead
    rates = run.run.rates.copy()
    rates[warned + 1 :] = rates[warned] / LOWERED
    saved = np.array([row["loss"] for row in rows_of(run.run, rates)], dtype=float)

    figure, (upper, lower) = plt.subplots(2, sharex=True, figsize=(5.2, 3.9), layout="constrained")
    upper.plot(saved, label="lowered at the warning", zorder=3)
    upper.plot(run.columns["loss"], label="as it was", color="C3")
    upper.set_yscale("log")
    upper.set_ylabel("loss")
    upper.legend(frameon=False, fontsize=8)
    lower.plot(fitting.risk(run), color="C3", drawstyle="steps-post")
    lower.axhline(THRESHOLD, color="0.6", linewidth=0.8)
    lower.set_ylabel("risk of a spike")
    lower.set_xlabel("step")
    lower.set_ylim(0, 1)
    for axes in (upper, lower):
        axes.axvline(warned, color="0.4", linewidth=0.8, linestyle=":")
        axes.axvline(run.n_judged, color="C3", linewidth=0.8, linestyle=":")
    lower.annotate("warning", (warned, 0.9), xytext=(-4, 0), textcoords="offset points", ha="right")
    lower.annotate("spike", (run.n_judged, 0.9), xytext=(4, 0), textcoords="offset points")
    figure.savefig(path, dpi=130)
    plt.close(figure)
