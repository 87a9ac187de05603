"""The linearized network as a model of the same library, to be trained by the same optimizer.

Three steps: the model becomes a function of parameters (`functionalize`); that is expanded where
it stands, or at a checkpoint (`Expansion`); and the expansion is wrapped as a module of the library
the model came from. The wrappers are in files of their own, each of which imports its library.
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
from ntkdiag.linearization.taylor import linearize, require_degree, taylor_expand
from ntkdiag.models import functionalize, paths
from ntkdiag.models.functional import Functional
from ntkdiag.models.mode import Mode
from ntkdiag.models.request import parameters_of

# Arguments under which the libraries take random keys.
_KEYS = ("rngs", "key")


# The mode of a linear model was fixed when it was made: switches between training and evaluation
# that a loop passes are left out, and so are random keys where nothing is drawn.
@dataclasses.dataclass(frozen=True)
class CallArguments:
    """The further arguments of a network's call."""

    names: tuple[str, ...] = ()  # what follows x, in its order
    draws: bool = False  # whether the mode of the linear model draws random numbers

    @classmethod
    def of(
        cls, network: object, method: str | Callable[..., PyTree] | None, *, draws: bool
    ) -> "CallArguments":
        """Read the names off the method of a network that the linear model stands for."""
        if method is None or isinstance(method, str):
            call = getattr(network, method or "__call__")
        else:
            call = functools.partial(method, network)
        names = []
        for name, parameter in parameters_of(call).items():
            if parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
                names.append(name)
        return cls(tuple(names[1:]), draws)

    def needed(
        self, positional: tuple[PyTree, ...], keywords: dict[str, PyTree]
    ) -> dict[str, PyTree]:
        """By name those of the arguments after x that the linear model needs."""
        if len(positional) > len(self.names):
            raise errors.InvalidInputError(
                call="linearized_model(...)(x, ...)",
                expected=f"the arguments of the network after x: {', '.join(self.names) or 'none'}",
                got=f"{len(positional)} of them",
                do="Pass arguments by the names that the network has.",
            )
        by_name: dict[str, Any] = dict(zip(self.names, positional, strict=False))
        by_name.update(keywords)
        not_needed = set(Mode().switches)
        if not self.draws:
            not_needed.update(_KEYS)
        return {name: value for name, value in by_name.items() if name not in not_needed}


@dataclasses.dataclass(frozen=True, eq=False)
class Expansion:
    """What a linearized model keeps fixed; compared by identity."""

    # The network, its expansion point `functional.params`, and the way back `functional.restore`.
    functional: Functional
    degree: int  # order of the expansion
    function: Callable[..., PyTree]  # `f_lin(p, x, **kwargs)`
    start: PyTree  # the parameters at which the model begins

    def network(self, params: PyTree) -> Any:
        """Put trained parameters back into the network itself."""
        return self.functional.restore(params)

    def __repr__(self) -> str:
        return f"Expansion(degree {self.degree} of {self.functional!r})"


