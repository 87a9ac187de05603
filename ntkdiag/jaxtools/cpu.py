"""XLA on CPU: options under which derivatives are right, and operations that run fast.

1. Compiler options under which float32 derivatives of normalization layers are right.
2. Convolutions in the one layout that XLA runs fast everywhere on a CPU.
3. Transposes, sums and broadcasts of arrays, written in the form that XLA runs fast.
4. Functions compiled with these options, and chains of computations that run side by side.
"""

import concurrent.futures
import functools
import math
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, PyTree, Shaped

from ntkdiag.jaxtools import jaxprs
from ntkdiag.jaxtools.jaxprs import Atom, ClosedJaxpr, Jaxpr
from ntkdiag.jaxtools.precision import in_full_precision

Result = TypeVar("Result")

# 1. Float32 backward passes of normalization layers.
#
# Which compiler options are right depends on the version of jaxlib and on the CPU. On some machines
# the default is silently wrong by 0.2 to 0.9 (relative) at certain shapes; on others the option
# that mends it there is wrong itself. No list of versions could tell. So a known-answer test runs
# on this machine, once per process, and only for programs that reduce something.

# Sets of XLA options, in the order in which they are tried.
_CPU_OPTION_CANDIDATES: tuple[dict[str, str], ...] = (
    {},
    {"xla_cpu_experimental_ynn_fusion_type": ""},
)
# Shapes of x at which errors have been seen, each with a number k of cotangents.
_KNOWN_ANSWER_SHAPES = (((2, 256, 32), 10), ((16, 256, 32), 10), ((10, 32, 32, 3), 1))
# The largest error, relative to the largest entry, that still counts as rounding in float32.
_KNOWN_ANSWER_TOLERANCE = 1e-4


def _rms_norm_vjp(
    x: Float[Array, "n *t d"], cotangents: Float[Array, "n k *t d"]
) -> Float[Array, "n k *t d"]:
    """The VJP of x / sqrt(mean_d x^2) by JAX, mapped over examples n and cotangents k."""

    def norm(x):
        return x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True))

    def of_example(x, cotangents):
        _, pullback = jax.vjp(norm, x)
        [of_x] = jax.vmap(pullback)(cotangents)
        return of_x

    return jax.vmap(of_example)(x, cotangents)


def _rms_norm_vjp_numpy(
    x: Float[np.ndarray, "n *t d"], c: Float[np.ndarray, "n k *t d"]
) -> Float[np.ndarray, "n k *t d"]:
    """What `_rms_norm_vjp` computes, by hand: r c - r^3 x mean_d(x c), r = 1 / sqrt(mean_d x^2)."""
    x = x[:, None]  # [n 1 *t d], against the k cotangents
    r = 1 / np.sqrt(np.mean(x**2, -1, keepdims=True))
    return r * c - x * r**3 * np.mean(x * c, -1, keepdims=True)


@functools.cache
def _known_answers() -> tuple[list[tuple[np.ndarray, np.ndarray]], list[np.ndarray]]:
    """(x, cotangents) in float32 for every known-answer shape, and the answers in float64."""
    rng = np.random.default_rng(0)
    cases = []
    answers = []
    for shape, k in _KNOWN_ANSWER_SHAPES:
        n, *rest = shape
        x = rng.normal(size=shape)
        cotangents = rng.normal(size=(n, k, *rest))
        cases.append((x.astype(np.float32), cotangents.astype(np.float32)))
        answers.append(_rms_norm_vjp_numpy(x, cotangents))
    return cases, answers


def passes_known_answer_test(options: dict[str, str], *, once: bool = False) -> bool:
    """Whether float32 RMSNorm backward passes compiled with these options are right."""
    cases, answers = _known_answers()

    # In one program, because compiling takes most of the time.
    def all_cases(cases: list[tuple[Array, Array]]) -> list[Array]:
        return [_rms_norm_vjp(*case) for case in cases]

    run = jax.jit(all_cases, compiler_options={**_effort(once=once), **options})
    try:
        results = run(cases)
    except jax.errors.JaxRuntimeError:  # this XLA does not know the option
        return False
    for result, answer in zip(results, answers, strict=True):
        error = np.abs(np.asarray(result) - answer).max()
        # Written so that NaN fails.
        if not error < _KNOWN_ANSWER_TOLERANCE * np.abs(answer).max():
            return False
    return True


