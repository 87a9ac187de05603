"""Equinox modules: floating arrays are differentiated, everything else is held fixed.

A module that takes one example, which is the convention of Equinox, is mapped over the batch with
`jax.vmap`; one that takes the batch (`batched=True`) is called on it. Stateful layers get a fresh
copy of the same state in every call, and random ones a key: one for all examples or, in train
mode, one for each.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import TypeAlias

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import call_f, errors
from ntkdiag.models import equinox_norm, paths
from ntkdiag.models.array_leaves import copied
from ntkdiag.models.functional import Apply, Functional
from ntkdiag.models.mode import Mode, one_by_one
from ntkdiag.models.partition import partition
from ntkdiag.models.request import ModelRequest, as_key, parameters_of, require_no_key_in_outputs
from ntkdiag.models.selectors import as_pytree


def adapt(module: eqx.Module, request: ModelRequest) -> Functional:
    """Turn an Equinox module into a Functional; options: `batched`, `state`, `key`, `axis_name`."""
    request.require_options(("batched", "state", "key", "axis_name"))
    request.require_no_variables()
    request.method_of(module)  # refuses a method that does not exist, before anything is computed
    state = request.options.get("state")
    _require_state(module, state)
    # `part` keeps the leaves that are held fixed, and puts them back beside params.
    params, part = partition(module, request.trainable, check=request.check)
    _warn_of_tied_arrays(params)

    expected_axis_name = equinox_norm.axis_name(module)
    axis_name = request.options.get("axis_name") or expected_axis_name
    evaluation = _BatchEvaluation(request, axis_name)
    state = copied(state)
    # A State can be used once, also by the user: keep its leaves, and build one for every call.
    state_leaves, state_structure = jax.tree.flatten(state)

    def function(params: PyTree, x: PyTree, **kwargs: PyTree) -> PyTree:
        model = eqx.nn.inference_mode(part.merge(params), value=not request.mode.trains)
        if request.mode.shares_mask:
            model = equinox_norm.with_running_statistics(model)
        if request.mode.without_dropout:
            model = equinox_norm.without_dropout(model)

        def outputs_with(kwargs: Mapping[str, PyTree]) -> PyTree:
            fresh_state = jax.tree.unflatten(state_structure, state_leaves)
            return evaluation.outputs(model, fresh_state, x, kwargs)

        if not request.mode.trains:
            key = as_key(request.argument("key", kwargs))
            require_no_key_in_outputs(
                lambda key: outputs_with({**kwargs, "key": key}), key, request, x
            )
        return outputs_with(kwargs)

    held_state = _state_by_path(module, jax.tree.unflatten(state_structure, state_leaves))

    def rebuild(params: PyTree, values: Mapping[str, PyTree]) -> Functional:
        # A module holds some of the fixed arrays, its State the others.
        leaves = [values.get(path, leaf) for path, leaf in held_state.items()]
        options = {**request.options, "state": jax.tree.unflatten(state_structure, leaves)}
        changed = paths.with_leaves(part.restore(params), values)
        return adapt(changed, dataclasses.replace(request, options=options, check=False))

    def in_mode(params: PyTree, mode: Mode) -> Functional:
        # A module that takes no key is given none.
        keys: dict[str, PyTree] = {}
        if "key" in parameters_of(request.method_of(module)):
            keys["key"] = jax.random.key(0)
        options = {**request.options, "state": jax.tree.unflatten(state_structure, state_leaves)}
        changed = dataclasses.replace(request, options=options)
        return adapt(part.restore(params), changed.in_mode(mode, **keys))

    return Functional(
        apply=Apply(function, "equinox", str(request.mode), request.output, request.unpack),
        params=params,
        restore=part.restore,
        library="equinox",
        mode=str(request.mode),
        name=type(module).__name__,
        fixed=part.fixed | held_state,
        extract=part.extract,
        rebuild=rebuild,
        has_batch_statistics=bool(equinox_norm.nodes_of_type(module, eqx.nn.StateIndex)),
        in_mode=in_mode,
    )


# A module on what it takes, an example or a batch: (x, key) -> outputs.
_Call: TypeAlias = Callable[[PyTree, PyTree], PyTree]


@dataclasses.dataclass(frozen=True, eq=False)
class _BatchEvaluation:
    """How a module is evaluated on a batch, whether it takes one or a single example."""

    request: ModelRequest  # what was asked for
    axis_name: Hashable | None  # name of the axis of examples, for batch normalization

    def outputs(
        self, model: eqx.Module, state: PyTree, x: PyTree, kwargs: Mapping[str, PyTree]
    ) -> PyTree:
        """The outputs of a batch in the mode that was asked for."""
        evaluate, key = self._call_and_key(model, state, kwargs)
        if self.request.mode.shares_mask:
            if not self._takes_batch:
                # The same key for all examples draws the same mask for all.
                return self._on_examples(evaluate, x, key, key_axis=None)
            # A module that takes a batch draws a mask for every row: give it batches of one row.
            return one_by_one(lambda batch_of_one: self._on_batch(evaluate, batch_of_one, key), x)
        if self._takes_batch:
            return self._on_batch(evaluate, x, key)
        if key is None:
            return self._on_examples(evaluate, x, None, key_axis=None)
        keys = jax.random.split(key, _count_examples(x))
        return self._on_examples(evaluate, x, keys, key_axis=0)

    @property
    def _takes_batch(self) -> bool:
        """Whether the module was said to take a batch, not one example."""
        return bool(self.request.options.get("batched"))

    def _call_and_key(
        self, model: eqx.Module, state: PyTree, kwargs: Mapping[str, PyTree]
    ) -> tuple[_Call, PyTree]:
        """The call of the module, and the key: that of this call of f, else that of the request."""
        kwargs = dict(kwargs)
        key = as_key(kwargs.pop("key", self.request.options.get("key")))
        method = self.request.method_of(model)

        def evaluate(x: PyTree, key: PyTree) -> PyTree:
            positional, keywords = self.request.call_arguments(method, x, kwargs)
            if key is not None:
                keywords["key"] = key
            # Stateful layers take the state last, and return the new one beside the outputs.
            if state is not None:
                positional = (*positional, state)
            returned = method(*positional, **keywords)
            outputs = returned if state is None else returned[0]
            return as_pytree(outputs)

        return evaluate, key

    def _on_batch(self, evaluate: _Call, x: PyTree, key: PyTree) -> PyTree:
        """Hand a batch as it is to a module that takes one."""
        with _refusing_input("a module that takes the batch, because batched=True", "x", x):
            outputs = evaluate(x, key)
        # A module of one example would misread the first axis of the batch: refuse it if no output
        # has a first axis as long as that of an input.
        lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(x)}
        output_lengths = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(outputs)}
        if lengths.isdisjoint(output_lengths):
            shapes = [np.shape(leaf) for leaf in jax.tree.leaves(outputs)]
            raise _wrong_batch_error(
                "a module that keeps the leading axis of the batch, because batched=True",
                _written(shapes),
            )
        return outputs

    def _on_examples(
        self, evaluate: _Call, x: PyTree, keys: PyTree, *, key_axis: int | None
    ) -> PyTree:
        """Map a module of one example over the batch; keyword arguments are the same for all."""
        _count_examples(x)  # refuses what has no axis of examples
        one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf)[1:], leaf.dtype), x)
        with _refusing_input("a module that takes one example, x[i]", "examples", one):
            return jax.vmap(evaluate, in_axes=(0, key_axis), axis_name=self.axis_name)(x, keys)


@contextlib.contextmanager
def _refusing_input(expected: str, name: str, x: PyTree) -> Iterator[None]:
    """Where a module is called whose input may have a batch axis too many, or one too few."""
    try:
        yield
    except (errors.NtkdiagError, jax.errors.JAXTypeError, jax.errors.JAXIndexError):
        # Our own errors, and those of tracing, say what is wrong.
        raise
    except (TypeError, ValueError, IndexError) as error:
        if isinstance(error, TypeError) and call_f.missing_arguments(error):
            raise  # an argument is missing, and not an axis
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(x)]
        reason = str(error).rstrip(".")
        got = f"{name} of shape {_written(shapes)}, which it refused with: {reason}"
        raise _wrong_batch_error(expected, got) from error


def _count_examples(x: PyTree) -> int:
    """The length of the axis that all arrays of x have to begin with."""
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(x)]
    lengths = {shape[:1] for shape in shapes}
    if len(lengths) != 1 or () in lengths:
        raise _wrong_batch_error(
            "x with one leading axis of examples", f"x of shape {_written(shapes)}"
        )
    return shapes[0][0]


def _wrong_batch_error(expected: str, got: str) -> errors.InvalidInputError:
    """The error for a module and an `x` of which one has a batch axis and the other has not."""
    return errors.InvalidInputError(
        expected=expected,
        got=got,
        do="Pass batched=True to functionalize for a module that takes a batch, batched=False for "
        "one that takes a single example, as those of Equinox do.",
    )


def _written(shapes: list[tuple[int, ...]]) -> str:
    """Shapes for a message."""
    return " and ".join(str(shape) for shape in shapes) or "()"


def _require_state(module: eqx.Module, state: PyTree) -> None:
    """Refuse stateful layers without a state, and a state that was used up."""
    indices = equinox_norm.nodes_of_type(module, eqx.nn.StateIndex)
    got = ""
    if state is None and indices:
        got = f"{len(indices)} entries of stateful layers and state=None"
    try:
        jax.tree.leaves(state)
    except ValueError:  # equinox marks a State that was used once
        got = "a state that was used up by a call of the module"
    if got:
        raise errors.InvalidInputError(
            expected="a state for the stateful layers of this module",
            got=got,
            do="Pass state=, the second result of equinox.nn.make_with_state or of the last call "
            "of the module; ntkdiag.compare takes both as (module, state).",
        )


def _state_by_path(module: eqx.Module, state: PyTree) -> dict[str, PyTree]:
    """The arrays of a state: those of batch normalization by their layer, others by number."""
    names: dict[int, str] = {}  # identity of an array -> its path
    for path, norm in equinox_norm.batch_norms_by_path(module).items():
        for name, leaf in equinox_norm.entries_of(norm, state).items():
            # A module that is a single layer has an empty path.
            names[id(leaf)] = f"state/{path}/{name}" if path else f"state/{name}"
    leaves = {}
    for index, leaf in enumerate(jax.tree.leaves(state)):
        leaves[names.get(id(leaf), f"state/{index}")] = leaf
    return leaves


def _warn_of_tied_arrays(params: PyTree) -> None:
    """Warn of one array in two places: it would count twice, and its copies move apart."""
    path_of_array: dict[int, str] = {}
    for path, leaf in paths.leaves_by_path(params).items():
        # Biases that start as the same array of zeros are common and harmless.
        if leaf.ndim < 2:
            continue
        first_path = path_of_array.setdefault(id(leaf), path)
        if first_path != path:
            errors.warn(
                f'{errors.current_call()}: "{first_path}" and "{path}" are the same array and '
                "count as two independent parameters. Tie them with equinox.nn.Shared, or leave "
                "one out with trainable=."
            )
