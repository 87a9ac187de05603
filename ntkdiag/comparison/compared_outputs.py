"""The outputs that are compared: one array `[N ...]`, known by its shape before it is computed.

A model may return a dictionary, a tuple or a dataclass. Where there is one array in it, or one that
is called `logits`, that is compared; of others the caller has to say which. Along the last axis lie
the classes; axes between it and the examples are positions, such as those of tokens.
"""

import dataclasses
from collections.abc import Callable

import jax
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.call_f import refusal
from ntkdiag.comparison.load import Side
from ntkdiag.measuring.settings import Settings
from ntkdiag.models.functional import Apply, Functional
from ntkdiag.models.paths import describe, leaves_by_path

_FIT = (
    "Check that x has the shape the model takes, and wrap the model to return the outputs to "
    "compare."
)
_LOGITS = "logits"


def with_one_output(a: Side, b: Side, settings: Settings) -> tuple[Side, Side]:
    """The sides with functions that return one array, chosen of all that the model returns."""
    returned = leaves_by_path(_shapes_of_outputs(a, settings))
    if list(returned) == [""]:
        return a, b  # the model returns an array
    path = _chosen(list(returned))
    if path is None:
        arrays = ", ".join(f"{name} {describe(leaf)}" for name, leaf in returned.items())
        first = next(iter(returned), "logits")
        raise _fit_error(
            f"{len(returned)} of them: {arrays or 'nothing'}",
            f'Say which: model=functionalize(model, variables, output="{first}").',
        )
    set_aside = tuple(name for name in returned if name != path)
    selected_a = _selecting(a, path, set_aside)
    selected_b = _selecting(b, path, set_aside)
    if a.functional.apply is b.functional.apply:
        # One function for both sides is compiled once.
        functional = dataclasses.replace(b.functional, apply=selected_a.functional.apply)
        selected_b = dataclasses.replace(selected_b, functional=functional)
    return selected_a, selected_b


def require_outputs(side: Side, settings: Settings) -> tuple[int, ...]:
    """The shape of the outputs `[N ...]` on the probe, without computing them.

    Refused unless the outputs are one array that fits probe, labels and loss.
    """
    leaves = jax.tree.leaves(_shapes_of_outputs(side, settings))
    if len(leaves) != 1 or leaves[0].shape[:1] != (settings.n_examples,):
        raise _fit_error(f"outputs of shape {', '.join(str(leaf.shape) for leaf in leaves)}")
    shape = tuple(leaves[0].shape)
    if settings.loss is not None:
        settings.loss.require_fit(shape)
    return shape


def _chosen(paths: list[str]) -> str | None:
    """The one array that is returned, or that of the name `logits`; None where neither is there."""
    if len(paths) == 1:
        return paths[0]
    return _LOGITS if _LOGITS in paths else None


def _selecting(side: Side, path: str, set_aside: tuple[str, ...]) -> Side:
    """A side whose function returns the array at a path alone."""
    functional = _with_output(side.functional, path)
    return dataclasses.replace(side, functional=functional, output=path, set_aside=set_aside)


def _with_output(functional: Functional, path: str) -> Functional:
    """A model that returns the array at a path alone, in its other modes and states, too."""

    def of(make: Callable[..., Functional] | None) -> Callable[..., Functional] | None:
        """The same way to another Functional, with this output."""
        if make is None:
            return None
        return lambda *arguments: _with_output(make(*arguments), path)

    apply = Apply(functional.apply, functional.library, functional.mode, path)
    return dataclasses.replace(
        functional, apply=apply, rebuild=of(functional.rebuild), in_mode=of(functional.in_mode)
    )


def _shapes_of_outputs(side: Side, settings: Settings) -> PyTree:
    """What the model of a side returns on the probe, as shapes."""
    f, params = side.functional
    try:
        return jax.eval_shape(f, params, settings.x)
    except errors.NtkdiagError:
        raise
    except Exception as error:
        raise _error_of_the_model(side, error) from error


def _error_of_the_model(side: Side, error: Exception) -> errors.InvalidInputError:
    """What an error inside the model means for the arguments of `compare`."""
    do = ""
    # Linen misses a collection, such as batch statistics. Known by name: Flax may not be loaded.
    if type(error).__name__ == "ScopeCollectionNotFound":
        do = "Pass variables=, as init returns them, for collections that were not saved."
    return refusal(error, of=f"{side.label}: ", do=do)


def _fit_error(got: str, do: str = _FIT) -> errors.InvalidInputError:
    """What is wrong between model and probe."""
    return errors.InvalidInputError(
        expected="a model that gives one array [N ...] for x [N ...]; for cross-entropy with two "
        "or more classes on the last axis",
        got=got,
        do=do,
    )