@functools.cache
def known_answer_test(*, once: bool) -> concurrent.futures.Future:
    """The known-answer test, which begins on another thread when this is first called."""
    # Compiling takes long: a caller that knows early that the result is needed starts it here.
    thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="ntkdiag-known-answer")

    def first_passing_options() -> dict[str, str] | None:
        for options in _CPU_OPTION_CANDIDATES:
            if passes_known_answer_test(options, once=once):
                return options
        return None

    return thread.submit(first_passing_options)


def trusted_cpu_options(*, once: bool = False) -> dict[str, str] | None:
    """The first XLA options that pass the known-answer test on this machine; None if none do."""
    return known_answer_test(once=once).result()


def _effort(*, once: bool) -> dict[str, str | bool]:
    """The optimization level of XLA's code generator for CPUs."""
    # Level 1 compiles networks in 0.7 to 0.95 of the time of level 3, XLA's default, and they run
    # as fast. What runs once gets level 0 and, before JAX 0.11, the former emitters, which compile
    # several times faster to code that is as slow.
    # Where this is set, JAX chooses the level itself.
    if jax.config.read("jax_disable_most_optimizations"):
        return {}
    if not once:
        return {"xla_backend_optimization_level": "1"}
    has_former_emitters = jax.__version_info__ < (0, 11)
    former_emitters = {"xla_cpu_use_fusion_emitters": False} if has_former_emitters else {}
    return {"xla_backend_optimization_level": "0", **former_emitters}


def compiler_options(*, reduces: bool, once: bool = False) -> dict[str, str | bool]:
    """XLA options for what ntkdiag compiles: if it `reduces`, tested ones; `once`: runs once."""
    if jax.default_backend() != "cpu":
        return {}
    options = _effort(once=once)
    if reduces:
        trusted = trusted_cpu_options(once=once)
        if trusted is None:
            warn_untrusted(_instead_of_float32())
        else:
            options |= trusted
    return options


def warn_if_untrusted_jit(normalizes: Callable[[], bool] = lambda: True) -> None:
    """Warn once when numbers computed inside the user's own `jit` cannot be trusted on this CPU."""
    # ntkdiag chooses the options of what it compiles itself; inside a user's `jit` it cannot.
    if jax.default_backend() != "cpu" or not normalizes():
        return
    trusted = trusted_cpu_options()
    if trusted is None:
        warn_untrusted(_instead_of_float32())
    elif trusted:  # any options that are not XLA's default
        warn_untrusted(
            "Set XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type= before JAX starts, or measure "
            "outside your jit with ntkdiag.Monitor, which chooses the right options itself."
        )


def _instead_of_float32() -> str:
    """What to do where no options are right."""
    is_enabled = jax.config.read("jax_enable_x64")
    do = "Make the parameters float64" if is_enabled else "Use float64 (jax_enable_x64)"
    return f"{do}, or run the step under jax.disable_jit() to check a number."


@functools.cache
def warn_untrusted(do: str) -> None:
    """Warn of wrong float32 derivatives, once for each advice on what to do."""
    warnings.warn(
        "XLA on this CPU computes float32 backward passes of normalization layers wrongly at some "
        f"shapes (known-answer test failed). {do}",
        RuntimeWarning,
        stacklevel=4,  # above this function, the one that asked for options, and its caller
    )


# 2. Convolutions.
#
# Outside loops and branches XLA brings every convolution to channels-last by itself. Inside them it
# does not, and the other layouts, most of those in JAX's derivatives, run 40 to 60 times slower. So
# a function is traced, derivatives included, and its jaxpr is evaluated with every convolution put
# between transpositions to channels-last and back; the bodies of control flow are rebuilt in the
# same way.

_CONVOLUTION = "conv_general_dilated"
# Primitives whose bodies are rebuilt.
_CONTROL_FLOW = frozenset(("scan", "while", "cond", "jit", "pjit", "checkpoint", "remat", "remat2"))


