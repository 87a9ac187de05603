"""Everything that depends on the version of JAX or XLA stands in this file.

1. Jaxprs: `jax.extend` carries no compatibility guarantee, so that the names, classes and
   parameters that differ between versions are read here, and nowhere else.
2. Questions to a jaxpr: what occurs anywhere in it, loops and branches included.
3. The trace under way: its settings, and whether there is one.
4. XLA on CPU: which compiler options compute float32 derivatives of normalisation layers rightly.
5. Words between the processes of a program, which JAX has no public call for.

Differences between versions are found by looking at the objects (feature detection), never by
comparing version numbers.
"""

import concurrent.futures
import contextlib
import functools
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.core
import jax.extend.core as jex_core
import jax.numpy as jnp
import numpy as np
from jax.interpreters import partial_eval
from jaxtyping import Array, Float, Int, PyTree

# 1. Jaxprs.

# What a jaxpr is made of: variables and literals ("atoms"), and equations between them. JAX
# declares less than these have (an aval without a shape, for one), so a type checker takes them as
# they come; the structure of a tree it declares as a variable, which is no type.
if TYPE_CHECKING:
    Jaxpr: TypeAlias = Any
    ClosedJaxpr: TypeAlias = Any
    Equation: TypeAlias = Any
    Variable: TypeAlias = Any
    Atom: TypeAlias = Any
    TreeStructure: TypeAlias = Any
else:
    Jaxpr = jex_core.Jaxpr
    ClosedJaxpr = jex_core.ClosedJaxpr
    Equation = jex_core.JaxprEqn
    Variable = jex_core.Var
    Atom = jex_core.Var | jex_core.Literal
    TreeStructure = jax.tree_util.PyTreeDef

Literal = jex_core.Literal
Tracer = jax.core.Tracer
eval_jaxpr: Callable[..., list] = jax.core.eval_jaxpr


def open_jaxpr(jaxpr: Jaxpr | ClosedJaxpr) -> tuple[Jaxpr, list]:
    """Split an open or closed jaxpr into (jaxpr, consts)."""
    # From JAX 0.11 on both are one class, with `consts` and without `jaxpr`.
    opened = getattr(jaxpr, "jaxpr", jaxpr)
    consts = getattr(jaxpr, "consts", ())
    return opened, list(consts)


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """(number of constants, number of carries) among the inputs of a `scan` equation."""
    if "ft_in" in params:  # JAX >= 0.11: the inputs as a tree of these three
        consts, carry, _ = params["ft_in"].unpack()
        return len(consts), len(carry)
    return params["num_consts"], params["num_carry"]


def bind(eqn: Equation, values: list) -> list:
    """The outputs of an equation of a jaxpr, applied to other values."""
    primitive = eqn.primitive
    outputs = primitive.bind(*values, **primitive.get_bind_params(eqn.params))
    if primitive.multiple_results:
        return list(outputs)
    return [outputs]


def sub_jaxprs(eqn: Equation) -> list[Jaxpr]:
    """The jaxprs nested in one equation: bodies of loops, branches, calls."""
    return [open_jaxpr(jaxpr)[0] for jaxpr in jex_core.jaxprs_in_params(eqn.params)]


def with_bodies(eqn: Equation, rebuilt: Callable[[Jaxpr, list], ClosedJaxpr]) -> Equation:
    """The same equation with `rebuilt(jaxpr, consts)` in place of every jaxpr nested in it."""

    def rebuilt_parameter(value: Any) -> Any:
        """A parameter of the equation, rebuilt if it is a jaxpr or a tuple of some."""
        if _is_jaxpr(value):
            closed = rebuilt(*open_jaxpr(value))
            # What stood there open stays open: such a body has no place for constants.
            return closed if hasattr(value, "consts") else open_jaxpr(closed)[0]
        if isinstance(value, tuple) and value and all(map(_is_jaxpr, value)):
            return tuple(map(rebuilt_parameter, value))  # the branches of `cond`
        return value

    params = {name: rebuilt_parameter(value) for name, value in eqn.params.items()}
    return eqn.replace(params=params)


def _is_jaxpr(value: Any) -> bool:
    """Whether a parameter of an equation is a jaxpr, open or closed."""
    return hasattr(value, "eqns")


