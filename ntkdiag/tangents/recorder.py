"""What a walk over a jaxpr finds and hands out."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ntkdiag.tangents.contraction import Contraction
from ntkdiag.tangents.joined import Joined
from ntkdiag.tangents.views import View


@dataclasses.dataclass(frozen=True, eq=False)
class Site:
    """One structured use of a leaf.

    Attributes:
        leaf: Number of the leaf.
        primitive: Name of the primitive, for the plan.
        use: The use in normal form, enclosing scans not counted.
        key: Its own key.
        tap: Key of the tap whose cotangent is this use's c; what is added up shares one.
        handed: Key of the operand handed out; weights side by side share one.
        scans: For each enclosing scan, outermost first: (length, "b" if it runs over the leaf else "t").
        scaled: Whether the operand carries the scalar factor of the view.
        joined: Of one of several weights side by side: how many they are, and the use of all of them as one weight.
    """

    leaf: int
    primitive: str
    use: Contraction
    key: tuple
    tap: tuple
    handed: tuple
    scans: tuple[tuple[int, str], ...]
    scaled: bool = False
    joined: tuple[int, Contraction] | None = None


class Recorder:
    """What a walk finds (first walk, `taps=None`) or is given (later walks), and the operands it hands out.

    Args:
        taps: The taps, by site; a site without one that is not in `sharing` is an error.
        sharing: Sites whose cotangent is that of another tap.
    """

    def __init__(self, taps: dict | None = None, sharing: frozenset = frozenset()):
        self.taps, self.sharing = taps, sharing
        self.sites: dict[tuple, Site] = {}
        self.tap_avals: dict[tuple, jax.ShapeDtypeStruct] = {}
        self.dense_leaves: set[int] = set()
        self.stacked: dict[int, int] = {}
        self.handed: dict[tuple, Any] = {}
        self.scans: tuple[tuple[tuple, int], ...] = ()

    def inside(self, taps: dict | None, scan: tuple[tuple, int] | None = None) -> "Recorder":
        """A recorder for the body of a control-flow primitive: own operands, shared findings."""
        inner = Recorder(taps, self.sharing)
        inner.sites, inner.tap_avals = self.sites, self.tap_avals
        inner.dense_leaves, inner.stacked = self.dense_leaves, self.stacked
        inner.scans = self.scans + ((scan,) if scan else ())
        return inner

    def below(self, path: tuple) -> dict | None:
        """The taps of the sites inside the equation at `path`."""
        if self.taps is None:
            return None
        return {key: tap for key, tap in self.taps.items() if key[: len(path)] == path}

    def differentiable(self, value: Any) -> Any:
        """The differentiable copy of a view; any other value as it is."""
        if not isinstance(value, View | Joined):
            return value
        leaves = [view.leaf for view in (value.views if isinstance(value, Joined) else (value,))]
        self.dense_leaves.update(leaves)
        if value.dense is None:
            raise RuntimeError(f"ntkdiag: a use of parameter leaf {leaves[0]} was not found by the first walk")
        return value.dense

    def tap(self, key: tuple, y: jax.Array, scale: Any = None) -> jax.Array:
        """y plus the tap of this site, times a scalar factor where there is one."""
        if self.taps is not None:
            if key in self.sharing:
                return y
            tap = self.taps[key]
            return lax.add(y, tap if scale is None else tap * jnp.asarray(scale, y.dtype))
        lengths = tuple(length for _, length in self.scans)
        self.tap_avals[key] = jax.ShapeDtypeStruct(lengths + y.shape, y.dtype)
        return y

    def share(self, tap: tuple, other: tuple) -> None:
        """Give the sites of a tap that of another: their cotangents are equal."""
        self.sites.update(
            {k: dataclasses.replace(site, tap=other) for k, site in self.sites.items() if site.tap == tap}
        )

    def found(self, key: tuple, view: View, primitive: str, use: Contraction, tap: tuple, operand: Any) -> None:
        """Note a site and hand out its operand, times the scalar factor of the view."""
        self.sites[key] = Site(view.leaf, primitive, use, key, tap, key, self._roles(view), view.scale is not None)
        numbers = use.kind != "rows" and not isinstance(operand, list)
        if numbers and not jnp.issubdtype(jnp.result_type(operand), jnp.inexact):
            operand = jnp.asarray(operand, view.value.dtype)  # whole numbers times a weight
        scale = None if view.scale is None else jnp.asarray(view.scale, jnp.result_type(operand))
        self.handed[key] = operand if scale is None else operand * scale

    def found_joined(self, path: tuple, joined: Joined, primitive: str, uses: tuple, operand: Any) -> None:
        """Note a site for each of several weights side by side, and hand out the operand they share."""
        whole, parts = uses
        for k, (view, use) in enumerate(zip(joined.views, parts, strict=True)):
            key = (*path, k) if k else path
            all_of_them = None if whole is None else (len(parts), whole)
            self.sites[key] = Site(view.leaf, primitive, use, key, path, path, self._roles(view), joined=all_of_them)
        self.handed[path] = operand

    def _roles(self, view: View) -> tuple[tuple[int, str], ...]:
        """What the enclosing scans are to a view."""
        return tuple((length, "b" if name in view.scans else "t") for name, length in self.scans)