def channels_last(f: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """The same function of arrays with its convolutions, also of derivatives, channels-last."""

    def run(*args: PyTree) -> PyTree:
        if jax.default_backend() != "cpu":
            return f(*args)
        closed, out = jax.make_jaxpr(f, return_shape=True)(*args)
        jaxpr, consts = jaxprs.open_jaxpr(closed)
        leaves = evaluate(jaxpr, consts, *jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(out), leaves)

    return run


def evaluate(jaxpr: Jaxpr, consts: list, *values: Any) -> list:
    """Evaluate a jaxpr, on a CPU with all its convolutions channels-last."""
    if jax.default_backend() != "cpu" or not jaxprs.contains(jaxpr, _CONVOLUTION):
        return jaxprs.eval_jaxpr(jaxpr, consts, *values)
    inputs = [*jaxpr.constvars, *jaxpr.invars]
    known = dict(zip(inputs, [*consts, *values], strict=True))

    def read(atom: Atom) -> Any:
        return atom.val if isinstance(atom, jaxprs.Literal) else known[atom]

    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        if eqn.primitive.name == _CONVOLUTION:
            outputs = [_convolution(*operands, **eqn.params)]
        else:
            # Bodies without a convolution are left as they are.
            bodies = jaxprs.sub_jaxprs(eqn) if eqn.primitive.name in _CONTROL_FLOW else []
            if any(jaxprs.contains(body, _CONVOLUTION) for body in bodies):
                eqn = jaxprs.with_bodies(eqn, _rebuilt_body)
            outputs = jaxprs.bind(eqn, operands)
        known.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _rebuilt_body(jaxpr: Jaxpr, consts: list) -> ClosedJaxpr:
    """The body of a control-flow primitive, rebuilt with its convolutions channels-last."""
    avals = []
    for var in jaxpr.invars:
        aval = var.aval
        avals.append(jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type))
    return jax.make_jaxpr(lambda *values: evaluate(jaxpr, consts, *values))(*avals)


def _convolution(
    lhs: Shaped[Array, "..."],
    rhs: Shaped[Array, "..."],
    *,
    dimension_numbers: lax.ConvDimensionNumbers,
    **params: Any,
) -> Shaped[Array, "..."]:
    """A convolution [n space... c] * [space... c d] -> [n space... d] between transpositions."""
    # JAX gives the axes of images as (n, c, space...), those of kernels as (d, c, space...).
    images = lhs.transpose(_channels_to_the_end(dimension_numbers.lhs_spec))  # -> [n space... c]
    d, c, *space = dimension_numbers.rhs_spec
    kernel = rhs.transpose((*space, c, d))  # -> [space... c d]

    # The specs of these layouts: images [n space... c], kernels [space... c d].
    last = lhs.ndim - 1
    image_spec = (0, last, *range(1, last))
    kernel_spec = (last, last - 1, *range(last - 1))
    out = lax.conv_general_dilated_p.bind(
        images,
        kernel,
        dimension_numbers=lax.ConvDimensionNumbers(image_spec, kernel_spec, image_spec),
        **params,
    )
    # [n space... c] -> the order that was asked for
    out_order = _channels_to_the_end(dimension_numbers.out_spec)
    return out.transpose([out_order.index(axis) for axis in range(out.ndim)])


def _channels_to_the_end(spec: Sequence[int]) -> tuple[int, ...]:
    """The axes of an array, given as (batch, channels, space...), in the order [n space... c]."""
    n, c, *space = spec
    return (n, *space, c)


# 3. Transposes, sums and broadcasts. Three observations, all measured:
#
# * a transpose that only moves axes of length 1 moves nothing, but XLA gives its result a layout of
#   its own and pays for it with copies of the whole array: `arrange` leaves it out;
# * a sum over an axis that is not the last one runs number by number, and XLA computes what goes
#   into the sum again for each of them: `sum_positions` multiplies by ones instead, three to five
#   times as fast;
# * the derivative of a broadcast is such a sum: `repeat` is a broadcast whose derivative is
#   `sum_positions`.


def arrange(
    x: Shaped[Array, "..."], order: tuple[int, ...], shape: tuple[int, ...]
) -> Shaped[Array, "..."]:
    """Transpose to an order of axes and reshape, without a transpose that moves nothing."""
    # Axes of length 1 may go anywhere: only the order of the others decides whether numbers move.
    longer_axes = [axis for axis in order if x.shape[axis] != 1]
    if longer_axes == sorted(longer_axes):
        return x.reshape(shape)
    return jnp.transpose(x, order).reshape(shape)


