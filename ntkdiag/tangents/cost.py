"""Floating-point operations and live memory of a jaxpr, counted from shapes."""

import dataclasses
import itertools
import math
from typing import Any

from ntkdiag import _compat
from ntkdiag.tangents.liveness import downstream, without_dead

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
        shared: The same of values that no varying input goes into: many evaluations at once have them once.
    """

    flops: int
    peak: int
    shared: int


def cost(jaxpr: Any, varying: list[bool]) -> Cost:
    """Cost of a jaxpr: products counted exactly (loops included), memory by walking it in order.

    Elementwise chains count as fused: a value that only one elementwise equation reads takes no memory.

    Args:
        jaxpr: The jaxpr.
        varying: Which of its inputs differ between the evaluations that are made at once.
    """
    jaxpr = without_dead(_compat.open_jaxpr(jaxpr)[0])
    last_use, n_uses = _uses(jaxpr)
    depends = downstream(jaxpr, itertools.compress(jaxpr.invars, varying))
    alive: dict[Any, int] = {}
    owner: dict[Any, Any] = {}
    ending: dict[int, list] = {}  # equation -> values that may die there
    flops, total, peak = 0, {True: 0, False: 0}, {True: 0, False: 0}  # by whether they vary
    outputs = {v for v in jaxpr.outvars if not isinstance(v, _compat.Literal)}
    inputs = {*jaxpr.invars, *jaxpr.constvars}
    for k, eqn in enumerate(jaxpr.eqns):
        name = eqn.primitive.name
        inner = _inner_cost(eqn, [not isinstance(v, _compat.Literal) and v in depends for v in eqn.invars])
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
                total[var in depends] += alive[var]
                ending.setdefault(max(k, last_use.get(var, -1)), []).append(var)
        for varies, own in ((True, inner.peak), (False, inner.shared)):
            peak[varies] = max(peak[varies], total[varies] + own)
        for var in ending.pop(k, ()):
            if var in alive and last_use.get(var, -1) <= k and var not in outputs:
                total[var in depends] -= alive.pop(var)
    return Cost(flops, peak[True], peak[False])


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


def _inner_cost(eqn: Any, varying: list[bool]) -> Cost:
    """Cost of the jaxprs nested in an equation: a scan runs its body `length` times, of branches the dearest counts."""
    loop = eqn.primitive.name == "scan"
    if loop and any(varying):  # a carry may vary from the second step on
        n_const, n_carry = _compat.scan_counts(eqn.params)
        varying = [*varying[:n_const], *[True] * n_carry, *varying[n_const + n_carry :]]
    alike = lambda jaxpr: varying if len(jaxpr.invars) == len(varying) else [any(varying)] * len(jaxpr.invars)
    inner = [cost(jaxpr, alike(jaxpr)) for jaxpr in _compat.sub_jaxprs(eqn)]
    if not inner:
        return Cost(0, 0, 0)
    flops, peak, shared = (max(sizes) for sizes in zip(*map(dataclasses.astuple, inner), strict=True))
    return Cost(flops * (eqn.params.get("length", 1) if loop else 1), peak, shared)


def _product_flops(eqn: Any) -> int:
    if eqn.primitive.name == "dot_general":
        (contracted, _), _ = eqn.params["dimension_numbers"]
        lhs = eqn.invars[0].aval.shape
        return 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(lhs[k] for k in contracted)
    if eqn.primitive.name == "conv_general_dilated":
        kernel, spec = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec
        return 2 * math.prod(eqn.outvars[0].aval.shape) * math.prod(kernel) // kernel[spec[0]]
    return 0