def is_ref(atom: Atom) -> bool:
    """Whether a value of a jaxpr is a mutable array (`jax.new_ref`).

    What writes to one has no output to show for it.
    """
    return hasattr(atom.aval, "inner_aval")


# 2. Questions to a jaxpr.


def contains(jaxpr: Jaxpr | ClosedJaxpr, primitive: str) -> bool:
    """Whether a primitive occurs anywhere in a jaxpr."""
    return _occurs(jaxpr, lambda eqn: eqn.primitive.name == primitive)


def normalises(jaxpr: Jaxpr | ClosedJaxpr) -> bool:
    """Whether a jaxpr sums and takes roots of arrays, as normalisation layers do.

    A root of a single number is that of a width.
    """

    def is_root(eqn: Equation) -> bool:
        return eqn.primitive.name in ("rsqrt", "sqrt", "pow") and bool(eqn.outvars[0].aval.shape)

    return contains(jaxpr, "reduce_sum") and _occurs(jaxpr, is_root)


def contains_refs(jaxpr: Jaxpr | ClosedJaxpr) -> bool:
    """Whether a mutable array is made anywhere in a jaxpr."""
    return _occurs(jaxpr, lambda eqn: any(map(is_ref, eqn.outvars)))


def judges_numbers(jaxpr: Jaxpr | ClosedJaxpr) -> tuple[bool, bool]:
    """Whether a jaxpr loops until something holds, and whether it calls back.

    Solvers iterate until a residual is small: one that is NaN never is, and the loop never ends.
    Guards (`equinox.error_if`, those of lineax and diffrax) are callbacks: of NaN they raise.
    """
    loops = contains(jaxpr, "while")
    calls_back = _occurs(jaxpr, lambda eqn: "callback" in eqn.primitive.name)
    return loops, calls_back


# Unless they are told otherwise, accelerators round the factors of float32 products: a GPU to TF32
# with 10 bits, a TPU to bfloat16.
_EPS_OF_FACTORS = {"gpu": 2.0**-10, "tpu": 2.0**-7}
_FULL_PRECISION = (jax.lax.Precision.HIGHEST, jax.lax.DotAlgorithmPreset.F32_F32_F32)


def eps_of_factors(eqn: Equation) -> float:
    """How coarsely the factors of a float32 product are rounded here; 0 where they are not."""
    if eqn.primitive.name not in ("dot_general", "conv_general_dilated"):
        return 0.0
    asked = eqn.params["precision"]
    asked = asked if isinstance(asked, tuple) else (asked,)
    is_full = all(precision in _FULL_PRECISION for precision in asked)
    if is_full or eqn.outvars[0].aval.dtype != np.float32:
        return 0.0
    return _EPS_OF_FACTORS.get(jax.default_backend(), 0.0)


def needs_inputs(f: Callable[[PyTree], PyTree], inputs: PyTree) -> bool:
    """Whether the outputs of f need any of these inputs; f is traced, not run."""
    jaxpr, _ = open_jaxpr(jax.make_jaxpr(f)(inputs))
    # Dead code goes out of nested jaxprs too: what is computed and not used counts as nothing.
    _, is_used = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))
    return any(is_used)


def is_same_program(a: ClosedJaxpr, b: ClosedJaxpr) -> bool:
    """Whether two traces of a function gave the same operations on the same constants."""
    jaxpr_a, consts_a = open_jaxpr(a)
    jaxpr_b, consts_b = open_jaxpr(b)
    if len(consts_a) != len(consts_b) or _without_addresses(jaxpr_a) != _without_addresses(jaxpr_b):
        return False
    # Constants are most often the very same arrays; others are compared by their numbers.
    for constant, other in zip(consts_a, consts_b, strict=True):
        if constant is not other and not np.array_equal(constant, other):
            return False
    return True


def _without_addresses(jaxpr: Jaxpr) -> str:
    """A jaxpr as text, without the addresses of functions, which are others in every trace."""
    return re.sub(r"0x[0-9a-f]+", "", str(jaxpr))


def _occurs(jaxpr: Jaxpr | ClosedJaxpr, holds: Callable[[Equation], bool]) -> bool:
    """Whether something holds for any equation of a jaxpr, or of the jaxprs nested in it."""
    opened, _ = open_jaxpr(jaxpr)
    for eqn in opened.eqns:
        if holds(eqn):
            return True
        if any(_occurs(body, holds) for body in sub_jaxprs(eqn)):
            return True
    return False


