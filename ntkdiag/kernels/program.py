"""A function made ready for kernels: traced once per set of shapes, compiled once per way of contracting."""

import collections
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import _compat, errors
from ntkdiag.kernels.gram import gram, symmetric_gram
from ntkdiag.tangents.factors import Dense, Factor
from ntkdiag.tangents.tangents import Tangents

_CACHE: collections.OrderedDict[Any, "Program"] = collections.OrderedDict()
_CACHE_SIZE = 64


class Program:
    """f at fixed shapes: the structure of its Jacobian and the compiled functions that compute its factors."""

    def __init__(self, f: Callable, params: Any, x: Any, kwargs: dict, *, joint: bool, call: str):
        self.joint = joint
        self.f = functools.partial(_as_vector, f, jax.tree.structure(params), _static(kwargs), joint)
        example = jax.tree.map(lambda v: jax.ShapeDtypeStruct(v.shape if joint else v.shape[1:], v.dtype), x)
        leaves = [jax.ShapeDtypeStruct(p.shape, p.dtype) for p in jax.tree.leaves(params)]
        _check_outputs(f, params, x, kwargs, joint, call)
        self.tangents = Tangents.of(self.f, leaves, _dynamic(kwargs), example)
        self.reduces = _compat.contains(self.tangents.jaxpr, "reduce_sum") and self.tangents.dtype == jnp.float32
        self.verified = False
        self._factors: dict[tuple, Callable] = {}
        self._grams: dict[Any, Callable] = {}

    @staticmethod
    def of(f: Callable, params: Any, x: Any, kwargs: dict, *, joint: bool, call: str) -> "Program":
        """The program of f at these shapes, from the cache if there is one."""
        shapes = lambda tree: (
            jax.tree.structure(tree),
            tuple((jnp.shape(v), jnp.result_type(v)) for v in jax.tree.leaves(tree)),
        )
        one = x if joint else jax.tree.map(lambda v: jax.ShapeDtypeStruct((1, *v.shape[1:]), v.dtype), x)
        static = tuple(sorted((name, repr(value)) for name, value in _static(kwargs).items()))
        x64 = jax.config.jax_enable_x64  # the same shapes trace differently
        key = (f, joint, x64, static, shapes(params), shapes(one), shapes(_dynamic(kwargs)))
        if key not in _CACHE:
            _CACHE[key] = Program(f, params, one, kwargs, joint=joint, call=call)
        _CACHE.move_to_end(key)
        while len(_CACHE) > _CACHE_SIZE:
            _CACHE.popitem(last=False)
        return _CACHE[key]

    def factors(self, ways: tuple[str, ...], params: Any, basis: jax.Array, kwargs: dict, x: Any) -> tuple:
        """Factors of a batch and f(x) [n C]; not compiled, for use inside a jit."""
        finish = lambda factors: [g for f, way in zip(factors, ways, strict=True) for g in _finish(f, way)]
        x = jax.tree.map(lambda v: v[None], x) if self.joint else x
        return self.tangents.batched_factors(jax.tree.leaves(params), basis, _dynamic(kwargs), x, finish)

    def compiled_factors(self, ways: tuple[str, ...]) -> Callable:
        """`factors` compiled, as a function of (params, basis, dynamic kwargs, x)."""
        if ways not in self._factors:
            options = _compat.compiler_options(reduces=self.reduces)
            self._factors[ways] = jax.jit(functools.partial(self.factors, ways), compiler_options=options)
        return self._factors[ways]

    def compiled_gram(self, contraction: str, symmetric_shape: tuple[int, ...] | None = None) -> Callable:
        """`gram` (or `symmetric_gram`) compiled, as a function of factors."""
        key = (contraction, symmetric_shape)
        if key not in self._grams:
            if symmetric_shape is None:
                fn = functools.partial(gram, contraction=contraction)
            else:
                fn = functools.partial(symmetric_gram, contraction=contraction, shape=symmetric_shape)
            self._grams[key] = jax.jit(fn)
        return self._grams[key]


def _finish(factor: Factor, way: str) -> list[Factor]:
    """Bring the factor of one example to the form its way contracts."""
    return factor.dense() if way == "dense" and not isinstance(factor, Dense) else [factor]


def _is_array(value: Any) -> bool:
    return all(hasattr(leaf, "dtype") for leaf in jax.tree.leaves(value)) and bool(jax.tree.leaves(value))


def _dynamic(kwargs: dict) -> dict:
    """Keyword arguments that are arrays: inputs of the compiled functions."""
    return {name: value for name, value in kwargs.items() if _is_array(value)}


def _static(kwargs: dict) -> dict:
    """All other keyword arguments: part of the function."""
    return {name: value for name, value in kwargs.items() if not _is_array(value)}


def _as_vector(
    f: Callable, structure: Any, static: dict, joint: bool, params: list, dynamic: dict, x: Any
) -> jax.Array:
    """F of one example (or of a whole batch that counts as one) as a vector of all outputs."""
    x = x if joint else jax.tree.map(lambda v: v[None], x)
    leaves = jax.tree.leaves(f(jax.tree.unflatten(structure, params), x, **static, **dynamic))
    if joint:  # [N ...] -> [N C] -> [N C] flattened, examples first
        leaves = [leaf.reshape(leaf.shape[0], -1) for leaf in leaves]
        return jnp.concatenate(leaves, axis=1).reshape(-1)
    return jnp.concatenate([leaf.reshape(-1) for leaf in leaves])


def _check_outputs(f: Callable, params: Any, x: Any, kwargs: dict, joint: bool, call: str) -> None:
    """F returns floating arrays whose first axis is the examples."""
    dynamic = _dynamic(kwargs)
    out = jax.eval_shape(lambda p, x, k: f(p, x, **_static(kwargs), **k), params, x, dynamic)
    n = jax.tree.leaves(x)[0].shape[0]
    leaves = jax.tree.leaves(out)
    if leaves and all(v.ndim and v.shape[0] == n and jnp.issubdtype(v.dtype, jnp.floating) for v in leaves):
        return
    got = ", ".join(f"{v.dtype}{list(v.shape)}" for v in leaves) or "nothing"
    raise errors.InvalidInputError(
        errors.message(
            call,
            expected=f"f(params, x) to return real floating arrays with the example axis ({n} long here) first",
            got=got,
            do="Return one row of outputs per example; reduce over examples outside f.",
        )
    )
