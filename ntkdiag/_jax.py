"""Everything that depends on the version of JAX or XLA stands in this file.

The jaxpr layer (`jax.extend`) carries no compatibility guarantee: differences between versions are found by looking
at the objects (feature detection), never by comparing version numbers.
"""

import concurrent.futures
import functools
import warnings
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.core
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np

# What a jaxpr is made of: variables and literals ("atoms"), and equations between them. JAX declares
# less than these have (an aval without a shape, for one), so a type checker takes them as they come.
if TYPE_CHECKING:
    Jaxpr: TypeAlias = Any
    ClosedJaxpr: TypeAlias = Any
    Equation: TypeAlias = Any
    Variable: TypeAlias = Any
    Atom: TypeAlias = Any
else:
    Jaxpr, ClosedJaxpr = jex_core.Jaxpr, jex_core.ClosedJaxpr
    Equation, Variable = jex_core.JaxprEqn, jex_core.Var
    Atom = jex_core.Var | jex_core.Literal

Literal = jex_core.Literal
Tracer = jax.core.Tracer
eval_jaxpr: Any = jax.core.eval_jaxpr


def open_jaxpr(jaxpr: Any) -> tuple[Any, list]:
    """Split an open or closed jaxpr into (jaxpr, consts): from JAX 0.11 on both are one class."""
    return getattr(jaxpr, "jaxpr", jaxpr), list(getattr(jaxpr, "consts", ()))


def scan_counts(params: dict) -> tuple[int, int]:
    """(number of constants, number of carries) of a `scan` equation."""
    if "ft_in" in params:  # JAX >= 0.11
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(carry)
    return params["num_consts"], params["num_carry"]


def bind(eqn: Any, values: list) -> list:
    """Apply the primitive of a jaxpr equation to values."""
    out = eqn.primitive.bind(*values, **eqn.primitive.get_bind_params(eqn.params))
    return list(out) if eqn.primitive.multiple_results else [out]


def vjp(f: Any, *primals: Any) -> tuple[Any, Any, Any]:
    """`jax.vjp(f, *primals, has_aux=True)` inside a trace, traced in half the time: (y, its transpose, aux).

    `jax.vjp` makes a jaxpr of every equation; here one pass of JVP rules leaves what is linear, to be transposed.
    """
    known: list = []

    def tangent(*tangents):
        y, dy, aux = jax.jvp(f, primals, tangents, has_aux=True)
        known[:] = y, aux  # values of the enclosing trace: they do not depend on the tangents
        return dy

    transposed = jax.linear_transpose(tangent, *primals)
    y, aux = known
    return y, transposed, aux


def is_ref(atom: Any) -> bool:
    """Whether a value of a jaxpr is a mutable array (`jax.new_ref`): what writes to it has no output to show for it."""
    return hasattr(atom.aval, "inner_aval")


def sub_jaxprs(eqn: Any) -> list:
    """The jaxprs nested in one equation."""
    return [open_jaxpr(j)[0] for j in jex_core.jaxprs_in_params(eqn.params)]


def with_bodies(eqn: Any, rebuilt: Any) -> Any:
    """The same equation with the closed jaxpr `rebuilt(jaxpr, consts)` for every jaxpr nested in it."""

    def new(value):
        if (
            isinstance(value, tuple) and value and all(hasattr(v, "eqns") for v in value)
        ):  # branches
            return tuple(map(new, value))
        if not hasattr(value, "eqns"):
            return value
        closed = rebuilt(*open_jaxpr(value))
        return closed if hasattr(value, "consts") else open_jaxpr(closed)[0]

    return eqn.replace(params={name: new(value) for name, value in eqn.params.items()})


def at_least_float32(dtype: Any) -> Any:
    """float32, or the dtype itself if it is wider; whatever promotion the session allows its own arrays."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(dtype, jnp.float32)


# The trace under which operations on constants were last seen to be computed: usually none at all.
_computing: object = None


def staging() -> bool:
    """Whether operations on constants are recorded rather than computed: inside someone's jit."""
    global _computing
    # To compare traces takes a tenth of the time of trying, which counts in every small call.
    trace = jex_core.get_opaque_trace_state()
    if trace == _computing:
        return False
    # An iota is the cheapest operation there is: it copies nothing to a device.
    is_recorded = isinstance(jax.lax.iota(jnp.int32, 1), Tracer)
    if not is_recorded:
        _computing = trace
    return is_recorded


def trace_settings() -> tuple:
    """What else decides how a function is traced, beside its arguments: random numbers, precision, the mesh."""
    names = (
        "jax_enable_x64",
        "jax_default_prng_impl",
        "jax_threefry_partitionable",
        "jax_numpy_dtype_promotion",
    )
    return *(getattr(jax.config, name, None) for name in names), jax.sharding.get_abstract_mesh()


def committed(tree: Any) -> bool:
    """Whether an array was put on devices of somebody's choice: JAX compiles for the place, not only the shape."""
    return any(getattr(leaf, "committed", False) for leaf in jax.tree.leaves(tree))


def contains(jaxpr: Any, primitive: str) -> bool:
    """Whether a primitive occurs anywhere in a jaxpr."""
    eqns = open_jaxpr(jaxpr)[0].eqns
    return any(
        e.primitive.name == primitive or any(contains(j, primitive) for j in sub_jaxprs(e))
        for e in eqns
    )


