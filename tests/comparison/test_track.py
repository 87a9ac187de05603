"""`track` against derivatives by hand, and what it does with runs it has seen before."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as orbax
import pytest

import ntkdiag
from ntkdiag import errors
from ntkdiag.comparison import measurer

STEPS = (0, 1, 4, 16)


class Network(nn.Module):
    """With running statistics."""

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(8)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dense(3)(jnp.tanh(x))


MODEL = Network()


def probe(seed):
    x = np.random.default_rng(seed).normal(size=(24, 5)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(int) + (x[:, 1] > 0)


TRAIN, HELD_OUT = probe(0), probe(1)
BIAS = 4  # of the last layer, among the leaves


@pytest.fixture(scope="module")
def run():
    """Step -> variables, all of which move away from where they began."""
    start = MODEL.init(jax.random.key(0), TRAIN[0])
    rng = np.random.default_rng(2)
    moves = jax.tree.map(lambda leaf: rng.uniform(0.1, 1, leaf.shape).astype("f"), start)
    return {
        step: jax.tree.map(lambda leaf, move, k=k: leaf + 0.2 * k * move, start, moves)
        for k, step in enumerate(STEPS)
    }


def tracked(run, **options):
    options = {"train": TRAIN, "loss": "cross_entropy", "descent": 0.1, **options}
    return ntkdiag.track(run, model=MODEL, **options)


@pytest.fixture(scope="module")
def result(run):
    return tracked(run, held_out=HELD_OUT)


def outputs_of(params, stats, x=TRAIN[0]):
    return MODEL.apply({"params": params, "batch_stats": stats}, x)


def kernel_of(variables):
    f = lambda params: outputs_of(params, variables["batch_stats"])
    with jax.default_matmul_precision("highest"):  # on a GPU, too
        jacobian = jax.jacrev(f)(variables["params"])
    rows = [np.asarray(leaf, np.float64).reshape(72, -1) for leaf in jax.tree.leaves(jacobian)]
    return np.concatenate(rows, axis=1) @ np.concatenate(rows, axis=1).T


def centred(kernel):
    """Every output over the 24 examples, on both sides."""
    kernel = kernel.reshape(24, 3, 24, 3)
    kernel = kernel - kernel.mean(axis=0, keepdims=True)
    return (kernel - kernel.mean(axis=2, keepdims=True)).reshape(72, 72)


def test_kernels_and_their_distances(run, result):
    kernels = [kernel_of(variables) for variables in run.values()]
    assert result.steps == list(STEPS)
    np.testing.assert_allclose(result.series("trace"), [np.trace(k) for k in kernels], rtol=1e-5)
    for values, kernel in zip(result.eigenvalues, kernels, strict=True):
        expected = np.linalg.eigvalsh(kernel)[::-1]
        np.testing.assert_allclose(values, expected, atol=1e-5 * expected[0])
    cosine = np.sum(kernels[1] * kernels[3]) / np.prod([np.linalg.norm(kernels[i]) for i in (1, 3)])
    np.testing.assert_allclose(result.matrix("distance")[1, 3], 1 - cosine, rtol=1e-3)
    # The drift is that of the parameters, at the statistics of the later checkpoint.
    start = kernel_of({**run[16], "params": run[0]["params"]})
    moved = np.linalg.norm(kernels[3] - start) / np.linalg.norm(start)
    np.testing.assert_allclose(result.series("drift")[3], moved, rtol=1e-4)
    expected = ntkdiag.drift(start, kernels[3])
    for name, value in (("drift_scale", expected.scale), ("drift_rotation", expected.rotation)):
        np.testing.assert_allclose(result.series(name)[3], value, rtol=1e-4)
    np.testing.assert_allclose(result.series("velocity")[1], result.matrix("distance")[0, 1])
    np.testing.assert_allclose(result.series("leaf_shares").sum(axis=1), 1.0, rtol=1e-6)
    share = 24 * 3 / np.trace(kernels[0])
    np.testing.assert_allclose(result.series("leaf_shares")[0, BIAS], share, rtol=1e-5)


def test_overlap_of_the_leading_modes(run, result):
    kernels = [kernel_of(variables) for variables in run.values()]
    modes = [np.linalg.eigh(centred(kernel))[1][:, -10:] for kernel in kernels]
    expected = np.sum((modes[0].T @ modes[3]) ** 2) / 10
    np.testing.assert_allclose(result.matrix("overlap")[0, 3], expected, rtol=1e-3)


def test_errors_of_the_network_linearized_at_one_checkpoint(run, result):
    for i, j in ((0, 3), (3, 0), (1, 2)):
        start, end = (run[STEPS[number]] for number in (i, j))
        way = jax.tree.map(jnp.subtract, end["params"], start["params"])
        # With the statistics of the one that is predicted.
        f = lambda params, stats=end["batch_stats"]: outputs_of(params, stats)
        begun, change = jax.jvp(f, (start["params"],), (way,))
        reached = f(end["params"])
        missed = jnp.linalg.norm(begun + change - reached) / jnp.linalg.norm(reached - begun)
        np.testing.assert_allclose(result.matrix("e1")[i, j], missed, rtol=1e-3)
        same = np.mean((begun + change).argmax(axis=1) == reached.argmax(axis=1))
        np.testing.assert_allclose(result.matrix("agreement")[i, j], same)
    assert np.isnan(np.diagonal(result.matrix("e1"))).all()


@pytest.mark.slow
def test_findings_are_those_of_compare(run):
    compared = ntkdiag.compare(
        run[0],
        run[16],
        model=MODEL,
        train=TRAIN,
        held_out=HELD_OUT,
        loss="cross_entropy",
        descent=0.1,
    )
    found = {finding.id: finding for finding in compared.findings}
    ends = tracked({0: run[0], 16: run[16]}, held_out=HELD_OUT)
    reversed_in_time = tracked(iter([(16, run[16]), (0, run[0])]), held_out=HELD_OUT)
    for track in (ends, reversed_in_time):
        same = {finding.id: finding for finding in track.findings}
        assert same.keys() == found.keys() >= {"statistics-moved"}
        for name, finding in found.items():
            np.testing.assert_allclose(same[name].value, finding.value, rtol=1e-3)


@pytest.mark.slow
def test_a_run_is_continued_where_it_was(run, tmp_path, monkeypatch):
    out = tmp_path / "ntk"
    begun = {step: run[step] for step in STEPS[:2]}
    tracked(begun, out=out)
    measured = []
    measure = measurer.measure

    def counted(*arguments, **options):
        measured.append(1)
        return measure(*arguments, **options)

    monkeypatch.setattr(measurer, "measure", counted)
    continued = tracked(run, out=out)
    assert len(measured) == 2
    again = tracked(run, out=out)
    assert len(measured) == 2
    at_once = tracked(run)
    for name in ("e1", "distance_centred", "overlap"):
        np.testing.assert_allclose(continued.matrix(name), at_once.matrix(name), rtol=1e-4)
        np.testing.assert_array_equal(continued.matrix(name), again.matrix(name))
    np.testing.assert_array_equal(continued.eigenvalues, again.eigenvalues)
    # What is stored is read back without the model.
    read = ntkdiag.open_run(out).tracked
    assert (read.steps, read.names, read.record) == (again.steps, again.names, again.record)
    for name in again.names:
        np.testing.assert_array_equal(read.series(name), again.series(name))
    for name, matrix in again.matrices.items():
        np.testing.assert_array_equal(read.matrix(name), matrix)
    np.testing.assert_array_equal(read.outputs, again.outputs)


def test_another_setting_or_checkpoint_is_refused(run, tmp_path):
    begun = {0: run[0]}
    tracked(begun, out=tmp_path)
    with pytest.raises(errors.InvalidInputError, match="descent"):
        tracked(begun, out=tmp_path, descent=0.2)
    with pytest.raises(errors.InvalidInputError, match="probes"):
        tracked(begun, out=tmp_path, train=probe(3))
    with pytest.raises(errors.InvalidInputError, match="other parameters at the same step"):
        tracked({0: run[1]}, out=tmp_path)


@pytest.mark.slow
def test_roots_of_managers_lists_and_selections(run, tmp_path):
    with orbax.CheckpointManager(tmp_path / "checkpoints") as manager:
        for step, variables in run.items():
            manager.save(step, args=orbax.args.StandardSave(variables))
    root = tmp_path / "checkpoints"
    assert tracked(root).steps == list(STEPS)
    assert tracked(root, steps=[0, 16]).steps == [0, 16]
    assert tracked([(16, f"{root}@16"), (1, f"{root}@1")]).steps == [1, 16]
    with pytest.raises(errors.InvalidInputError, match="got no step 3"):
        tracked(root, steps=[0, 3])


NO_RUNS = [
    (3, {}, r"got a int. Write track\(enumerate\(checkpoints\)\)"),
    ([], {}, "expected one checkpoint or more, .*; got none"),
    ({-1: 1}, {}, r"steps that are integers from 0 on; got -1"),
    ({0: 1, 1: 2}, {"steps": []}, r"expected the steps to take, .*; got \[\]"),
]


@pytest.mark.usefixtures("wrong_types")
def test_what_is_no_run_is_refused_before_anything_is_read():
    for source, options, said in NO_RUNS:
        with pytest.raises(errors.InvalidInputError, match=said):
            tracked(source, **options)


@pytest.mark.slow
def test_checkpoints_that_cannot_be_compared_are_named(run):
    other = jax.tree.map(lambda leaf: leaf[..., :2], run[1])
    with pytest.raises(errors.StructureError, match=r"Dense_0/kernel: .* checkpoint of step 1\."):
        tracked({0: run[0], np.int64(1): other})
    broken = jax.tree.map(lambda leaf: leaf * np.nan, run[1])
    with pytest.raises(
        errors.InvalidInputError, match=r"of step 7\. Take a checkpoint from before"
    ):
        tracked({0: run[0], 7: broken})


def test_statistics_that_one_checkpoint_lacks_are_not_those_of_another(run):
    """A collection that the model reads stays an error where it is missing, at every step."""
    last = run[16]
    bare = {"params": last["params"]}
    with pytest.raises(errors.StructureError, match=r"step 16: batch_stats/BatchNorm_0/mean: miss"):
        ntkdiag.track({0: run[0], 16: bare}, model=MODEL, train=TRAIN)
    # Where no checkpoint has them those of the model stand in, and the record says so.
    result = ntkdiag.track(
        {0: bare, 16: bare}, model=ntkdiag.functionalize(MODEL, last), train=TRAIN
    )
    assert result.record["not_saved"] == [
        "batch_stats/BatchNorm_0/mean",
        "batch_stats/BatchNorm_0/var",
    ]
    np.testing.assert_allclose(
        result.outputs[1], outputs_of(last["params"], last["batch_stats"], TRAIN[0]), atol=1e-5
    )
