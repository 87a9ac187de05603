"""Keras 3 models on JAX as a Functional, by `stateless_call`.

A call hands all variables in and throws away what the model writes, so that the model itself is
never changed. Values are copied when the Functional is made: `fit` gives the buffers of the model
away. One switch of Keras (`training`) is for normalisation and dropout alike; ntkdiag has modes in
which they differ, and there the BatchNormalization layers are told apart for the time of the call.
"""

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
from jaxtyping import PyTree

import ntkdiag
from ntkdiag import errors
from ntkdiag_keras.backend import require_jax
from ntkdiag_keras.variables import flat, nested, variables_of

Leaves = dict[str, Any]  # path -> array

# What plain functions have, too: the parameters are chosen and the outputs selected by ntkdiag.
_OPTIONS = ("trainable", "inputs", "output", "call_kwargs", "unpack", "check")
_MODES = ("eval", "dropout", "train")


@errors.public
def functionalize(
    model: keras.Layer,
    variables: None = None,
    *,
    mode: str = "eval",
    statistics: PyTree = None,
    **options: Any,
) -> ntkdiag.Functional:
    """Turn a Keras model into a pure function `f(params, x, **kwargs)`, and its parameters.

    `ntkdiag.functionalize` comes here with a Keras model. The parameters are nested dictionaries by
    the names of layers, without that of the model and without the numbers that Keras counts up in a
    process: ``params["dense_1"]["kernel"]``. Running statistics, seeds of dropout and frozen
    layers are in `fixed`. The model is never changed; what is random in it draws from the seeds as
    they were, the same at every call.

    Cost: a copy of all variables.

    Args:
        model: A built functional, sequential or subclassed model, or a layer.
        variables: Not for Keras, whose models carry their own.
        mode: ``"eval"``, ``"dropout"`` or ``"train"``, as for `ntkdiag.functionalize`.
        statistics: In train mode, a batch whose normalisation statistics are held fixed.
        **options: `trainable`, `inputs`, `output`, `call_kwargs`, `unpack` and `check` of
            `ntkdiag.functionalize`. What is trainable is by default what `fit` trains: the weights
            of layers that are not frozen. A glob may choose frozen ones, too, but no statistics.

    Returns:
        The Functional. `restore` gives a new model (of `keras.models.clone_model`), `extract` takes
        a model of the same layers.

    Raises:
        InvalidInputError: The model is not built, Keras does not run on JAX, or an argument does
            not fit.
        UnsupportedModelError: `restore` of a model that Keras cannot clone.
    """
    require_jax(model)
    _require_built(model)
    if variables is not None:
        raise errors.InvalidInputError(
            expected="the model alone, because it carries its own parameters",
            got=f"a second argument, {type(variables).__name__}",
            do="Leave it out; other values go in with Functional.with_params.",
        )
    unknown = [name for name in options if name not in _OPTIONS]
    if unknown:
        raise errors.InvalidInputError(
            expected=f"for a Keras model no options but mode, statistics, {', '.join(_OPTIONS)}",
            got=", ".join(f"{name}=" for name in unknown),
            do="Leave it out. Seeds of dropout are among what is held fixed: see "
            "Functional.with_fixed. To call another method, wrap it in a keras.Model.",
        )
    if mode not in _MODES or (statistics is not None and mode != "train"):
        raise errors.InvalidInputError(
            expected='mode="eval", "dropout" or "train", and statistics= in train mode only',
            got=f"mode={mode!r}" + ("" if statistics is None else " and statistics="),
            do="Choose one of them.",
        )
    chosen = options.pop("trainable", None)
    source = _Source.of(model, {**options, "trainable": chosen})
    return source.functional(
        source.values(source.weights), source.values(source.state), _Mode(mode, statistics)
    )


@dataclasses.dataclass(frozen=True)
class _Mode:
    """What is on while the model is evaluated, as the modes of ntkdiag say it."""

    name: str
    statistics: PyTree = None
    without_dropout: bool = False

    def __str__(self) -> str:
        parts = [self.name]
        if self.without_dropout:
            parts.append("no dropout")
        if self.statistics is not None:
            parts.append("fixed statistics")
        return ", ".join(parts)


