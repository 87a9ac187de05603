"""Floating-point operations and live memory of a jaxpr, counted from shapes."""

import dataclasses
import math
from typing import Any

from ntkdiag import _compat

# Outputs of these are computed inside the loop that reads them when one equation reads them.
_FUSED = frozenset(
    (
        "abs", "add", "add_any", "and", "broadcast_in_dim", "clamp", "convert_element_type", "copy", "cos",
        "div", "eq", "erf", "exp", "exp2", "expm1", "ge", "gt", "iota", "is_finite", "le", "log", "log1p",
        "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "one_minus_square", "or", "pow",
        "integer_pow", "rem", "round", "rsqrt", "select_n", "sign", "sin", "sqrt", "square", "stop_gradient",
        "sub", "tan", "tanh", "xor"
    )
)  # fmt: skip
# Outputs of these are the same memory under another name.
_ALIASES = frozenset(("reshape", "squeeze", "expand_dims", "stop_gradient", "copy", "optimization_barrier"))


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one evaluation costs.

    Attributes:
        flops: Floating-point operations of matrix products and convolutions (2 per multiply-add).
        peak: Bytes of intermediate values alive at once; inputs do not count, outputs do.
    """

    flops: int
    peak: int


def cost(jaxpr: Any) -> Cost:
    """Cost of a jaxpr: products counted exactly (loops included), memory by walking it in order.

    Elementwise chains count as fused: a value that only one elementwise equation reads takes no memory.
    """
    jaxpr = _compat.open_jaxpr(jaxpr)[0]
    last_use, n_uses = _uses(jaxpr)
    alive: dict[Any, int] = {}
    owner: dict[Any, Any] = {}
    ending: dict[int, list] = {}  # equation -> values that may die there
    total = peak = flops = 0
    outputs = {v for v in jaxpr.outvars if not isinstance(v, _compat.Literal)}
    inputs = {*jaxpr.invars, *jaxpr.constvars}
    for k, eqn in enumerate(jaxpr.eqns):
        name = eqn.primitive.name
        inner = _inner_cost(eqn)
        flops += inner.flops + _product_flops(eqn)
        for var in eqn.outvars:
            source = _root(owner, eqn.invars[0]) if name in _ALIASES and eqn.invars else None
            if source is not None and (source in alive or source in inputs):
                owner[var] = source
                last_use[source] = max(last_use.get(source, -1), last_use.get(var, -1))
                ending.setdefault(last_use[source], []).append(source)
            elif name in _FUSED and n_uses.get(var, 0) == 1 and var not in outputs:
                continue
            else:
                alive[var] = _bytes(var)
                total += alive[var]
                ending.setdefault(max(k, last_use.get(var, -1)), []).append(var)
        peak = max(peak, total + inner.peak)
        for var in ending.pop(k, ()):
            if var in alive and last_use.get(var, -1) <= k and var not in outputs:
                total -= alive.pop(var)
    return Cost(flops, peak)


def _uses(jaxpr: Any) -> tuple[dict[Any, int], dict[Any, int]]:
    last: dict[Any, int] = {}
    count: dict[Any, int] = {}
    for k, eqn in enumerate(jaxpr.eqns):
        for atom in eqn.invars:
            if not isinstance(atom, _compat.Literal):
                last[atom] = k
                count[atom] = count.get(atom, 0) + 1
    for atom in jaxpr.outvars:
        if not isinstance(atom, _compat.Literal):
            last[atom] = len(jaxpr.eqns)
            count[atom] = count.get(atom, 0) + 1
    return last, count


def _root(owner: dict, atom: Any) -> Any:
    if isinstance(atom, _compat.Literal):
        return None
    while atom in owner:
        atom = owner[atom]
    return atom


def _bytes(var: Any) -> int:
    shape = getattr(var.aval, "shape", ())
    return math.prod(shape) * getattr(getattr(var.aval, "dtype", None), "itemsize", 0)


def _inner_cost(eqn: Any) -> Cost:
    """Cost of the jaxprs nested in an equation: a scan runs its body `length` times, of branches the dearest counts."""
    inner = [cost(j) for j in _compat.sub_jaxprs(eqn)]
    if not inner:
        return Cost(0, 0)
    repeats = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
    return Cost(repeats * max(c.flops for c in inner), max(c.peak for c in inner))


def _product_flops(eqn: Any) -> int:
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        lhs = eqn.invars[0].aval.shape
        return 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(lhs[k] for k in contracted)
    if eqn.primitive.name == "conv_general_dilated":
        kernel, spec = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec
        return 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(kernel) // kernel[spec[0]]
    return 0
