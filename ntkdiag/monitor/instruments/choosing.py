"""Which instruments measure, and what that costs: what `instruments=` means.

Costs are counted in forward passes. A step of training is three over a batch of B examples, one
for the outputs and two for the gradient; a measurement is 1 + sum of the instruments over the n
examples of the probe, of which the first one is shared:

    steps a measurement takes = c (1 + sum) max(n / B, 1/3) / 3

Of few examples, a pass takes as long as of some more: it has to be begun, too. c covers what is no
pass, such as reading the optimizer. How often is measured follows from it: see `time_budget`.
"""

import dataclasses
import math
from collections.abc import Sequence

from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.monitor.forward_cost import forward_flops
from ntkdiag.monitor.instrument_set import InstrumentSet
from ntkdiag.monitor.instruments.catalogue import InstrumentsLike, named
from ntkdiag.monitor.instruments.instrument import Instrument
from ntkdiag.monitor.instruments.leading_eigenvalues import LeadingEigenvalues
from ntkdiag.monitor.probe import Probe
from ntkdiag.monitor.probe_layout import ProbeLayout
from ntkdiag.monitor.time_budget import Budget

# What is no pass of the network, by the clock on MLPs, CNNs and transformers: 1.1 to 1.6.
_BESIDE_PASSES = 1.5
# Of a batch, below which a pass gets no faster.
_LEAST_OF_BATCH = 1 / 3


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


def instrument_set_for(
    instruments: InstrumentsLike,
    supply: Supply,
    layout: ProbeLayout,
    params: PyTree,
    budget: Budget,
) -> InstrumentSet:
    """The instruments that were asked for, or those that are worth their cost.

    Raises:
        InvalidInputError: An instrument that was asked for by its name cannot measure here.
    """
    is_automatic = isinstance(instruments, str) and instruments == "auto"
    tiers = ("economy", "spectral", "kernel")
    asked, singly = named(tiers if is_automatic else instruments)
    able, notes = _able(asked, singly, supply)
    able = [_sized(one, supply.probe, layout) for one in able]
    chosen = _without_doubles(able, singly)
    steps = _steps(chosen, layout, budget)
    if is_automatic:
        # The exact kernel costs no more than all others; else its eigenvalues are iterated.
        by_products = [one for one in able if one.tier != "kernel"]
        steps = _steps(by_products, layout, budget)
        kernel = kernel_forwards(supply, layout, params) / (3.0 * budget.batch(layout))
        if kernel > steps:
            chosen = by_products
        else:
            steps += kernel
    return InstrumentSet(tuple(chosen), steps=steps, notes=tuple(notes))


def _sized(instrument: Instrument, probe: Probe, layout: ProbeLayout) -> Instrument:
    """An instrument with as many eigenvalues as were asked for."""
    if isinstance(instrument, LeadingEigenvalues):
        top_k = min(probe.top_k, layout.n_examples * layout.n_outputs)
        return dataclasses.replace(instrument, top_k=top_k)
    return instrument


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


def _without_doubles(able: Sequence[Instrument], singly: set[str]) -> list[Instrument]:
    """Without the iteration for eigenvalues where the exact kernel has them."""
    has_kernel = any(instrument.tier == "kernel" for instrument in able)
    is_double = has_kernel and "eigenvalues" not in singly
    return [one for one in able if not (is_double and one.name == "eigenvalues")]


def _steps(instruments: Sequence[Instrument], layout: ProbeLayout, budget: Budget) -> float:
    """How many steps of training a measurement takes as long as."""
    passes = 1.0 + sum(instrument.forwards(layout) for instrument in instruments)
    of_batch = max(layout.n_examples / budget.batch(layout), _LEAST_OF_BATCH)
    return _BESIDE_PASSES * passes * of_batch / 3.0


def kernel_forwards(supply: Supply, layout: ProbeLayout, params: PyTree) -> float:
    """What the exact kernel costs, in forward passes of an example."""
    probe = supply.probe
    flops = forward_flops(probe.function, params, probe.x)
    try:
        return probe.plan(params, layout).flops_as_products / flops if flops else math.inf
    except (errors.MemoryBudgetError, errors.InvalidInputError):
        return math.inf  # too large, or of a batch as a whole, which has no plan
