"""Keyword arguments of f for x1 and for x2: the same, one each, or `rng`."""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax

from ntkdiag import errors
from ntkdiag.neural_tangents.cut import is_array
from ntkdiag.neural_tangents.rng import split_key


@dataclasses.dataclass(frozen=True)
class PerInput:
    """A keyword argument with one value for x1 and another for x2.

    Attributes:
        first: What f gets with x1.
        second: What f gets with x2.
    """

    first: Any
    second: Any


@dataclasses.dataclass(frozen=True)
class Shared:
    """A keyword argument that is the same for x1 and x2, also where it is a pair.

    Attributes:
        value: What f gets.
    """

    value: Any


def is_open(value: Any) -> bool:
    """Whether a keyword argument is a bare pair, which may mean one value each or one value that is a pair."""
    return isinstance(value, tuple) and len(value) == 2 and not hasattr(value, "_fields")


def split_kwargs(kwargs: dict, per_input: frozenset[str], x1: Any, x2: Any) -> tuple[dict, dict]:
    """Keyword arguments for x1 and for x2.

    Args:
        kwargs: As the user gave them.
        per_input: Names of bare pairs that mean one value each; other pairs are shared.
        x1: Row inputs.
        x2: Column inputs or None.

    Returns:
        Two dicts; the same values twice where x2 is None.
    """
    first, second = {}, {}
    for name, value in kwargs.items():
        if name == "rng":
            first[name], second[name] = split_key(value, x1, x2)
        elif isinstance(value, PerInput):
            first[name], second[name] = value.first, value.second
        elif name in per_input:
            first[name], second[name] = value
        else:
            first[name] = second[name] = value.value if isinstance(value, Shared) else value
    return first, first if x2 is None else second


def read_pairs(
    kwargs: dict, accepts: Callable[[dict], Any], mapped: frozenset[str]
) -> frozenset[str]:
    """Which bare pairs among the keyword arguments are one value each, by what f accepts.

    neural-tangents split every tuple of two, also `window=(3, 3)`. Here f is traced with both readings; if it accepts
    one of them, that is meant. If it accepts both, the call is refused.
    Cost: two traces of f for each pair.

    Args:
        kwargs: As the user gave them.
        accepts: Traces f on x1 with keyword arguments, and raises where f does.
        mapped: Names under `kwargs_axes`: their pairs are always one value each.

    Returns:
        Names of the pairs that are one value each.

    Raises:
        InvalidInputError: f accepts more than one reading.
    """
    undecided = [
        name
        for name, value in kwargs.items()
        if is_open(value) and name != "rng" and name not in mapped
    ]
    split = frozenset(name for name, value in kwargs.items() if is_open(value) and name in mapped)
    if not undecided:
        return split
    accepted, failure = [], None
    for choice in itertools.product((True, False), repeat=len(undecided)):
        reading = split | {name for name, each in zip(undecided, choice, strict=True) if each}
        try:
            accepts(split_kwargs(kwargs, reading, None, None)[0])
            accepted.append(reading)
        except (
            Exception
        ) as error:  # whatever f says about a reading, it says that it is not this one
            failure = failure or error
    if not accepted and failure is not None:
        raise failure
    if len(accepted) > 1:
        doubtful = next(
            name for name in undecided if len({name in reading for reading in accepted}) > 1
        )
        raise errors.InvalidInputError(
            expected=f"to know whether {doubtful}={_shown(kwargs[doubtful])} is one value for x1 and one for x2",
            got="a function that accepts the pair and its first entry",
            do=f"Write {doubtful}=PerInput(a, b) for one value each, {doubtful}=Shared((a, b)) for the pair.",
        )
    return accepted[0]


def _shown(value: Any) -> str:
    entries = [
        f"{leaf.dtype}{list(leaf.shape)}" if is_array(leaf) else repr(leaf) for leaf in value
    ]
    return f"({', '.join(entries)})"


jax.tree_util.register_dataclass(PerInput, data_fields=["first", "second"], meta_fields=[])
jax.tree_util.register_dataclass(Shared, data_fields=["value"], meta_fields=[])
