"""The arguments of `functionalize`, for the adapter of the model's library.

A request also tells the adapter which options its library has, which method is called, and with
which arguments.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.jaxtools.jaxprs import needs_inputs
from ntkdiag.models.mode import MODES, Mode
from ntkdiag.models.selectors import Selector, as_pytree, select
from ntkdiag.models.trainable import Trainable


@dataclasses.dataclass(frozen=True)
class ModelRequest:
    """The arguments of one `functionalize` call; see there for what they mean."""

    variables: PyTree = None  # what came beside the model
    mode: Mode = dataclasses.field(default_factory=Mode)  # what is on while the model is evaluated
    method: str | Callable[..., PyTree] | None = None  # method to call instead of the model itself
    trainable: Trainable = None  # which leaves are differentiated
    inputs: Selector = None  # selects what the model gets of `x`
    output: Selector = None  # selects of what the model returns
    # Keyword arguments of every call of the model.
    call_kwargs: Mapping[str, PyTree] = dataclasses.field(default_factory=dict)
    unpack: bool = False  # spread `x` over the arguments of the model
    check: bool = True  # refuse NaN and infinity
    # Arguments that only some libraries know, as given.
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def require_valid(self) -> None:
        """Refuse arguments that fit no model at all."""
        name = self.mode.name
        if name not in MODES:
            raise errors.InvalidInputError(
                expected=" or ".join(f'mode="{mode}"' for mode in MODES),
                got=f"mode={name!r}",
                do="Choose one of them.",
            )
        for argument in ("output", "inputs"):
            value = getattr(self, argument)
            if value is not None and not isinstance(value, str) and not callable(value):
                raise errors.InvalidInputError(
                    expected=f"`{argument}` to be a path, or a function",
                    got=f"{argument}={value!r}",
                    do='Pass "logits", "0" for the first of a tuple, or lambda y: y[:, -1], say.',
                )

    def require_options(self, known: tuple[str, ...]) -> None:
        """Refuse an option that means nothing for this library, which has the `known` ones."""
        unknown = [name for name in self.options if name not in known]
        if not unknown:
            return
        expected = "no option of a particular library"
        if known:
            expected += f" but {', '.join(known)}"
        raise errors.InvalidInputError(
            expected=expected,
            got=", ".join(f"{name}=" for name in unknown),
            do="Leave it out: it belongs to another library, or is called trainable=, mode=, rngs= "
            "(linen, NNX) or key= (Equinox) here.",
        )

    def require_no_variables(self) -> None:
        """Refuse variables beside a model that carries its own."""
        if self.variables is not None:
            raise errors.InvalidInputError(
                expected="the model alone, because it carries its own parameters",
                got=f"a second argument, {type(self.variables).__name__}",
                do="Leave it out; other values go in with Functional.with_params.",
            )

    def argument(self, name: str, kwargs: Mapping[str, PyTree]) -> PyTree:
        """An argument of this call, else of every call, else of `functionalize`."""
        return {**self.options, **self.call_kwargs, **kwargs}.get(name)

    def without_variables(self) -> "ModelRequest":
        """The request without the parameters, for functions that must not keep them alive."""
        return dataclasses.replace(self, variables=None)

    def in_mode(self, mode: Mode, **keys: PyTree) -> "ModelRequest":
        """The same in another mode, without switches that contradict it, with keys if missing."""
        call_kwargs = {}
        for name, value in self.call_kwargs.items():
            if not isinstance(value, bool) or mode.switches.get(name, value) == value:
                call_kwargs[name] = value
        options = dict(self.options)
        for name, key in keys.items():
            if mode.trains and options.get(name) is None:
                options[name] = key
        return dataclasses.replace(
            self, mode=mode, call_kwargs=call_kwargs, options=options, check=False
        )

    def method_of(self, model: object) -> Callable[..., Any]:
        """The method of a model (or of a copy of it) that is to be called."""
        method = self.method or "__call__"
        if not isinstance(method, str):
            return functools.partial(method, model)  # a function of the model, not yet bound to it
        bound = getattr(model, method, None)
        if bound is None:
            raise errors.InvalidInputError(
                expected="a model that can be called, or the name of one of its methods in "
                "`method=`",
                got=f"{type(model).__name__} without {method}",
                do="Pass method= the name of the method that maps a batch to outputs.",
            )
        return bound

    def call_arguments(
        self, method: Callable[..., PyTree], x: PyTree, kwargs: Mapping[str, PyTree]
    ) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
        """Positional and keyword arguments for a call; those of the call win over earlier ones."""
        positional, named = self.spread(x)
        # 1. A method gets only those switches that its signature has; others would be refused.
        parameters = parameters_of(method)
        switches = self.mode.switches
        keywords = {name: value for name, value in switches.items() if name in parameters}
        # 2. Values of the user win; those of this call win over those of `functionalize`.
        keywords |= {**self.call_kwargs, **named, **kwargs}
        self._require_no_contradiction(keywords)
        return positional, keywords

    def spread(self, x: PyTree) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
        """What the model gets of `x`: one argument, or with `unpack` several."""
        x = select(self.inputs, x)
        if not self.unpack:
            return (x,), {}
        if isinstance(x, Mapping):
            return (), dict(x)
        return tuple(x), {}

    def _require_no_contradiction(self, keywords: Mapping[str, PyTree]) -> None:
        """Refuse a switch between training and evaluation that is not as the mode has it."""
        for name, in_mode in self.mode.switches.items():
            value = keywords.get(name)
            if isinstance(value, bool) and value != in_mode:
                # The argument contradicts the mode.
                meant = 'mode="eval"'
                if not self.mode.trains:
                    meant = 'mode="train" or mode="dropout"'
                raise errors.InvalidInputError(
                    call=f'functionalize(model, mode="{self.mode.name}")',
                    expected=f"{name}={in_mode}, as the mode requires",
                    got=f"{name}={value}",
                    do=f"Leave the argument out, or choose {meant} if you mean that.",
                )

    def as_keywords(self) -> dict[str, Any]:
        """The arguments that were given, for an adapter that need not know all of them."""
        # Defaults are left out.
        keywords: dict[str, Any] = {}
        if self.mode.name != "eval":
            keywords["mode"] = self.mode.name
        for name in ("method", "trainable", "inputs", "output"):
            value = getattr(self, name)
            if value is not None:
                keywords[name] = value
        if self.call_kwargs:
            keywords["call_kwargs"] = self.call_kwargs
        if self.unpack:
            keywords["unpack"] = True
        if not self.check:
            keywords["check"] = False
        return {**keywords, **self.options}


def as_key(key: PyTree) -> PyTree:
    """Make a key of a seed; keys and None stay."""
    if isinstance(key, int | np.integer):
        return jax.random.key(key)
    return key


def parameters_of(function: Callable[..., PyTree]) -> Mapping[str, inspect.Parameter]:
    """The parameters of a function by name."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # some compiled callables have none
        return {}


# A switch that sits in a config object, or has a name of its own, is not set in eval mode: dropout
# stays on, and a kernel that says "eval" would be that of a thinned network. So wherever a model in
# eval mode has keys to draw from, it is traced once as a function of these, and what the outputs do
# not need is taken out of the trace: a key that is drawn and not used harms nobody.


def require_no_key_in_outputs(
    evaluate: Callable[[PyTree], PyTree], keys: PyTree, request: ModelRequest, x: PyTree
) -> None:
    """Refuse a model in eval mode whose outputs, `evaluate(keys)`, depend on its keys."""

    def outputs_of(keys: PyTree) -> PyTree:
        return as_pytree(select(request.output, evaluate(keys), x))

    if jax.tree.leaves(keys) and needs_inputs(outputs_of, keys):
        raise errors.InvalidInputError(
            call='functionalize(model, mode="eval")',
            expected="outputs without random numbers in eval mode",
            got="a model that draws random numbers for them",
            do="Switch its random layers off where the model is made or in call_kwargs=; for a "
            'kernel with dropout on, choose mode="dropout".',
        )