@errors.public
def linearized_model(
    model: Any,
    variables: Any = None,
    *,
    degree: int | np.integer = 1,
    at: Any = None,
    start: Any = None,
    **options: Any,
) -> Any:
    """Linearize a model and return it as a model of the same library.

    p -> f(theta_0, x) + J(x) (p - theta_0) by one `jax.jvp`, with theta_0 the parameters passed.
    It starts at p = theta_0.

    - Flax linen: a linen module; `init` returns theta_0 under ``"params"`` whatever the key, beside
      the other collections of the network; `apply` evaluates.
    - Flax NNX: an NNX module; its trainable variables are those of `.model`, a copy of the network
      that holds p.
    - Equinox: an Equinox module with the trainable leaves p in `.params`, called like the network
      (one example, or the batch with ``batched=True``).
    - A callable `f(params, x)`: the function `f_lin(p, x)`.

    Everything that is no trainable parameter (running statistics, random streams) is held at its
    present value, in eval mode unless ``mode="train"`` is passed. `lin.network(...)` puts trained
    parameters into the network itself: `lin.network(variables)` for linen, `lin.network()` for NNX
    and Equinox.

    It goes through the training loop of the network: calls take the further arguments of the
    network's, switches such as `train=True` (which have no effect: the mode is that of `mode=`),
    and keys, which are drawn from if the mode has dropout on. For linen `mutable=` and collections
    beside ``"params"`` are accepted, for Equinox a state; both come back as they went in.

    Cost of a call: about two forward passes (2^degree for a Taylor model).

    Args:
        model: As for `functionalize`.
        variables: As for `functionalize`.
        degree: 1 for the linear model, higher for a Taylor model.
        at: Where to expand instead: parameters, such as `load_params` reads from a checkpoint, or
            the library's own object later in training. Parameters that are not linearized stay the
            model's.
        start: Where p begins instead of theta_0, given like `at`: with B here the model is f_lin
            around A at B.
        **options: Passed to `functionalize`: `trainable` (which parameters are linearized), `mode`,
            `method`, and so on.

    Returns:
        The linear model.

    Raises:
        UnsupportedModelError: For a model of a library without a linear counterpart here.
        StructureError: When `at` or `start` are no parameters of this model.
        InvalidInputError: When the degree is no integer of 0 or more, `start` is given for a
            callable, or as `functionalize`.

    Example:
        >>> import jax.numpy as jnp
        >>> f_lin = linearized_model(lambda p, x: x @ jnp.sin(p), jnp.zeros((2, 1)))
        >>> print(f_lin(jnp.ones((2, 1)), jnp.ones((1, 2))))  # sin(p) is p to first order at 0
        [[2.]]
    """
    # The model as a function, and the two points: where it is expanded, and where training begins.
    degree = require_degree(degree)
    functional = functionalize(model, variables, **options)
    if at is not None:
        functional = functional.with_params(_parameters_in(functional, at))
    beginning = functional.params
    if start is not None:
        beginning = functional.with_params(_parameters_in(functional, start)).params

    # Its Taylor model.
    f, params = functional
    if degree == 1:
        function = linearize(f, params)
    else:
        function = taylor_expand(f, params, degree)
    expansion = Expansion(functional, degree, function, beginning)

    # As a model of its library. A function cannot hold parameters, so it has no start.
    if functional.library == "callable":
        if start is not None:
            raise errors.InvalidInputError(
                expected="no `start` for a function, which takes its parameters in every call",
                got="start=",
                do="Call the result with these parameters.",
            )
        return function
    return _as_module(expansion, model, variables, options)


def _parameters_in(functional: Functional, source: PyTree) -> PyTree:
    """The parameters of a model in a tree that may hold more, or in the library's own object."""
    # A tree that has them all, by path; it may hold others, such as those held fixed.
    needed = paths.leaves_by_path(functional.params)
    available = paths.leaves_by_path(source)
    if needed.keys() <= available.keys():
        leaves = [available[path] for path in needed]
        return jax.tree.unflatten(jax.tree.structure(functional.params), leaves)
    # The library's own object is read by the library. A dictionary without "params" is no variables
    # dictionary of linen: `with_params` refuses it, and says by path what is missing.
    lacks_params = isinstance(source, dict) and "params" not in source
    if functional.extract is None or (functional.library == "linen" and lacks_params):
        return source
    return functional.extract(source)


def _as_module(expansion: Expansion, model: Any, variables: Any, options: Mapping[str, Any]) -> Any:
    """The expansion as a module of the library that its network came from."""

    def arguments_of(network: object) -> CallArguments:
        draws = expansion.functional.mode != "eval"
        # If x is spread over several arguments, the names after it are not known.
        if options.get("unpack") or isinstance(model, Functional):
            return CallArguments(draws=draws)
        return CallArguments.of(network, options.get("method"), draws=draws)

    # Each file imports its library: only that of the network is needed.
    library = expansion.functional.library
    if library == "linen":
        from ntkdiag.linearization.linen_model import LinearizedLinen
        from ntkdiag.models.linen import module_behind

        network, _ = module_behind(model, variables)
        return LinearizedLinen(expansion, arguments_of(network))
    if library == "nnx":
        from ntkdiag.linearization.nnx_model import LinearizedNNX

        return LinearizedNNX(expansion, arguments_of(model))
    if library == "equinox":
        from ntkdiag.linearization.equinox_model import LinearizedEquinox

        arguments = arguments_of(model)
        stateful = options.get("state") is not None
        if stateful:  # the state follows x
            arguments = dataclasses.replace(arguments, names=arguments.names[1:])
        batched = bool(options.get("batched"))
        return LinearizedEquinox(expansion.start, expansion, batched, arguments, stateful)
    raise errors.UnsupportedModelError(
        expected="a Flax linen module, a Flax NNX model, an Equinox module, or a callable "
        "f(params, x)",
        got=f"a {library} model",
        do="Use `f, params = functionalize(model)` and train `linearize(f, params)`.",
    )
