"""A function of parameters and one example, ready to give the tangent factors of many."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from ntkdiag import _compat
from ntkdiag.tangents.factors import Factor
from ntkdiag.tangents.layout import Layout
from ntkdiag.tangents.parts import Part, group
from ntkdiag.tangents.views import View
from ntkdiag.tangents.walk import Recorder, Site, walk


@dataclasses.dataclass(frozen=True, eq=False)
class Tangents:
    """The structure of the Jacobian of f(params, example), found from shapes alone.

    Attributes:
        jaxpr: f as a closed jaxpr of flat parameters and flat inputs, returning one vector of all outputs.
        shapes: Shapes of the parameter leaves.
        sites: Every structured use of a parameter.
        tap_avals: Shape and dtype of each tap.
        dense_leaves: Leaves with at least one use that has no structured form.
        parts: What the kernel is a sum over.
        n_outputs: Number of outputs of one example.
        dtype: Dtype of the output.
    """

    jaxpr: Any
    shapes: list[tuple[int, ...]]
    sites: dict[tuple, Site]
    tap_avals: dict[tuple, jax.ShapeDtypeStruct]
    dense_leaves: frozenset[int]
    parts: list[Part]
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
        jax.eval_shape(lambda p, inputs: _walk(closed, p, None, inputs, recorder), params, inputs)
        shapes = [tuple(p.shape) for p in params]
        parts = group(list(recorder.sites.values()), recorder.dense_leaves, shapes)
        taps = {site.tap: recorder.tap_avals[site.tap] for site in recorder.sites.values()}
        return Tangents(
            closed, shapes, recorder.sites, taps, frozenset(recorder.dense_leaves), parts, out.shape[0], out.dtype
        )

    def factors(self, params: list, basis: jax.Array, kwargs: Any, x: Any) -> tuple[list[Factor], jax.Array]:
        """Tangent factors of one example, by one forward and one batched backward pass.

        Args:
            params: Flat parameters.
            basis: Output directions [o C].
            kwargs: What all examples share.
            x: One example.

        Returns:
            One factor per part, and f(x) [C].
        """
        zeros = {key: jnp.zeros(aval.shape, aval.dtype) for key, aval in self.tap_avals.items()}
        dense = {leaf: params[leaf] for leaf in sorted(self.dense_leaves)}

        def tapped(taps, dense):
            recorder = Recorder(taps)
            y = _walk(self.jaxpr, params, dense, jax.tree.leaves((kwargs, x)), recorder)
            return y, recorder.handed

        y, vjp, handed = jax.vjp(tapped, zeros, dense, has_aux=True)
        taps, dense = jax.vmap(vjp)(basis.astype(y.dtype))
        return [part.factor(handed, taps, dense) for part in self.parts], y

    def batched_factors(
        self, params: list, basis: jax.Array, kwargs: Any, x: Any, finish: Callable = lambda factors: factors
    ) -> tuple[Any, jax.Array]:
        """Factors of a batch of independent examples [n ...]; what does not depend on the example is kept once.

        Args:
            params: Flat parameters.
            basis: Output directions [o C].
            kwargs: What all examples share.
            x: The batch; every leaf has the example axis first.
            finish: Applied to the list of factors of one example.

        Returns:
            What `finish` returns, with example axes, and f(x) [n C].
        """
        fixed = (params, basis, kwargs)

        def one(fixed, x):
            factors, y = self.factors(*fixed, x)
            return finish(factors), y

        return _vmap_varying(one, fixed, x)


def _walk(closed: Any, params: list, dense: dict | None, inputs: list, recorder: Recorder) -> jax.Array:
    """Walk the jaxpr with every parameter leaf as a view of itself. `dense=None`: the first walk, which finds uses."""
    jaxpr, consts = _compat.open_jaxpr(closed)
    views = [
        View(leaf, Layout.of(tuple(p.shape)), p, p if dense is None else dense.get(leaf))
        for leaf, p in enumerate(params)
    ]
    [y] = walk(jaxpr, consts, [*views, *inputs], recorder)
    return recorder.differentiable(y)


def _vmap_varying(f: Callable, fixed: Any, x: Any) -> Any:
    """Vmap of f(fixed, x[n]) over n, where outputs that do not depend on x get no axis n."""
    example = jax.tree.map(lambda v: v[0], x)
    closed, out_shape = jax.make_jaxpr(f, return_shape=True)(fixed, example)
    jaxpr, consts = _compat.open_jaxpr(closed)
    flat_fixed, flat_x = jax.tree.leaves(fixed), jax.tree.leaves(x)
    depends = _depends_on(jaxpr, len(flat_fixed))
    run = jax.vmap(
        lambda *flat: _compat.eval_jaxpr(jaxpr, consts, *flat),
        in_axes=(None,) * len(flat_fixed) + (0,) * len(flat_x),
        out_axes=[0 if d else None for d in depends],
    )
    return jax.tree.unflatten(jax.tree.structure(out_shape), run(*flat_fixed, *flat_x))


def _depends_on(jaxpr: Any, n_fixed: int) -> list[bool]:
    """Which outputs depend on the inputs from number `n_fixed` on."""
    varying = set(jaxpr.invars[n_fixed:])
    is_varying = lambda atom: not isinstance(atom, _compat.Literal) and atom in varying
    for eqn in jaxpr.eqns:
        if any(is_varying(atom) for atom in eqn.invars):
            varying.update(eqn.outvars)
    return [is_varying(atom) for atom in jaxpr.outvars]