# 3. The trace under way.

_LOOPS = "jax._src.lax.control_flow.loops"


def vjp(f: Callable[..., tuple[Array, PyTree]], *primals: PyTree) -> tuple[Array, Callable, PyTree]:
    """`jax.vjp(f, *primals, has_aux=True)` inside a trace, traced in half the time.

    `f` returns (y, aux); this returns y, the function from cotangents of y to those of the primals,
    and aux. `jax.vjp` makes a jaxpr of every equation of f. Here one pass of JVP rules under the
    trace that is there already leaves what is linear in the tangents, and only that is transposed.
    """
    # y and aux do not depend on the tangents, so they are values of the enclosing trace; a function
    # that is to be transposed may only return what is linear, so they are handed out beside it.
    handed_out: list = []

    def pushforward(*tangents: PyTree) -> Array:
        y, dy, aux = jax.jvp(f, primals, tangents, has_aux=True)
        handed_out[:] = y, aux
        return dy

    pullback = jax.linear_transpose(pushforward, *primals)
    y, aux = handed_out
    return y, pullback, aux


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
    """What decides how a function is traced beside its arguments: random numbers, dtypes, mesh."""
    settings = []
    for name in (
        "jax_enable_x64",
        "jax_default_prng_impl",
        "jax_threefry_partitionable",
        "jax_numpy_dtype_promotion",
    ):
        settings.append(getattr(jax.config, name, None))  # None where a version has no such setting
    return (*settings, jax.sharding.get_abstract_mesh())


def settings_of_thread() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """The settings of JAX that this thread has by itself, for another one to enter.

    `with jax.default_device(...)` and the like hold in the thread that they were written in.
    """
    config: Any = jax.config
    wide = config.jax_enable_x64
    device = config.jax_default_device
    precision = config.jax_default_matmul_precision

    @contextlib.contextmanager
    def entered() -> Iterator[None]:
        with (
            jax.enable_x64(wide),
            jax.default_device(device),
            jax.default_matmul_precision(precision),
        ):
            yield

    return entered


def committed(tree: PyTree) -> bool:
    """Whether any array was put on devices of somebody's choice.

    JAX compiles for the place, not only for the shape.
    """
    return any(getattr(leaf, "committed", False) for leaf in jax.tree.leaves(tree))


def at_least_float32(dtype: jax.typing.DTypeLike) -> np.dtype:
    """float32, or the dtype itself if it is wider."""
    # Whatever promotion the session allows its own arrays: under "strict" there would be none.
    with jax.numpy_dtype_promotion("standard"):
        return jnp.promote_types(dtype, jnp.float32)


def is_in_loop() -> bool:
    """Whether the body of a `jax.lax` loop is being traced.

    Traces do not know of those around them: the loop is looked for on the stack.
    """
    frame = sys._getframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == _LOOPS:
            return True
        frame = frame.f_back
    return False


def call_host(call: Callable[..., int], *arrays: PyTree) -> Int[Array, ""]:
    """Call a function on the host from a compiled program; its answer has to be used.

    In the body of a loop it is called whether or not that is used, and the answer is 0. Elsewhere
    the answer is what it is called for: an effect would take JAX off its fast way of calling a
    compiled step, at the cost of some 40 microseconds for every array that goes in or out.
    """

    def answered(*arrays: PyTree) -> np.ndarray:
        # Arithmetic of JAX waits for the threads of XLA, all of which may wait for this answer.
        return np.asarray(call(*jax.tree.map(np.asarray, arrays)), np.int32)

    def told(*arrays: PyTree) -> None:
        answered(*arrays)

    if is_in_loop():
        jax.debug.callback(told, *arrays)
        return jnp.zeros((), jnp.int32)

    result = jax.ShapeDtypeStruct((), jnp.int32)
    return jax.pure_callback(answered, result, *arrays, vmap_method="sequential")


# 4. XLA on CPU: float32 backward passes of normalisation layers.
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
    """Whether float32 RMSNorm backward passes compiled with these options are right.

    `once` as in `compiler_options`: other programs come of it.
    """
    cases, answers = _known_answers()

    # In one program: compiling is what costs.
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


