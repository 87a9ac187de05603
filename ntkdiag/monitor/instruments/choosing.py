"""Which instruments measure, on how many examples and how often: what `instruments=` means.

Costs are counted in forward passes F of one example. A step of training on B examples takes 3 F B,
and a measurement on n examples (1 + sum of the instruments) F n. With "auto" a measurement every k
steps may take the share s of the work of these steps:

    (1 + sum) n <= 3 s k B

The tiers are tried from the dearest down, on fewer examples of the probe where all are too many.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.kernel.reduction import FULL_ROWS
from ntkdiag.monitor.forward_cost import forward_flops
from ntkdiag.monitor.instruments.catalogue import InstrumentsLike, named
from ntkdiag.monitor.instruments.instrument import Instrument
from ntkdiag.monitor.panel import Panel
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.schedule import Every, Schedule

# Fewer examples say little: a largest eigenvalue of 32 is half too large, one of 16 twice.
FEWEST_EXAMPLES = 16
FEWEST_FOR_MARGIN = 32
# Steps between two measurements, where a schedule is no `Every`.
USUAL_PERIOD = 100


@dataclasses.dataclass(frozen=True)
class Budget:
    """How often is measured, and what share of training that may take.

    Attributes:
        every: The schedule.
        time_share: Largest share of the work of training; None for no limit.
        batch_size: Examples of one training step; None for those of the probe.
    """

    every: Schedule
    time_share: float | int | np.number | None
    batch_size: int | None

    @property
    def period(self) -> int:
        """Steps between two measurements."""
        return int(self.every.k) if isinstance(self.every, Every) else USUAL_PERIOD

    def training_forwards(self, layout: ProbeLayout) -> float:
        """The work of training between two measurements, in forward passes of an example."""
        batch_size = layout.n_examples if self.batch_size is None else self.batch_size
        return 3.0 * self.period * batch_size

    def stretched(self, stretch: int) -> Schedule:
        """The schedule, with only every so many of its steps where it is an `Every`."""
        if stretch == 1 or not isinstance(self.every, Every):
            return self.every
        return Every(self.every.k * stretch)


@dataclasses.dataclass(frozen=True, eq=False)
class Supply:
    """What there is to measure with.

    Attributes:
        probe: Model, examples, loss.
        has_update: Whether updates are at hand.
        has_optimizer: Whether it is known what the optimizer does with a gradient.
    """

    probe: Probe
    has_update: bool
    has_optimizer: bool

    def lack(self, instrument: Instrument) -> str | None:
        """Why an instrument cannot measure, as a sentence; None where it can."""
        if instrument.needs_update and not self.has_update:
            return "no update is at hand; pass updates="
        if instrument.needs_optimizer and not self.has_optimizer:
            return "the optimizer is not known; pass optimizer= or descent="
        return instrument.unmet(self.probe)


def panel_for(
    instruments: InstrumentsLike,
    supply: Supply,
    layout: ProbeLayout,
    params: PyTree,
    budget: Budget,
) -> Panel:
    """The instruments that were asked for, or those that the budget allows.

    Raises:
        InvalidInputError: An instrument that was asked for by its name cannot measure here.
    """
    is_automatic = isinstance(instruments, str) and instruments == "auto"
    tiers = ("economy", "spectral", "kernel")
    asked, singly = named(tiers if is_automatic else instruments)
    able, notes = _able(asked, singly, supply)
    if not able:
        raise errors.InvalidInputError(
            argument="instruments=...",
            expected="instruments of which one at least can measure here",
            got=" ".join(notes).rstrip(".") or "none",
            do='Give what is missing, or take instruments="auto".',
        )
    if not is_automatic:
        return Panel(tuple(able), notes=tuple(notes))
    return _within(budget, able, notes, supply, layout, params)


def _able(
    asked: Sequence[Instrument], singly: set[str], supply: Supply
) -> tuple[list[Instrument], list[str]]:
    """The instruments that can measure, and notes on the others."""
    able = []
    notes = []
    for instrument in asked:
        lack = supply.lack(instrument)
        if lack is None:
            able.append(instrument)
        elif instrument.name in singly:
            raise errors.InvalidInputError(
                argument="instruments=...",
                expected=f'what "{instrument.name}" needs',
                got=lack,
                do="Give it, or leave the instrument out.",
            )
        else:
            notes.append(f"Not measured: {instrument.name} ({lack}).")
    return able, notes


def _within(
    budget: Budget,
    able: Sequence[Instrument],
    notes: Sequence[str],
    supply: Supply,
    layout: ProbeLayout,
    params: PyTree,
) -> Panel:
    """The instruments that fit a budget, on as many examples as fit."""
    economy = [one for one in able if one.tier == "economy"]
    cheaper = [one for one in able if one.tier != "kernel"]
    kernel = [one for one in able if one.tier == "kernel"]
    n = layout.n_examples
    if budget.time_share is None:
        small = layout.n_examples * layout.n_outputs <= FULL_ROWS
        return Panel((*cheaper, *(kernel if small else ())), notes=tuple(notes))

    allowed = budget.time_share * budget.training_forwards(layout)
    chosen = cheaper
    n_affordable = int(allowed / _forwards(cheaper, layout))
    if n_affordable < min(n, FEWEST_FOR_MARGIN) and len(economy) < len(cheaper):
        chosen = economy
        n_affordable = int(allowed / _forwards(economy, layout))

    # Below the fewest examples that say something, fewer steps are measured.
    n_fewest = min(n, FEWEST_EXAMPLES)
    stretch = 1
    if n_affordable < n_fewest:
        n_affordable = n_fewest
        stretch = math.ceil(n_fewest * _forwards(chosen, layout) / allowed)
    stride = math.ceil(n / min(n, n_affordable))
    n_taken = math.ceil(n / stride)

    taken = n_taken * _forwards(chosen, layout)
    if kernel and taken + kernel_forwards(supply, layout, params) <= stretch * allowed:
        chosen = [*chosen, *kernel]
    note = _note(chosen, n_taken, stretch, taken, budget, layout)
    return Panel(tuple(chosen), stride, stretch, (*notes, note))


def _forwards(instruments: Sequence[Instrument], layout: ProbeLayout) -> float:
    """Forward passes for each example, with the one that is shared."""
    return 1.0 + sum(instrument.forwards(layout) for instrument in instruments)


def kernel_forwards(supply: Supply, layout: ProbeLayout, params: PyTree) -> float:
    """What the exact kernel costs, in forward passes of an example."""
    probe = supply.probe
    flops = forward_flops(probe.function, params, probe.x)
    try:
        return probe.plan(params, layout).flops / flops if flops else math.inf
    except (errors.MemoryBudgetError, errors.InvalidInputError):
        return math.inf  # too large, or of a batch as a whole, which has no plan


def _note(
    chosen: Sequence[Instrument],
    n_taken: int,
    stretch: int,
    taken: float,
    budget: Budget,
    layout: ProbeLayout,
) -> str:
    """What was chosen, with its share of training."""
    share = taken / (stretch * budget.training_forwards(layout))
    batch = f"{budget.batch_size} examples a step"
    if budget.batch_size is None:
        batch = f"{layout.n_examples} examples a step, as many as the probe has (batch_size=)"
    steps = "" if stretch == 1 else f" at every {stretch}. of the scheduled steps"
    tiers = ", ".join(dict.fromkeys(instrument.tier for instrument in chosen))
    return (
        f'instruments="auto" chose {tiers} on {n_taken} of {layout.n_examples} examples{steps}: '
        f"{100 * share:.2g} % of a training with {batch}, by count of operations."
    )