@dataclasses.dataclass(frozen=True, eq=False)
class _Source:
    """A model whose variables are handed in.

    Attributes:
        model: The model of the user, which is called and never changed.
        weights: Path -> variable that can be trained.
        state: Path -> variable that cannot.
        options: Those of `ntkdiag.functionalize` for a plain function.
    """

    model: keras.Layer
    weights: dict[str, keras.Variable]
    state: dict[str, keras.Variable]
    options: dict[str, Any]

    @staticmethod
    def of(model: keras.Layer, options: dict[str, Any]) -> "_Source":
        """A model, with what it trains where nothing else was chosen."""
        weights, state = variables_of(model)
        if options["trainable"] is None:
            trained = {id(variable) for variable in model.trainable_variables}
            mask = {path: id(variable) in trained for path, variable in weights.items()}
            options = {**options, "trainable": nested(mask)}
        return _Source(model, weights, state, options)

    def values(self, variables: Mapping[str, keras.Variable]) -> Leaves:
        """Copies of the values of variables."""
        return {path: jnp.array(variable.value) for path, variable in variables.items()}

    def functional(
        self, weights: Leaves, state: Leaves, mode: Any, *, check: bool | None = None
    ) -> ntkdiag.Functional:
        """The Functional of these values in a mode."""
        options = dict(self.options)
        if check is not None:
            options["check"] = check
        held = state
        if mode.statistics is not None:
            held = state | self._batch_statistics(weights, state, mode, options)

        def f(weights: PyTree, *args: PyTree, **kwargs: PyTree) -> PyTree:
            _require_arrays((args, kwargs))
            values = flat(weights) | held

            def call(args: PyTree, kwargs: PyTree) -> PyTree:
                return self._call(values, mode, args, kwargs)

            shares_mask = mode.name == "dropout" or mode.statistics is not None
            is_random = shares_mask and not mode.without_dropout
            return _one_by_one(call, args, kwargs) if is_random else call(args, kwargs)

        plain = ntkdiag.functionalize(f, nested(weights), **options)
        apply: Any = plain.apply
        extract_tree: Any = plain.extract

        def full(params: PyTree) -> Leaves:
            return flat(plain.restore(params))

        def extract(source: PyTree) -> PyTree:
            if isinstance(source, keras.Layer):
                source = nested(self.values(variables_of(source).weights))
            return extract_tree(source)

        def rebuild(params: PyTree, values: Mapping[str, PyTree]) -> ntkdiag.Functional:
            arrays = {path: jnp.asarray(value) for path, value in values.items()}
            new_weights = {path: arrays.get(path, leaf) for path, leaf in full(params).items()}
            new_state = {path: arrays.get(path, leaf) for path, leaf in state.items()}
            return self.functional(new_weights, new_state, mode, check=False)

        def in_mode(params: PyTree, mode: Any) -> ntkdiag.Functional:
            return self.functional(full(params), state, mode, check=False)

        return dataclasses.replace(
            plain,
            apply=dataclasses.replace(apply, library="keras", mode=str(mode)),
            restore=lambda params: self._restored(full(params) | state),
            extract=extract,
            library="keras",
            mode=str(mode),
            name=type(self.model).__name__,
            fixed={**plain.fixed, **held},
            rebuild=rebuild,
            has_batch_statistics=bool(self._batch_norms()),
            in_mode=in_mode,
        )

    def _call(self, values: Leaves, mode: Any, args: PyTree, kwargs: PyTree) -> PyTree:
        """Call the model with these values."""
        by_batch = mode.name == "train" and mode.statistics is None
        with _training_of(self._batch_norms(), by_batch):
            outputs, _ = self._stateless_call(values, mode, args, kwargs)
        return outputs

    def _stateless_call(
        self, values: Leaves, mode: Any, args: PyTree, kwargs: PyTree
    ) -> tuple[PyTree, list[Any]]:
        """Outputs, and new values of what is not trained, as `fit` computes them."""
        if self._takes_training:
            is_training = mode.name != "eval" and not mode.without_dropout
            kwargs = {"training": is_training, **kwargs}
        model = self.model
        # Lists are made anew: they depend on what is frozen, which the user may have changed.
        by_id = {id(v): values[path] for path, v in (self.weights | self.state).items()}
        trainable = [by_id[id(variable)] for variable in model.trainable_variables]
        others = [by_id[id(variable)] for variable in model.non_trainable_variables]
        return model.stateless_call(trainable, others, *args, **kwargs)

    @functools.cached_property
    def _takes_training(self) -> bool:
        """Whether the model has the switch: `fit` hands it to no others."""
        return "training" in inspect.signature(self.model.call).parameters

    def _batch_norms(self) -> list[keras.layers.BatchNormalization]:
        """The layers that normalise by the batch in training; frozen ones do not."""
        if not self._takes_training:
            return []
        norms = []
        for layer in self.model._flatten_layers():
            if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
                norms.append(layer)
        return norms

    def _batch_statistics(
        self, weights: Leaves, state: Leaves, mode: Any, options: Mapping[str, Any]
    ) -> Leaves:
        """The statistics that a training step on a batch would normalise with, by path."""
        norms = self._batch_norms()
        if not norms or any(layer.renorm for layer in norms):
            raise errors.InvalidInputError(
                expected="BatchNormalization layers, without renorm, where `statistics=` is given",
                got="none in it" if not norms else "renorm=True",
                do='Leave `statistics=` out: mode="dropout" is train mode without statistics of a '
                "batch.",
            )
        wanted = set()
        for layer in norms:
            wanted |= {id(layer.moving_mean), id(layer.moving_variance)}

        def f(weights: PyTree, *args: PyTree, **kwargs: PyTree) -> PyTree:
            # Without momentum, running averages take all from the batch.
            with _training_of(norms, True), _without_momentum(norms):
                _, new = self._stateless_call(flat(weights) | state, mode, args, kwargs)
            updated = zip(self.model.non_trainable_variables, new, strict=True)
            by_id = {id(variable): value for variable, value in updated}
            return {path: by_id[id(v)] for path, v in self.state.items() if id(v) in wanted}

        selecting = {**options, "output": None}
        plain = ntkdiag.functionalize(f, nested(weights), **selecting)
        return dict(plain(plain.params, mode.statistics))

    def _restored(self, values: Leaves) -> keras.Layer:
        """A new model of these values."""
        try:
            restored = keras.models.clone_model(self.model)
            weights, state = variables_of(restored)
            variables = weights | state
            if variables.keys() != values.keys():
                raise ValueError(f"its copy has {', '.join(variables) or 'no variables'}")
        except Exception as error:
            raise errors.UnsupportedModelError(
                call="Functional.restore(params)",
                expected="a model that keras.models.clone_model copies",
                got=f"{type(self.model).__name__}: {error}",
                do="Give the class get_config(), or assign the arrays to a model of your own: "
                "ntkdiag_keras.functionalize names its variables by the same paths.",
            ) from error
        for path, variable in variables.items():
            variable.assign(values[path])
        return restored