def judges_numbers(jaxpr: Any) -> tuple[bool, bool]:
    """Whether a jaxpr loops until something holds, and whether it calls back: NaN never ends the one, the other raises.

    Solvers iterate until a residual is small; guards (`equinox.error_if`, those of lineax and diffrax) are callbacks.
    """
    eqns = open_jaxpr(jaxpr)[0].eqns
    inner = [judges_numbers(j) for e in eqns for j in sub_jaxprs(e)]
    loops = any(e.primitive.name == "while" for e in eqns) or any(loop for loop, _ in inner)
    return loops, any("callback" in e.primitive.name for e in eqns) or any(
        call for _, call in inner
    )


def contains_refs(jaxpr: Any) -> bool:
    """Whether a mutable array is made anywhere in a jaxpr."""
    eqns = open_jaxpr(jaxpr)[0].eqns
    return any(any(map(is_ref, e.outvars)) or any(map(contains_refs, sub_jaxprs(e))) for e in eqns)


# --- XLA on CPU: float32 backward passes of normalisation layers -------------------------------------------------
# Which compiler options are right depends on the jaxlib version and on the CPU: on some machines the default is
# silently wrong by 0.2 to 0.9 (relative) at certain shapes, on others the option that mends it there is. So the
# options are chosen by running a known-answer test, once per process, and only for programs that reduce something.
_CPU_OPTION_CANDIDATES: tuple[dict[str, str], ...] = (
    {},
    {"xla_cpu_experimental_ynn_fusion_type": ""},
)
_KNOWN_ANSWER_SHAPES = (((2, 256, 32), 10), ((16, 256, 32), 10), ((10, 32, 32, 3), 1))


def _rms_norm_vjp(x, cotangents):
    def norm(x):
        return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True))

    def one(x, cotangents):
        return jax.vmap(lambda c: jax.vjp(norm, x)[1](c)[0])(cotangents)

    return jax.vmap(one)(x, cotangents)


def _rms_norm_vjp_numpy(x, c):
    x = x[:, None]
    r = 1 / np.sqrt(np.mean(x**2, -1, keepdims=True))
    return r * c - x * r**3 * np.mean(x * c, -1, keepdims=True)


@functools.cache
def _known_answers() -> tuple[list, list]:
    """(x, cotangents) in float32 for every known-answer shape, and the answers by numpy in float64."""
    rng = np.random.default_rng(0)
    cases = [
        (rng.normal(size=shape), rng.normal(size=(shape[0], k, *shape[1:])))
        for shape, k in _KNOWN_ANSWER_SHAPES
    ]
    in_float32 = [(x.astype(np.float32), c.astype(np.float32)) for x, c in cases]
    return in_float32, [_rms_norm_vjp_numpy(*case) for case in cases]


def _passes(options: dict[str, str]) -> bool:
    """Whether the float32 RMSNorm backward pass is right, to 1e-4, at every known-answer shape."""
    cases, answers = _known_answers()
    run = lambda cases: [_rms_norm_vjp(*case) for case in cases]  # one compilation
    run = jax.jit(run, compiler_options={**_effort(once=False), **options})
    try:
        got = run(cases)
    except jax.errors.JaxRuntimeError:  # this XLA does not know the option
        return False
    pairs = [(np.asarray(y), want) for y, want in zip(got, answers, strict=True)]
    return all(np.abs(y - want).max() < 1e-4 * np.abs(want).max() for y, want in pairs)


@functools.cache
def known_answer_test() -> concurrent.futures.Future:
    """The known-answer test, which begins on another thread when this is first called."""
    thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="ntkdiag-known-answer")
    return thread.submit(lambda: next(filter(_passes, _CPU_OPTION_CANDIDATES), None))


def trusted_cpu_options() -> dict[str, str] | None:
    """The first set of XLA options under which the known-answer test passes on this machine; None if none does."""
    return known_answer_test().result()


def _effort(*, once: bool) -> dict[str, str]:
    """How hard XLA's code generator for CPUs tries.

    Its first level compiles networks in 0.7 to 0.95 of the time of the third, its default, and they run as fast;
    what runs once (`once`) is not worth more than none. `jax_disable_most_optimizations` chooses by itself.
    """
    if jax.config.read("jax_disable_most_optimizations"):
        return {}
    return {"xla_backend_optimization_level": "0" if once else "1"}


def compiler_options(*, reduces: bool, once: bool = False) -> dict[str, str]:
    """XLA options for a program ntkdiag compiles itself.

    `reduces`: it contains a reduction and runs in float32. `once`: it is run once.
    """
    if jax.default_backend() != "cpu":
        return {}
    trusted = trusted_cpu_options() if reduces else {}
    if trusted is None:
        warn_if_untrusted_jit(reduces=True)
    return {**_effort(once=once), **(trusted or {})}


@functools.cache
def _warn_untrusted(flag: str) -> None:
    warnings.warn(
        "XLA on this CPU computes float32 backward passes of normalisation layers wrongly at some shapes "
        f"(known-answer test failed). {flag}",
        RuntimeWarning,
        stacklevel=4,
    )


def warn_if_untrusted_jit(*, reduces: bool = True) -> None:
    """Warn once when numbers computed inside the user's own `jit` cannot be trusted on this CPU.

    ntkdiag chooses the compiler options of what it compiles itself; inside a user's `jit` it cannot.
    """
    if not reduces or jax.default_backend() != "cpu" or trusted_cpu_options() == {}:
        return
    if trusted_cpu_options() is None:
        _warn_untrusted(
            "Use float64 (jax_enable_x64), or run the step under jax.disable_jit() to check a number."
        )
    else:
        _warn_untrusted(
            "Set XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type= before JAX starts, or measure outside your jit "
            "with ntkdiag.Monitor, which chooses right options by itself."
        )
