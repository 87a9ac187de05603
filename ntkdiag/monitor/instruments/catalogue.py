"""All instruments, and the values of `instruments=`."""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, TypeAlias

import jax.numpy as jnp

from ntkdiag import errors
from ntkdiag.display import shortened
from ntkdiag.estimate import Estimate
from ntkdiag.monitor.context import Context, Estimates, Instrument
from ntkdiag.monitor.instruments.kernel import Kernel
from ntkdiag.monitor.instruments.margin import Margin
from ntkdiag.monitor.instruments.noise_scale import NoiseScale
from ntkdiag.monitor.instruments.step import Norms, Optimizer, StepError
from ntkdiag.monitor.probe import Probe

# A function of a `Context` that returns numbers by name, traced by JAX.
OwnInstrument: TypeAlias = Callable[[Context], Mapping[str, object]]
# "auto", the name of an instrument, a function, or several of both.
InstrumentsLike: TypeAlias = str | OwnInstrument | Sequence[str | OwnInstrument]

STANDARD: tuple[Instrument, ...] = (
    Kernel(),
    Margin(),
    NoiseScale(),
    StepError(),
    Optimizer(),
    Norms(),
)


class _Own(Instrument):
    """A function of the user as an instrument."""

    name: ClassVar[str] = "own"

    def __init__(self, function: OwnInstrument, number: int) -> None:
        self._function = function
        self.name = f"own {number}"  # pyright: ignore[reportAttributeAccessIssue]

    def numbers(self, context: Context) -> Estimates:
        """What the function returns."""
        numbers = {}
        for name, number in self._function(context).items():
            is_estimate = isinstance(number, Estimate)
            numbers[name] = number if is_estimate else Estimate.exact(jnp.asarray(number))
        return numbers


def chosen(instruments: InstrumentsLike, probe: Probe) -> tuple[tuple[Instrument, ...], list[str]]:
    """The instruments that were asked for, and notes on those that cannot measure."""
    is_automatic = isinstance(instruments, str) and instruments == "auto"
    asked = STANDARD if is_automatic else _named(instruments)
    able, notes = [], []
    for instrument in asked:
        lack = instrument.lack(probe)
        if probe.f is None and not isinstance(instrument, Norms | Optimizer):
            lack = "there is no function to measure; pass f and train="
        if lack is None:
            able.append(instrument)
        elif is_automatic:
            notes.append(f"Not measured: {instrument.name} ({lack}).")
        else:
            raise errors.InvalidInputError(
                argument="instruments=...",
                expected=f'what "{instrument.name}" needs',
                got=lack,
                do="Pass it, or leave the instrument out.",
            )
    if probe.f is None:
        notes = []  # the record says so once, of all of them
    return tuple(able), notes


def _named(instruments: InstrumentsLike) -> list[Instrument]:
    if not isinstance(instruments, Sequence) or isinstance(instruments, str):
        instruments = [instruments]
    found: dict[str, Instrument] = {}
    for number, item in enumerate(instruments):
        if callable(item):
            found[f"own {number}"] = _Own(item, number)
            continue
        named = [one for one in STANDARD if one.name == item]
        if not named:
            names = ", ".join(f'"{one.name}"' for one in STANDARD)
            raise errors.InvalidInputError(
                argument="instruments=...",
                expected=f'"auto", names of instruments ({names}), or functions of a context',
                got=shortened(item),
                do='Write instruments=("margin", "norms"), or a function of your own beside them.',
            )
        found[named[0].name] = named[0]
        if item == Margin.name:  # which is flagged by the status of the optimizer
            found.setdefault(Optimizer.name, Optimizer())
    return list(found.values())
