"""What the user asked `functionalize` for, handed to the adapter of the model's library."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ntkdiag import errors
from ntkdiag.adapters.mode import Mode
from ntkdiag.adapters.outputs import Activations
from ntkdiag.adapters.selectors import select

# Options by which other libraries, or older habits, ask for something that has a name of its own here.
_MEANT = {
    **dict.fromkeys(("filter_spec", "wrt", "filter", "mask", "frozen"), "trainable="),
    **dict.fromkeys(("train", "training", "is_training", "deterministic", "inference"), 'mode="eval" or mode="train"'),
    **dict.fromkeys(("rng", "seed", "rngs", "key"), "rngs= (linen, NNX) or key= (Equinox)"),
}


@dataclasses.dataclass(frozen=True)
class Request:
    """The arguments of one `functionalize` call; see there for what they mean.

    Attributes:
        variables: What came beside the model.
        mode: What is on while the model is evaluated.
        method: Method to call instead of the model itself.
        trainable: Which leaves are differentiated.
        inputs: Takes what the model gets out of `x`.
        output: Applied to what the model returns.
        call_kwargs: Keyword arguments of every call of the model.
        unpack: Spread `x` over the arguments of the model.
        check_finite: Refuse NaN and infinity.
        options: Arguments that only some libraries know, as given.
    """

    variables: Any = None
    mode: Mode = dataclasses.field(default_factory=Mode)
    method: Any = None
    trainable: Any = None
    inputs: Any = None
    output: Any = None
    call_kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    unpack: bool = False
    check_finite: bool = True
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def selected(self) -> Any:
        """The selector to apply to what the model returns; activations are taken inside the model, by the adapter."""
        return None if isinstance(self.output, Activations) else self.output

    def require_returned(self, *, call: str) -> None:
        """Refuse activations where the library has no way to look inside a model.

        Args:
            call: The call to name in the message, in code form.

        Raises:
            InvalidInputError: If activations were asked for.
        """
        if isinstance(self.output, Activations):
            raise errors.InvalidInputError(
                errors.message(
                    call,
                    expected="an output that the model returns, because only Flax can capture activations",
                    got=f'output=activations("{self.output.path}")',
                    do="Call another method with method=, as a function of the model, or return the activations and "
                    "select them with output=.",
                )
            )

    def require_options(self, known: tuple[str, ...], *, call: str) -> None:
        """Refuse an option that means nothing for this library.

        Args:
            known: Names of the options the library has.
            call: The call to name in the message, in code form.

        Raises:
            InvalidInputError: If another one was given.
        """
        unknown = [name for name in self.options if name not in known]
        if unknown:
            meant = [f"What is called {name}= elsewhere is {_MEANT[name]} here." for name in unknown if name in _MEANT]
            raise errors.InvalidInputError(
                errors.message(
                    call,
                    expected="no option of a single library" + (f" but {', '.join(known)}" if known else ""),
                    got=", ".join(f"{name}=" for name in unknown),
                    do=" ".join(meant) or "Leave it out: it does not exist, or belongs to another library.",
                )
            )

    def require_alone(self, *, call: str) -> None:
        """Refuse variables beside a model that carries its own.

        Args:
            call: The call to name in the message, in code form.

        Raises:
            InvalidInputError: If there are any.
        """
        if self.variables is not None:
            raise errors.InvalidInputError(
                errors.message(
                    call,
                    expected="the model alone, because it carries its own parameters",
                    got=f"a second argument, {type(self.variables).__name__}",
                    do="Leave it out; other values go in with Functional.with_params.",
                )
            )

    def bound(self, model: Any, *, call: str) -> Callable[..., Any]:
        """Find the method that is to be called.

        Args:
            model: The model, or a copy of it.
            call: The call to name in the message, in code form.

        Returns:
            The bound method.

        Raises:
            InvalidInputError: If the model has no such method.
        """
        method = self.method or "__call__"
        found = getattr(model, method, None) if isinstance(method, str) else functools.partial(method, model)
        if found is None:
            raise errors.InvalidInputError(
                errors.message(
                    call,
                    expected="a model that can be called, or the name of one of its methods in `method=`",
                    got=f"{type(model).__name__} without {method}",
                    do="Pass method= the name of the method that maps a batch to outputs.",
                )
            )
        return found

    def arguments(self, function: Callable[..., Any], x: Any, kwargs: Mapping[str, Any]) -> tuple[tuple, dict]:
        """Write the arguments of one call of the model.

        Args:
            function: The method that is going to be called.
            x: The batch, or one example of it.
            kwargs: What `f(params, x, **kwargs)` was given.

        Returns:
            Positional and keyword arguments: what `inputs` takes of `x`, the switches of the mode that the method
            knows, `call_kwargs`, `kwargs`; the later win.

        Raises:
            InvalidInputError: If a switch contradicts the mode.
        """
        x = select(self.inputs, x)
        args, named = ((x,), {}) if not self.unpack else ((), dict(x)) if isinstance(x, Mapping) else (tuple(x), {})
        switches = self.mode.flags
        known = {name: value for name, value in switches.items() if name in _names(function)}
        keywords = {**known, **self.call_kwargs, **named, **kwargs}
        for name in switches.keys() & keywords.keys():
            if isinstance(keywords[name], bool) and keywords[name] != switches[name]:
                raise errors.InvalidInputError(
                    errors.message(
                        f'functionalize(model, mode="{self.mode.name}")',
                        expected=f"{name}={switches[name]}, as the mode says",
                        got=f"{name}={keywords[name]}",
                        do='Choose with mode="eval" or mode="train" and leave the argument out.',
                    )
                )
        return args, keywords


def as_key(key: Any) -> Any:
    """Make a key of a seed; keys and None stay."""
    return jax.random.key(key) if isinstance(key, int | np.integer) else key


def _names(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some compiled callables have none
        return {}