def sum_positions(x: Shaped[Array, "*batch t d"]) -> Shaped[Array, "*batch d"]:
    """Sum over positions, the last axis but one: [... t d] -> [... d]."""
    if jax.default_backend() != "cpu" or x.shape[-2] == 1 or x.size == 0:
        return x.sum(-2)
    # x^0 rather than `jnp.ones`: it has the axes that `jax.vmap` hides, which then are batch axes
    # of the product.
    ones = lax.integer_pow(x[..., :1], 0)  # [... t 1]
    positions = x.ndim - 2
    batch = tuple(range(positions))
    dimension_numbers = (((positions,), (positions,)), (batch, batch))
    product = lax.dot_general(ones, x, dimension_numbers, precision="highest")  # [... 1 d]
    return product[..., 0, :]


def repeat(
    x: Shaped[Array | np.ndarray, "..."], shape: tuple[int, ...]
) -> Shaped[Array | np.ndarray, "..."]:
    """Repeat axes of length 1 to a shape with as many axes."""
    if x.shape == shape:
        return x
    # The axes from `kept` on agree, the ones before it are repeated.
    kept = next(axis for axis in range(len(shape) + 1) if x.shape[axis:] == shape[axis:])
    only_leading_axes_repeat = math.prod(x.shape[:kept]) == 1
    if not only_leading_axes_repeat or math.prod(shape[:kept]) == 1:
        return lax.broadcast_in_dim(x, shape, range(len(shape)))
    return _repeat_over_positions(x.reshape(x.shape[kept:]), shape[:kept])


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _repeat_over_positions(
    x: Shaped[Array, "..."], positions: tuple[int, ...]
) -> Shaped[Array, "..."]:
    """New leading axes along which x is the same."""
    return lax.broadcast(x, positions)


def _repeat_forward(x, positions):
    return lax.broadcast(x, positions), None


def _repeat_backward(positions, _, cotangent):
    shape = cotangent.shape[len(positions) :]
    flat = cotangent.reshape(math.prod(positions), math.prod(shape))  # [t... d...] -> [t d]
    return (sum_positions(flat).reshape(shape),)


_repeat_over_positions.defvjp(_repeat_forward, _repeat_backward)


# 4. What is compiled once for the process, and what is computed at the same time.
#
# JAX on CPU runs what one thread dispatches in the order of dispatch, one computation after the
# other, and small products do not keep all cores busy. What different threads dispatch runs side by
# side.

# Two pools: a chain may wait for a compilation.
_COMPILERS = concurrent.futures.ThreadPoolExecutor(
    os.cpu_count(), thread_name_prefix="ntkdiag-compile"
)
_CHAINS = concurrent.futures.ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="ntkdiag-chain")


@functools.cache
def compiled(
    function: Callable[..., Result], static: tuple[int, ...] = (), donate: int | None = None
) -> Callable[..., Result]:
    """A module's function under jit, in full precision; argument `donate` may be overwritten."""
    return jax.jit(
        in_full_precision(function),
        static_argnums=static,
        donate_argnums=donate,
        compiler_options=compiler_options(reduces=False),
    )


class Compiled:
    """A function under jit that can begin to be compiled before it is called."""

    def __init__(self, function: Callable[..., PyTree], options: dict[str, str | bool]):
        self._run = jax.jit(function, compiler_options=options)
        self._begun: list[concurrent.futures.Future] = []

    def begin(self, *args: PyTree) -> None:
        """Trace for arguments of this kind, and compile on another thread."""
        # Tracing holds Python's lock, compiling does not.
        self._begun.append(_COMPILERS.submit(self._run.lower(*args).compile))

    def __call__(self, *args: PyTree) -> PyTree:
        """The function, compiled for arguments of this kind if it has not been."""
        # JAX finds what the threads compiled. Errors there are raised again below.
        concurrent.futures.wait(self._begun)
        self._begun.clear()
        return self._run(*args)


def side_by_side(chains: Sequence[Callable[[], Result]]) -> list[Result]:
    """The results of functions that dispatch computations, each on a thread of its own."""
    # Of the thread-local settings of JAX, only the 64-bit mode is passed on. A chain may not call
    # this itself: it could wait for a thread that never becomes free.
    if len(chains) < 2:
        return [chain() for chain in chains]
    x64 = jax.config.read("jax_enable_x64")

    def on_its_thread(chain: Callable[[], Result]) -> Result:
        with jax.enable_x64(x64):
            return jax.block_until_ready(chain())

    # Even where one chain fails, no other is left running.
    running = [_CHAINS.submit(on_its_thread, chain) for chain in chains[1:]]
    try:
        first = chains[0]()
    finally:
        concurrent.futures.wait(running)
    return [first, *(future.result() for future in running)]
