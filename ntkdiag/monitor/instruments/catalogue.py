"""The instruments there are, and what `instruments=` may name."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ntkdiag import errors
from ntkdiag.monitor.instruments.exact_kernel import ExactKernel
from ntkdiag.monitor.instruments.gradient_noise import GradientNoise
from ntkdiag.monitor.instruments.instrument import Instrument
from ntkdiag.monitor.instruments.layer_norms import LayerNorms
from ntkdiag.monitor.instruments.leading_eigenvalues import LeadingEigenvalues
from ntkdiag.monitor.instruments.sampled_trace import SampledTrace
from ntkdiag.monitor.instruments.step_error import StepError
from ntkdiag.monitor.instruments.top_curvatures import TopCurvatures

# A name of a tier or of an instrument, an instrument, or several of them.
InstrumentsLike: TypeAlias = str | Instrument | Sequence[str | Instrument]

# In the order in which they measure.
STANDARD: tuple[Instrument, ...] = (
    SampledTrace(),
    StepError(),
    GradientNoise(),
    LayerNorms(),
    TopCurvatures(),
    LeadingEigenvalues(),
    ExactKernel(),
)
TIERS = ("economy", "spectral", "kernel")


def named(instruments: InstrumentsLike) -> tuple[list[Instrument], set[str]]:
    """The instruments that were asked for, and the names of those that were asked for singly."""
    if isinstance(instruments, str | Instrument):
        instruments = [instruments]
    elif not isinstance(instruments, Iterable):
        raise _unknown(instruments)
    chosen: list[Instrument] = []
    singly: set[str] = set()
    for item in instruments:
        if isinstance(item, Instrument):
            chosen.append(item)
            singly.add(item.name)
            continue
        found = [one for one in STANDARD if item in (one.tier, one.name)]
        if not found or not isinstance(item, str):
            raise _unknown(item)
        chosen += found
        if item not in TIERS:
            singly.add(item)
    return _without_repetitions(chosen), singly


def _without_repetitions(instruments: Sequence[Instrument]) -> list[Instrument]:
    """One instrument of each name; the last one, so that options replace the standard."""
    by_name = {instrument.name: instrument for instrument in instruments}
    return list(by_name.values())


def _unknown(item: object) -> errors.InvalidInputError:
    names = ", ".join(f'"{name}"' for name in (*TIERS, *(one.name for one in STANDARD)))
    return errors.InvalidInputError(
        argument="instruments=...",
        expected=f'"auto", names of tiers or instruments ({names}), or instruments',
        got=repr(item),
        do='Write instruments=("economy", "spectral"), or an instrument of your own beside them.',
    )
