"""Which instruments measure: what `instruments=` means."""

import dataclasses
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

# Forward passes of the probe that all other instruments take, with what is no pass: with a margin
# among them, and without.
_PASSES = 58.0
_PASSES_WITHOUT_MARGIN = 20.0


@dataclasses.dataclass(frozen=True, eq=False)
class Supply:
    """What there is to measure with."""

    probe: Probe  # model, examples, loss
    has_update: bool  # whether updates are at hand
    has_optimizer: bool  # whether it is known what the optimizer does with a gradient

    def lack(self, instrument: Instrument) -> str | None:
        """Why an instrument cannot measure, as a sentence; None where it can."""
        if instrument.needs_update and not self.has_update:
            return "no update is at hand; pass updates="
        if instrument.needs_optimizer and not self.has_optimizer:
            return "the optimizer is not known; pass optimizer= and the optimizer's state"
        return instrument.unmet(self.probe)


def instrument_set_for(
    instruments: InstrumentsLike,
    supply: Supply,
    layout: ProbeLayout,
    params: PyTree,
) -> InstrumentSet:
    """The instruments that were asked for, or those that are worth their cost."""
    is_automatic = isinstance(instruments, str) and instruments == "auto"
    tiers = ("economy", "spectral", "kernel")
    asked, singly = named(tiers if is_automatic else instruments)
    able, notes = _able(asked, singly, supply)
    able = [_sized(one, supply.probe, layout) for one in able]
    if is_automatic and not _is_cheap(supply.probe, layout, params, able):
        # The eigenvalues are iterated in the place of the exact kernel.
        able = [one for one in able if one.tier != "kernel"]
    chosen = _without_doubles(able, singly)
    return InstrumentSet(tuple(chosen), notes=tuple(notes))


def _is_cheap(
    probe: Probe, layout: ProbeLayout, params: PyTree, able: Sequence[Instrument]
) -> bool:
    """Whether the exact kernel costs no more than all other instruments together."""
    has_margin = any(one.name == "margin" for one in able)
    passes = _PASSES if has_margin else _PASSES_WITHOUT_MARGIN
    of_pass = layout.n_examples * forward_flops(probe.function, params, probe.x)
    if not of_pass:
        return False
    try:
        return probe.kernel_flops(params, layout) <= passes * of_pass
    except (errors.MemoryBudgetError, errors.InvalidInputError):
        return False  # too large, or of a batch as a whole, which has no plan


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
