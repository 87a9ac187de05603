"""A function of parameters and one example, ready to give the tangent factors of many."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import _compat
from ntkdiag.tangents.layout import Layout
from ntkdiag.tangents.liveness import downstream
from ntkdiag.tangents.parts import Factor, Part, cotangent, group
from ntkdiag.tangents.recorder import Recorder, Site
from ntkdiag.tangents.roundoff import eps_of, unit_roundoff
from ntkdiag.tangents.views import View
from ntkdiag.tangents.walk import walk


@dataclasses.dataclass(frozen=True, eq=False)
class Tangents:
    """The structure of the Jacobian of f(params, example), found from shapes alone.

    Attributes:
        jaxpr: f as a closed jaxpr of flat parameters and flat inputs, returning one vector of all outputs.
        shapes: Shapes of the parameter leaves.
        sites: Every structured use of a parameter.
        tap_avals: Shape and dtype of each tap.
        dense_leaves: Leaves with at least one use that has no structured form.
        stacked: Leaves that a scan runs over -> its length.
        n_outputs: Number of outputs of one example.
        dtype: Dtype of the output.
    """

    jaxpr: Any
    shapes: list[tuple[int, ...]]
    sites: dict[tuple, Site]
    tap_avals: dict[tuple, jax.ShapeDtypeStruct]
    dense_leaves: frozenset[int]
    stacked: dict[int, int]
    n_outputs: int
    dtype: Any

    @staticmethod
    def of(f: Callable, params: list, kwargs: Any, x: Any) -> "Tangents":
        """Trace f(flat params, kwargs, one example) -> vector of outputs, and walk it once.

        Args:
            f: The function.
            params: Flat parameters, or their shapes.
            kwargs: Pytree of arrays all examples share, or their shapes.
            x: One example, or its shapes.
        """
        with jax.default_matmul_precision("highest"):
            closed, out = jax.make_jaxpr(f, return_shape=True)(params, kwargs, x)
            recorder = Recorder()
            inputs = jax.tree.leaves((kwargs, x))
            jax.eval_shape(lambda p, inputs: _found(closed, p, inputs, recorder), params, inputs)
        taps = {site.tap: recorder.tap_avals[site.tap] for site in recorder.sites.values()}
        return Tangents(
            jaxpr=closed,
            shapes=[tuple(p.shape) for p in params],
            sites=recorder.sites,
            tap_avals=taps,
            dense_leaves=frozenset(recorder.dense_leaves),
            stacked=recorder.stacked,
            n_outputs=out.shape[0],
            dtype=out.dtype,
        )

    @functools.cached_property
    def mutates(self) -> bool:
        """Whether the function writes to mutable arrays, which only `jax.vjp` transposes."""
        return _compat.contains_refs(self.jaxpr)

    @functools.cached_property
    def roundoff(self) -> float:
        """The largest unit roundoff of parameters and outputs, and of the values between them."""
        dtypes = [aval.dtype for aval in (*self.jaxpr.in_avals[: len(self.shapes)], *self.jaxpr.out_avals)]
        return max(unit_roundoff(self.jaxpr), *map(eps_of, dtypes))

    def parts(self, form: str = "fused") -> list[Part]:
        """What the kernel is a sum over; for `form` see `parts.group`."""
        return group(list(self.sites.values()), set(self.dense_leaves), self.shapes, form)

    def factors(
        self, parts: list[Part], params: list, basis: jax.Array, kwargs: Any, x: Any
    ) -> tuple[list[Factor], jax.Array]:
        """Tangent factors of one example, by one forward and one batched backward pass.

        Args:
            parts: The parts wanted, from `parts()`.
            params: Flat parameters.
            basis: Output directions [o C].
            kwargs: What all examples share.
            x: One example.

        Returns:
            One factor per part, and f(x) [C].
        """
        sharing = frozenset(site.handed for site in self.sites.values() if site.handed not in self.tap_avals)
        zeros = {key: jnp.zeros(aval.shape, aval.dtype) for key, aval in self.tap_avals.items()}
        dense = {leaf: params[leaf] for leaf in sorted(self.dense_leaves)}

        def tapped(taps, dense):
            recorder = Recorder(taps, sharing)
            y = _walk(self.jaxpr, params, dense, jax.tree.leaves((kwargs, x)), recorder)
            return y, recorder.handed

        sites = [site for part in parts for site in part.sites]

        def backward(direction):
            taps, dense = vjp(direction)
            return {site.key: cotangent(site, taps[site.tap]) for site in sites}, dense

        with jax.default_matmul_precision("highest"):  # derivative rules of the user's are traced only here
            pulled = jax.vjp(tapped, zeros, dense, has_aux=True) if self.mutates else _compat.vjp(tapped, zeros, dense)
            y, vjp, handed = pulled
            cotangents, dense = jax.vmap(backward)(basis.astype(y.dtype))
        handed, cotangents = _once(handed), _once(cotangents)
        return [part.factor(handed, cotangents, dense) for part in parts], y


def _once(arrays: dict) -> dict:
    """The same arrays, computed once: XLA would compute them again inside every loop that reads them."""
    return {key: jax.lax.optimization_barrier(array) for key, array in arrays.items()}


def _found(closed: Any, params: list, inputs: list, recorder: Recorder) -> None:
    """The first walk, for what it finds; what it hands out belongs to a trace that ends with it."""
    _walk(closed, params, None, inputs, recorder)
    recorder.handed.clear()


def _walk(closed: Any, params: list, dense: dict | None, inputs: list, recorder: Recorder) -> jax.Array:
    """Walk the jaxpr with every parameter leaf as a view of itself. `dense=None`: the first walk, which finds uses."""
    jaxpr, consts = _compat.open_jaxpr(closed)
    views = [
        View(leaf, Layout.of(tuple(p.shape)), p, p if dense is None else dense.get(leaf))
        for leaf, p in enumerate(params)
    ]
    [y] = walk(jaxpr, consts, [*views, *inputs], recorder)
    return recorder.differentiable(y)


def depends_on(jaxpr: Any, n_fixed: int) -> list[bool]:
    """Which outputs of a jaxpr depend on its inputs from number `n_fixed` on."""
    varying = downstream(jaxpr, jaxpr.invars[n_fixed:])
    return [not isinstance(atom, _compat.Literal) and atom in varying for atom in jaxpr.outvars]