def _require_built(model: object) -> None:
    """Refuse what is no model, or one without variables yet."""
    if not isinstance(model, keras.Layer):
        raise errors.UnsupportedModelError(
            expected="a Keras model or layer", got=type(model).__name__, do="Pass the model."
        )
    # `build` of a subclassed model may mark it as built, and leave the layers inside as they are.
    is_empty = not model.variables and not all(part.built for part in model._flatten_layers())
    if not model.built or is_empty:
        raise errors.InvalidInputError(
            expected="a built model, whose variables exist",
            got=f"{type(model).__name__} without variables yet",
            do="Call it on a batch first, model(x), or model.build(shape).",
        )


def _require_arrays(inputs: PyTree) -> None:
    """Refuse tensors of other frameworks, which Keras converts by rules of its own."""
    for leaf in jax.tree.leaves(inputs):
        if isinstance(leaf, jax.Array | np.ndarray | np.generic | bool | int | float | str):
            continue
        framework, _, _ = type(leaf).__module__.partition(".")
        raise errors.InvalidInputError(
            expected="x of NumPy or JAX arrays",
            got=f"a {type(leaf).__name__} of {framework}",
            do="Pass x.numpy() (TensorFlow), x.detach().cpu().numpy() (torch), or the data itself "
            "in place of a symbolic keras.Input.",
        )


def _one_by_one(call: Callable[[PyTree, PyTree], PyTree], args: PyTree, kwargs: PyTree) -> PyTree:
    """Evaluate every example as a batch of one, so that all of them draw the same mask."""

    def of_one(example: PyTree) -> PyTree:
        batch = jax.tree.map(lambda leaf: leaf[None], example)  # [...] -> [1 ...]
        return jax.tree.map(lambda leaf: leaf[0], call(batch, kwargs))

    return jax.vmap(of_one)(jax.tree.map(jnp.asarray, args))


@contextlib.contextmanager
def _training_of(norms: list[keras.layers.BatchNormalization], training: bool) -> Iterator[None]:
    """Let these layers normalise by the batch or by running statistics, whatever others do."""

    def call(layer: keras.layers.BatchNormalization, inputs: PyTree, **kwargs: PyTree) -> PyTree:
        return type(layer).call(layer, inputs, **{**kwargs, "training": training})

    # Past the bookkeeping of Keras, which takes note of every attribute.
    for layer in norms:
        object.__setattr__(layer, "call", functools.partial(call, layer))
    try:
        yield
    finally:
        for layer in norms:
            object.__delattr__(layer, "call")


@contextlib.contextmanager
def _without_momentum(norms: list[keras.layers.BatchNormalization]) -> Iterator[None]:
    """Let running averages be those of the last batch."""
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(norms, momenta, strict=True):
            layer.momentum = momentum
