"""`ntk` and `plan`: from a call to the kernel in five steps.

read     everything is checked, numpy arrays become JAX arrays             calls/call.py
trace    f becomes a program: how every parameter is used, from shapes     tracing/program.py
plan     the cheapest way of contracting every part, within the memory     planning/
run      the factors of blocks of examples, contracted                     running/
wrap     the numbers become a `Kernel` that knows its convention
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag import memory as budgets
from ntkdiag.arrays import on_automatic_axes
from ntkdiag.engine.calls.call import Call, Examples, Memory, Options, read
from ntkdiag.engine.planning.plan import Plan
from ntkdiag.engine.planning.planner import (
    make_plan,
    require_room_for_directions,
    require_room_for_joint_batch,
    require_room_in_a_trace,
)
from ntkdiag.engine.planning.task import Task
from ntkdiag.engine.running.run import Kernels, run
from ntkdiag.engine.tracing.program import trace
from ntkdiag.jaxtools.precision import unit_roundoff
from ntkdiag.jaxtools.tracing import in_the_trace, is_traced
from ntkdiag.kernel.convention import Convention
from ntkdiag.kernel.digest import digest
from ntkdiag.kernel.kernel import Kernel
from ntkdiag.kernel.reduction import KernelArray, Projection, RandomProjections

# How often examples may be differentiated before it is said.
_MANY_PASSES = 4.0


@errors.public
@on_automatic_axes
def ntk(
    f: Callable[..., PyTree],
    params: PyTree,
    x: PyTree,
    x2: PyTree = None,
    *,
    f2: Callable[..., PyTree] | None = None,
    reduction: str | Projection | RandomProjections = "mean",
    per_leaf: bool | str | Sequence[str] = False,
    preconditioner: PyTree = None,
    memory: Memory | None = None,
    precision: str = "highest",
    examples: Examples | None = None,
    check: bool = True,
    progress: bool | None = None,
    **kwargs: Any,
) -> Kernel:
    """The empirical neural tangent kernel of f at params.

    K[n,o,m,p] = sum_l <d f(x_n)_o / d theta_l, d f(x2_m)_p / d theta_l>, reduced over outputs as
    `reduction` says.

    Each example is differentiated once (one forward, and one backward pass per output direction)
    when its factors fit in the budget; x2=None computes one triangle. Works inside `jax.jit`,
    `jax.grad` and `jax.vmap`, where the whole kernel is one block.

    Args:
        f: `f(params, x, **kwargs)`; its outputs (an array or a pytree of them) have the example
            axis first. It is traced once for its shapes, as by `jax.jit`: what it reads beside its
            arguments is fixed then.
        params: Pytree of real floating arrays.
        x: Row examples: an array or pytree of arrays with the example axis first.
        x2: Column examples; None stands for x.
        f2: Another function of the same parameters for the columns: K = J_f J_f2^T, such as between
            two loss terms. Its number of outputs may differ for "full" and "sum-of-logits".
        reduction: "mean" (default), "trace", "full", "diagonal", "sum-of-logits", a projection of
            shape [C k], `RandomProjections(k)` for an unbiased estimate of the trace, or "auto":
            "full" where that has at most 2048 rows, else "mean". See `Convention`.
        per_leaf: True for the kernel of every leaf as well (`Kernel.leaves`, layers of a scanned
            stack one by one), or path globs for groups of leaves, such as ``["**/attention/*",
            "**/mlp/*"]``. They sum to the whole; leaves that f does not use are left out.
        preconditioner: P of K = J P^-1 J^T: a number, or a pytree like params of numbers or of
            arrays of their shapes (for Adam: (1 - beta1^t) (sqrt(v_hat) + eps)). None is P = 1.
        memory: Budget in bytes, or as "2GB"; None is half of what is free. A joint batch, and a
            kernel inside a transformation, are one block whatever it is. A joint batch that is
            larger is refused; so is a kernel inside a transformation that has no room in what is
            free, or of which not even blocks would fit in the budget.
        precision: Of the products of Jacobians, as `jax.default_matmul_precision` takes it:
            "highest" is the full precision of the dtype on every backend. Network passes always
            have that.
        examples: "independent", or "joint" where examples interact (BatchNorm in train mode): the
            batch is then differentiated as a whole. None follows f: "joint" for a `Functional` in
            mode "train", "independent" for anything else.
        check: Verify that parameters are finite and, on the first call, that independent examples
            are independent.
        progress: Whether to show how far a kernel of several blocks has come, and the time left.
            None does on a terminal, after two seconds; True wherever output goes.
        **kwargs: Handed to f; arrays are shared by all examples.

    Returns:
        A `Kernel` with array [n m], or [n o m p] (full, projection), or [n m o] (diagonal). It lies
        on the host when it was computed in more than one block.

    Raises:
        InvalidInputError: Parameters, inputs, outputs or an option are not as described.
        UnsupportedModelError: JAX cannot differentiate f in reverse mode.
        ExamplesInteractError: Examples interact and are not asked to be differentiated jointly.
        MemoryBudgetError: The budget is too small even for one example at a time, or for a joint
            batch; or there is no room for the output directions, or for one block inside a
            transformation.

    Cost: N C backward passes; N^2 C^2 (full) or N^2 C (trace) times the summed factor widths
    multiply-adds. `plan` says it in numbers.

    Source: Jacot et al. 2018, arXiv:1806.07572; structured contraction as in Novak et al. 2022,
    arXiv:2206.08720, here through scan and checkpoint and chosen for each parameter.

    Example:
        >>> import jax.numpy as jnp, ntkdiag
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
        >>> K = ntkdiag.ntk(lambda w, x: x @ w, jnp.ones((2, 3)), x)
        >>> bool(jnp.allclose(K.array, x @ x.T))
        True
    """
    options = Options(
        reduction=reduction,
        per_leaf=per_leaf,
        memory=memory,
        precision=precision,
        examples=examples,
        check=check,
        progress=progress,
    )
    call = Call.of(f, params, x, x2, f2, preconditioner, kwargs, options)
    return _kernel(read(in_the_trace(call)))


@errors.public
def plan(
    f: Callable[..., PyTree],
    params: PyTree,
    x: PyTree,
    x2: PyTree = None,
    *,
    f2: Callable[..., PyTree] | None = None,
    reduction: str | Projection | RandomProjections = "mean",
    per_leaf: bool | str | Sequence[str] = False,
    preconditioner: PyTree = None,
    memory: Memory | None = None,
    precision: str = "highest",
    examples: Examples | None = None,
    check: bool = True,
    progress: bool | None = None,
    **kwargs: Any,
) -> Plan:
    """What `ntk` would do with these arguments, and what it would cost; nothing is computed.

    Args:
        f: As for `ntk`.
        params: Parameters, or their shapes (`jax.ShapeDtypeStruct`).
        x: Row examples, or their shapes.
        x2: Column examples, or their shapes; None stands for x.
        f2: As for `ntk`.
        reduction: As for `ntk`.
        per_leaf: As for `ntk`.
        preconditioner: As for `ntk`.
        memory: As for `ntk`.
        precision: As for `ntk`.
        examples: As for `ntk`; a joint batch is differentiated as a whole, in one block, and has no
            plan.
        check: Of no consequence here.
        progress: Of no consequence here.
        **kwargs: Handed to f.

    Returns:
        A `Plan`: print it for a table of parameters and how each is contracted, flops, bytes,
        passes, time and memory.

    Raises:
        InvalidInputError: Parameters, inputs, outputs or an option are not as described.
        UnsupportedModelError: JAX cannot differentiate f in reverse mode.
        MemoryBudgetError: The budget is too small even for one example at a time.

    Cost: tracing f a few times; no array is made.

    Example:
        >>> import jax, jax.numpy as jnp, ntkdiag
        >>> w = jax.ShapeDtypeStruct((784, 10), jnp.float32)
        >>> x = jax.ShapeDtypeStruct((64, 784), jnp.float32)
        >>> ntkdiag.plan(lambda w, x: x @ w, w, x, reduction="full").rows[0].factor
        'outer'
    """
    del check, progress
    options = Options(
        reduction=reduction,
        per_leaf=per_leaf,
        memory=memory,
        precision=precision,
        examples=examples,
        check=False,
    )
    # Read, trace and plan as `ntk` does, and stop there.
    call = read(Call.of(f, params, x, x2, f2, preconditioner, kwargs, options))
    _require_independent(call)
    rows, columns = trace(call)
    task = Task.of(call, rows, columns)
    return make_plan(task, budgets.budget(memory))


def _kernel(call: Call) -> Kernel:
    """The kernel of a call that has been read: trace, plan, run, wrap."""
    # 1. Trace: f becomes a program, which is found again for arguments of the same shapes. The task
    #    is that program with these arrays, and says how every part of its Jacobian is contracted.
    rows, columns = trace(call)
    task = Task.of(call, rows, columns)

    # 2. Plan: how many examples at a time, so that the memory suffices.
    plan = _planned(task)

    # 3. Run: one array for every group of leaves.
    kernels = run(task, plan)

    # 4. Wrap: reduce over outputs, and say what the numbers are.
    return _wrapped(task, kernels)


def kernel_array(call: Call) -> KernelArray:
    """The numbers of a kernel alone, for `neural_tangents`, which checks its calls itself."""
    rows, columns = trace(call)
    task = Task.of(call, rows, columns)
    [array] = run(task, _planned(task))
    kernel, _ = task.finish(array)
    return kernel


def _planned(task: Task) -> Plan | None:
    """The plan of a task; None inside a trace and for a joint batch, which are one block anyway."""
    require_room_for_directions(task)
    if task.call.joint:
        require_room_for_joint_batch(task)
        return None
    memory = task.call.options.memory
    # What is free is looked up by `make_plan`, and only if the kernel is large.
    budget = None if memory is None else budgets.budget(memory)
    if task.traced:
        require_room_in_a_trace(task, budget)
        return None
    plan = make_plan(task, budget)
    # Once for a function, its shapes and a budget: a loop over checkpoints would say it every time.
    key = "many passes", plan.budget_bytes, plan.passes
    if plan.passes > _MANY_PASSES and task.rows.program.is_first(key):
        errors.warn(
            f"{errors.current_call()}: within {budgets.readable(plan.budget_bytes)} each example "
            f"is differentiated {plan.passes:.3g} times. With a larger memory= these are fewer.",
            RuntimeWarning,
        )
    return plan


def _wrapped(task: Task, kernels: Kernels) -> Kernel:
    """The arrays of all groups as a kernel: their sum, and each of them where asked for."""
    convention = _convention(task)
    is_symmetric = task.columns is None

    def kernel_of(array: KernelArray) -> Kernel:
        reduced, standard_error = task.finish(array)
        return Kernel(reduced, convention, is_symmetric, standard_error)

    # Groups sum to the kernel of all parameters; an estimate has the error of that sum.
    total = kernels[0]
    for array in kernels[1:]:
        total = total + array
    kernel = kernel_of(total)
    if not task.call.options.per_leaf:
        return kernel
    leaves = {}
    # A function that uses no parameter has one array of zeros, and no name for it.
    for name, array in zip(task.names, kernels, strict=False):
        leaves[name] = kernel_of(array)
    return dataclasses.replace(kernel, leaves=leaves)


def _convention(task: Task) -> Convention:
    """What the numbers of the kernel mean."""
    call = task.call
    # The digest tells later whether two kernels are of the same examples. Inside a trace these are
    # not known, and have none.
    probe = None if is_traced(call.rows.x) else digest(call.rows.x)
    return Convention(
        reduction=task.reduction.name,
        n_outputs=task.reduction.n_outputs,
        examples="joint" if call.joint else "independent",
        mode=getattr(call.rows.f, "mode", "unspecified"),
        precision=task.gram.precision,
        unit_roundoff=_roundoff_of_products(task),
        model_roundoff=max(side.program.jacobian.roundoff for side in task.sides),
        preconditioner=call.preconditioner.kind,
        probe=probe,
        backend=str(getattr(call.rows.f, "backend", "jax")),
    )


def _roundoff_of_products(task: Task) -> float | None:
    """The unit roundoff of products of Jacobians here, where it may be coarser than their dtype."""
    if task.gram.precision == "highest":
        return None
    factor = jax.ShapeDtypeStruct((1, 1), task.dtype)
    with jax.default_matmul_precision(task.gram.precision):
        return unit_roundoff(jax.make_jaxpr(jnp.matmul)(factor, factor))


def _require_independent(call: Call) -> None:
    """Refuse to plan a joint batch."""
    if call.joint:
        raise errors.InvalidInputError(
            expected='examples="independent"',
            got='examples="joint"',
            do="A joint batch is differentiated as a whole, in one block, whatever the budget: "
            "there is no choice.",
        )
