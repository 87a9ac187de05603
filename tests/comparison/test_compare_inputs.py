"""compare(): what it takes for models, parts of models, labels and settings, and changes too small to see."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ntkdiag import compare, open_run, track
from ntkdiag.errors import CheckpointError, InvalidInputError, StructureError

C = 2
X = np.random.default_rng(9).normal(size=(6, 3)).astype(np.float32)


def mlp(params, x):
    return jnp.tanh(x @ params["w"] + params["b"]) @ params["v"]


def mlp_params(seed):
    rng = np.random.default_rng(seed)
    return {
        name: rng.normal(size=s).astype(np.float32)
        for name, s in (("w", (3, 4)), ("b", (4,)), ("v", (4, C)))
    }


@pytest.mark.slow
def test_filtered_equinox_modules_are_parameters():
    nets = [eqx.nn.MLP(3, 2, 4, 1, key=jax.random.key(seed)) for seed in (0, 1)]
    (a, rest), (b, _) = (eqx.partition(net, eqx.is_array) for net in nets)
    want = compare(*nets, train=(X, None))
    call = lambda params, x: jax.vmap(eqx.combine(params, rest))(x)
    for found in (
        compare(a, b, model=nets[0], train=(X, None)),
        compare(nets[0], b, train=(X, None)),
        compare(a, b, model=call, train=(X, None)),
    ):
        assert found["e1"] == pytest.approx(want["e1"], rel=1e-5)
        assert found.b["trace"] == pytest.approx(want.b["trace"], rel=1e-5)


@pytest.mark.parametrize(("step", "verdict"), [(1e-8, "UNCHANGED"), (1e-4, "LAZY")])
def test_changes_within_rounding(step, verdict):
    a = mlp_params(0)
    b = jax.tree.map(lambda p: p + np.float32(step), a)
    found = compare(a, b, model=mlp, train=(X, None))
    assert found.verdict.name == verdict
    assert np.isnan(found["e1"]) == (verdict == "UNCHANGED")


def test_two_models_are_refused():
    nets = [eqx.nn.MLP(3, C, width, 1, key=jax.random.key(0)) for width in (4, 5)]
    by_kernels = r"ntkdiag\.analysis\.drift\(ntkdiag\.ntk\(f, p, x\), ntkdiag\.ntk\(g, q, x\)\)"
    with pytest.raises(StructureError, match=by_kernels):
        compare(*nets, train=(X, None))
    with pytest.raises(InvalidInputError, match=by_kernels):
        compare(mlp_params(0), mlp_params(1), model=(mlp, mlp), train=(X, None))


def test_a_run_directory_is_no_side_and_has_the_distances(tmp_path):
    run = tmp_path / "run"
    track({step: mlp_params(step) for step in (0, 1)}, model=mlp, train=(X, None), out=run)
    for side in (run, f"{run}@0"):
        with pytest.raises(CheckpointError, match=r"ntkdiag\.open_run\(.*\.tracked\.matrix\("):
            compare(side, mlp_params(1), model=mlp, train=(X, None))
    assert open_run(run).tracked.matrix("distance_centred").shape == (2, 2)