def _first_passing_options(once: bool) -> dict[str, str] | None:
    """The first candidate that passes the known-answer test."""
    for options in _CPU_OPTION_CANDIDATES:
        if passes_known_answer_test(options, once=once):
            return options
    return None


@functools.cache
def known_answer_test(once: bool = False) -> concurrent.futures.Future:
    """The known-answer test, which begins on another thread when this is first called.

    It has to compile: who knows early that its result is needed calls this, and goes on meanwhile.
    """
    thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="ntkdiag-known-answer")
    return thread.submit(_first_passing_options, once)


def trusted_cpu_options(*, once: bool = False) -> dict[str, str] | None:
    """The first XLA options that pass the known-answer test on this machine; None if none do."""
    return known_answer_test(once).result()


def _effort(*, once: bool) -> dict[str, str | bool]:
    """How hard XLA's code generator for CPUs tries.

    Its first level compiles networks in 0.7 to 0.95 of the time of the third, its default, and they
    run as fast; what runs once (`once`) is not worth more than none. Its former emitters, which
    JAX 0.10 can still choose, compile several times faster then, and what they make is as slow.
    """
    # Under this setting of the user's, JAX chooses the level by itself.
    if jax.config.read("jax_disable_most_optimizations"):
        return {}
    if not once:
        return {"xla_backend_optimization_level": "1"}
    has_former_emitters = jax.__version_info__ < (0, 11)
    former_emitters = {"xla_cpu_use_fusion_emitters": False} if has_former_emitters else {}
    return {"xla_backend_optimization_level": "0", **former_emitters}


def compiler_options(*, reduces: bool, once: bool = False) -> dict[str, str | bool]:
    """XLA options for a program that ntkdiag compiles itself.

    `reduces` says that it contains a reduction and runs in float32, `once` that it is run once, or
    so seldom that compiling it takes longer.
    """
    if jax.default_backend() != "cpu":
        return {}
    options = _effort(once=once)
    if reduces:
        trusted = trusted_cpu_options(once=once)
        if trusted is None:
            warn_if_untrusted_jit()
        else:
            options |= trusted
    return options


def warn_if_untrusted_jit(normalises: Callable[[], bool] = lambda: True) -> None:
    """Warn once when numbers computed inside the user's own `jit` cannot be trusted on this CPU.

    ntkdiag chooses the compiler options of what it compiles itself; inside a user's `jit` it
    cannot. `normalises` says whether the network has what XLA gets wrong; it is asked on CPUs only.
    """
    if jax.default_backend() != "cpu" or not normalises():
        return
    trusted = trusted_cpu_options()
    if trusted is None:
        use_float64 = "Use float64 (jax_enable_x64)"
        if jax.config.read("jax_enable_x64"):
            use_float64 = "Make the parameters float64"
        warn_untrusted(f"{use_float64}, or run the step under jax.disable_jit() to check a number.")
    elif trusted:  # any options that are not XLA's default
        warn_untrusted(
            "Set XLA_FLAGS=--xla_cpu_experimental_ynn_fusion_type= before JAX starts, or measure "
            "outside your jit with ntkdiag.Monitor, which chooses right options by itself."
        )


@functools.cache
def warn_untrusted(do: str) -> None:
    """Warn of wrong float32 derivatives, once for each advice on what to do."""
    warnings.warn(
        "XLA on this CPU computes float32 backward passes of normalisation layers wrongly at some "
        f"shapes (known-answer test failed). {do}",
        RuntimeWarning,
        stacklevel=4,  # above this function, `warn_if_untrusted_jit`, and what of ours called that
    )


# 5. Words between the processes of a program.


def say_to_processes(key: str, text: str) -> None:
    """Have the other processes of the program hear a text under a key that nobody used before."""
    client = _coordination_client()
    if client is not None:
        client.key_value_set(key, text)


def hear_of_process(key: str, seconds: float) -> str | None:
    """The text that a process said under a key; None where nobody did for so long."""
    client = _coordination_client()
    if client is None:
        return None
    try:
        return client.blocking_key_value_get(key, int(1000 * seconds))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error):
            return None
        raise


def can_hear_processes() -> bool:
    """Whether there is a way for words between processes."""
    return _coordination_client() is not None


def _coordination_client() -> Any:
    """What the processes of a program speak through; None where they were not introduced."""
    from jax._src import distributed

    return getattr(getattr(distributed, "global_state", None), "client", None)
