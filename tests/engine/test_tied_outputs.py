"""Kernels with tied output axes against the full kernel: eagerly, in tiles, and inside a trace."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from internals import Batch, Call, Options, Task, TiedOutputs, make_plan, read, run, trace
from tolerance import relative_error

pytestmark = [pytest.mark.usefixtures("x64")]
RNG = np.random.default_rng(0)
A, B, D = 2, 3, 4
PARAMS = {"w": RNG.normal(size=(5, 6)), "v": RNG.normal(size=(6, A * B * D))}
X, X2 = RNG.normal(size=(7, 5)), RNG.normal(size=(4, 5))


def network(p, x):
    """Outputs [n A B D]."""
    return (jnp.tanh(x @ p["w"]) @ p["v"]).reshape(-1, A, B, D)


# Name -> traced axes, diagonal axes, and what becomes of K[n a b d m A B D], lower case the rows'.
TIES = {
    "full": ((), (), "nabdmABD->nabdmABD"),
    "all traced": ((0, 1, 2), (), "nabdmabd->nm"),
    "all diagonal": ((), (0, 1, 2), "nabdmabd->nmabd"),
    "traced and diagonal": ((1,), (0, 2), "nabdmabd->nmad"),
    "one traced": ((2,), (), "nabdmABd->nabmAB"),
    "one diagonal": ((), (1,), "nabdmAbD->nadmADb"),
    "one of each": ((0,), (2,), "nabdmaBd->nbmBd"),
    "two traced": ((0, 2), (), "nabdmaBd->nbmB"),
}


@pytest.fixture(scope="module")
def jacobians():
    with jax.enable_x64(True):
        return [reference.jacobian(lambda p, x: network(p, x), PARAMS, x) for x in (X, X2)]


def expected(jacobians, pattern, columns):
    rows, others = jacobians[0], jacobians[1 if columns else 0]
    full = np.einsum("noP,mpP->nomp", rows, others)
    full = full.reshape(len(rows), A, B, D, len(others), A, B, D)
    return np.einsum(pattern, full)


def pairs(axes):
    return tuple((axis, axis) for axis in axes)


def task_of(name, columns, **options):
    traced, diagonal, _ = TIES[name]
    ties = TiedOutputs((A, B, D), (A, B, D), pairs(traced), pairs(diagonal))
    options = Options(reduction=ties, **options)
    batch = Batch(network, X, {})
    call = Call(PARAMS, batch, Batch(network, X2, {}) if columns else None, None, options)
    call = read(call)
    return Task.of(call, *trace(call))


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("full", False),
        ("one of each", True),
        *(
            pytest.param(name, False, marks=pytest.mark.slow)
            for name in TIES
            if name not in ("full", "one of each")
        ),
    ],
)
def test_as_one_tile(name, columns, jacobians):
    task = task_of(name, columns)
    plan = make_plan(task, None)
    assert plan.blocks.one_tile
    [array] = run(task, plan)
    kernel, error = task.finish(array)
    assert error is None
    assert relative_error(kernel, expected(jacobians, TIES[name][2], columns)) < 1e-12


@pytest.mark.slow
@pytest.mark.parametrize(("name", "columns"), [("one traced", False), ("one of each", True)])
def test_in_tiles(name, columns, jacobians):
    task = task_of(name, columns, most_examples=3)
    plan = make_plan(task, 10**9)
    assert not plan.blocks.one_tile
    [array] = run(task, plan)
    kernel, _ = task.finish(array)
    assert isinstance(kernel, np.ndarray)
    assert relative_error(kernel, expected(jacobians, TIES[name][2], columns)) < 1e-12


@pytest.mark.parametrize("name", ["one of each", pytest.param("full", marks=pytest.mark.slow)])
def test_inside_a_trace(name, jacobians):
    options = task_of(name, columns=False).call.options

    @jax.jit
    def kernel(params, x):
        call = read(Call(params, Batch(network, x, {}), None, None, options))
        task = Task.of(call, *trace(call))
        [array] = run(task, None)
        return task.finish(array)[0]

    want = expected(jacobians, TIES[name][2], columns=False)
    assert relative_error(kernel(PARAMS, X), want) < 1e-12


@pytest.mark.slow
def test_groups_cost_as_much_as_their_outputs():
    """Tying d of [a b d] takes A B outputs at a time, and never pairs outputs of different d."""
    tied = task_of("one traced", columns=False)
    full = task_of("full", columns=False)
    assert tied.rows.directions.n == A * B
    assert tied.reduction.groups.n_traced == D
    plan = make_plan(tied, None)
    assert plan.directions == make_plan(full, None).directions == A * B * D
    assert plan.contraction_flops < make_plan(full, None).contraction_flops / 2


@pytest.mark.slow
def test_outputs_of_different_shapes():
    """Columns have another axis in front; d of the rows is tied to d of the columns."""
    other = lambda p, x: network(p, x).transpose(0, 3, 1, 2)[:, :, :1]  # [n D 1 B]
    ties = TiedOutputs((A, B, D), (D, 1, B), traced=((2, 0),), diagonal=((1, 2),))
    call = Call(PARAMS, Batch(network, X, {}), Batch(other, X2, {}), None, Options(reduction=ties))
    call = read(call)
    task = Task.of(call, *trace(call))
    kernel, _ = task.finish(run(task, make_plan(task, None))[0])
    rows, columns = (reference.jacobian(f, PARAMS, x) for f, x in ((network, X), (other, X2)))
    rows, columns = rows.reshape(7, A, B, D, -1), columns.reshape(4, D, 1, B, -1)
    want = np.einsum("nabdP,mdsbP->namsb", rows, columns)
    assert relative_error(kernel, want) < 1e-12
