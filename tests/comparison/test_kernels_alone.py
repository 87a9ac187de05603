"""Sides without common parameters, models of two structures and steps of a run directory: what kernels alone say."""

import html.parser
import json
import shutil

import flax.linen as nn
import jax
import numpy as np
import optax
import pytest
from internals import advice, checked_line_of, readings

from ntkdiag import compare, functionalize, open_run, track
from ntkdiag.comparison import Comparison
from ntkdiag.errors import CheckpointError, InvalidInputError, StructureError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(6, 3)).astype(np.float32)
Y = np.array([0, 1, 0, 1, 1, 0])
C = 2


class Net(nn.Module):
    width: int
    outputs: int = C

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.outputs)(nn.tanh(nn.Dense(self.width)(x)))


def params_of(net, seed=0):
    return net.init(jax.random.key(seed), X)["params"]


NARROW, WIDE, THREE = Net(4), Net(7), Net(5, outputs=3)


def jacobian_kernel(net, params, reduction):
    """K by a dense Jacobian in float64, which shares nothing with the package."""
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params)
        jacobian = jax.jacrev(lambda p: net.apply({"params": p}, X.astype(np.float64)))(params)
        flat = [np.asarray(leaf).reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(jacobian)]
    rows = np.concatenate(flat, axis=-1)  # [n o p]
    full = np.einsum("nop,mqp->nomq", rows, rows)
    return full if reduction == "full" else np.einsum("nomo->nm", full) / rows.shape[1]


def distance(a, b):
    return 1 - np.sum(a * b) / (np.linalg.norm(a) * np.linalg.norm(b))


def centred(kernel):
    kernel = kernel - kernel.mean(0, keepdims=True)
    axis = 2 if kernel.ndim == 4 else 1
    return kernel - kernel.mean(axis, keepdims=True)


def matrix(kernel):
    return kernel.reshape(len(kernel) * kernel.shape[1], -1) if kernel.ndim == 4 else kernel


def overlap(a, b, m):
    modes_a = np.linalg.eigh(matrix(centred(a)))[1][:, -m:]
    modes_b = np.linalg.eigh(matrix(centred(b)))[1][:, -m:]
    return np.sum((modes_a.T @ modes_b) ** 2) / m


@pytest.fixture(scope="module")
def two_models():
    return compare(
        params_of(NARROW),
        params_of(WIDE, 1),
        model=(NARROW, WIDE),
        train=(X, Y),
        loss="cross_entropy",
        descent=0.1,
    )


@pytest.mark.long
def test_kernels_of_two_models(two_models):
    params_a, params_b = params_of(NARROW), params_of(WIDE, 1)
    kernel_a = jacobian_kernel(NARROW, params_a, "full")
    kernel_b = jacobian_kernel(WIDE, params_b, "full")
    found = two_models
    np.testing.assert_allclose(found.a.trace, np.trace(matrix(kernel_a)), rtol=1e-5)
    np.testing.assert_allclose(found.b.trace, np.trace(matrix(kernel_b)), rtol=1e-5)
    np.testing.assert_allclose(found.drift.distance, distance(kernel_a, kernel_b), rtol=1e-4)
    np.testing.assert_allclose(
        found.drift.distance_centred, distance(centred(kernel_a), centred(kernel_b)), rtol=1e-4
    )
    alone = found.kernels_alone
    assert alone.modes == 10
    np.testing.assert_allclose(alone.overlap, overlap(kernel_a, kernel_b, 10), rtol=1e-3)
    assert alone.overlap_by_chance == 1.0  # of 12 rows, centred
    decided = [
        np.asarray(net.apply({"params": params}, X)).argmax(1)
        for net, params in ((NARROW, params_a), (WIDE, params_b))
    ]
    assert alone.agreement == np.mean(decided[0] == decided[1])


def test_each_side_has_its_own_numbers(two_models):
    options = {"train": (X, Y), "loss": "cross_entropy", "descent": 0.1}
    other = jax.tree.map(lambda leaf: leaf + 0.5, params_of(WIDE, 1))
    of_wide = compare(params_of(WIDE, 1), other, model=WIDE, **options).a
    for name in ("loss", "accuracy", "margin", "critical_learning_rate", "params_sha256"):
        assert getattr(two_models.b, name) == getattr(of_wide, name), name
    assert two_models.b.alignment.value == of_wide.alignment.value
    np.testing.assert_array_equal(two_models.b.label_power, of_wide.label_power)


def test_what_has_no_parameters_in_common_is_not_there_and_says_why(two_models):
    assert two_models.prediction is None
    assert two_models.movement == ()
    reason = "different parameters: linen Net with 26 parameters at A, linen Net with 44 at B"
    reason = reason.replace("44 at", "44 parameters at")
    assert two_models.kernels_alone.reason == reason
    content = two_models.to_dict()
    json.dumps(content, allow_nan=False)
    assert content["linearization"] is None
    assert content["movement"] == []
    assert content["kernels_alone"]["reason"] == reason
    assert (content["facts"]["parameters"], content["facts"]["parameters_b"]) == (26, 44)
    verdict = content["verdict"]
    assert (verdict["name"], verdict["regime"]) == ("KERNELS ALONE", "kernels alone")
    assert verdict["numbers"].startswith("S_c = ")


def test_tables_and_sentences_of_two_models(two_models):
    text = two_models.text(everything=True, width=200)
    for part in (
        "KERNELS ALONE",
        "overlap of the 10 leading modes",
        "same decision of A and B",
        "linen Net, 26 float32 parameters, mode eval, C = 2",
        "linen Net, 44 float32 parameters, mode eval, C = 2",
    ):
        assert part in text
    lines = [line for line in text.splitlines() if "Not there: different parameters" in line]
    assert [line.split("  ")[0].strip() for line in lines] == [
        "parameter movement",
        "linearization error",
        "quadratic error",
    ]
    assert "leaf by leaf" not in two_models.text()
    said = readings(two_models)
    assert said[0].startswith("Only kernels and outputs are compared (different parameters: ")
    assert any(line.startswith("The centred kernels have a distance of 0.") for line in said)
    assert any("10 leading modes share " in line for line in said)
    assert any(line.startswith("A and B decide alike on ") for line in said)
    for line in (*said, *advice(two_models)):
        assert "did not move" not in line
        assert "between A and B" not in line
    assert "KERNELS ALONE" in repr(two_models)
    assert "linearization error" in two_models._repr_html_()


class Text(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.text = ""
        self.feed(page)

    def handle_data(self, data):
        self.text += data


def test_page_of_two_models(two_models, tmp_path):
    two_models.save(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    text = Text(page).text
    for part in (
        "KERNELS ALONE",
        "Modes in common",
        "model at B",
        "Not there: different parameters",
    ):
        assert part in text
    for absent in ("Linear prediction", "leaves in numbers", "The linear prediction of B is"):
        assert absent not in text
    assert 'id="spectra-' in page
    assert 'id="movement-' not in page
    two_models.save(tmp_path / "run")
    (row,) = open_run(tmp_path / "run").rows("compare")
    assert row["kernels_alone_overlap"] == two_models.kernels_alone.overlap
    two_models.save(tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text())["movement"] == []
    assert two_models.plot().get_title() == "Eigenvalues, with noise floors"
    with pytest.raises(AttributeError):
        two_models.plot.movement()


@pytest.mark.slow
def test_another_number_of_outputs_compares_reduced_kernels():
    options = {"model": (NARROW, THREE), "train": (X, Y), "loss": "cross_entropy"}
    found = compare(params_of(NARROW), params_of(THREE), **options)
    kernel_a = jacobian_kernel(NARROW, params_of(NARROW), "mean")
    kernel_b = jacobian_kernel(THREE, params_of(THREE), "mean")
    assert found.facts["kernel"] == "mean over outputs, Σ_c Θ_cc / C, 6 × 6"
    assert (found.facts["n_outputs"], found.facts["n_outputs_b"]) == (2, 3)
    np.testing.assert_allclose(found.drift.distance, distance(kernel_a, kernel_b), rtol=1e-4)
    assert found.kernels_alone.agreement is None  # classes of two sets do not compare
    assert found.a.accuracy is not None
    assert found.b.accuracy is not None
    assert "C = 3" in found.text(everything=True)
    with pytest.raises(InvalidInputError) as caught:
        compare(params_of(NARROW), params_of(THREE), reduction="full", **options)
    for part in ("same number of outputs; got 2 outputs at A and 3 outputs at B",):
        assert part.replace("3 outputs", "3") in str(caught.value)


def test_tables_of_two_models(two_models):
    pytest.importorskip("xarray")
    dataset = two_models.to_xarray()
    assert dataset["outputs"].shape == (2, 6, 2)
    assert "outputs_start" not in dataset
    assert float(dataset["overlap"]) == two_models.kernels_alone.overlap
    between = two_models.to_pandas().attrs["between"]
    assert between["agreement_of_sides"] == two_models.kernels_alone.agreement
    options = {"model": (NARROW, THREE), "train": (X, None)}
    other = compare(params_of(NARROW), params_of(THREE), **options).to_xarray()
    assert (other["outputs_a"].shape, other["outputs_b"].shape) == ((6, 2), (6, 3))


def test_optimizers_are_of_checkpoints_of_one_model():
    options = {"model": (NARROW, WIDE), "train": (X, Y), "loss": "mse"}
    with pytest.raises(InvalidInputError, match=r"two checkpoints of one model, whose optimizers"):
        compare(params_of(NARROW), params_of(WIDE), optimizer=optax.adam(0.1), **options)


def test_two_models_of_one_structure():
    def stretched(params, x):
        return NARROW.apply({"params": params}, 2 * x)

    found = compare(
        params_of(NARROW), params_of(NARROW), model=(NARROW, stretched), train=(X, None)
    )
    assert found.kernels_alone.reason.startswith("two models: linen Net with 26 parameters at A")
    assert found.drift.distance > 0


@pytest.mark.long
def test_models_of_two_structures_need_no_pair():
    a = functionalize(NARROW, {"params": params_of(NARROW)})
    b = functionalize(WIDE, {"params": params_of(WIDE)})
    found = compare(a, b, train=(X, None))
    assert found.kernels_alone is not None
    # One model, or one beside a side of its own, says that both are meant to be the same.
    with pytest.raises(StructureError, match="3 differences"):
        compare(params_of(NARROW), params_of(WIDE), model=NARROW, train=(X, None))
    with pytest.raises(StructureError, match="3 differences"):
        compare(a, params_of(WIDE), train=(X, None))
    same = compare(a, a.with_params(params_of(NARROW, 1)), train=(X, None))
    assert same.kernels_alone is None


@pytest.mark.long
def test_variables_of_two_models():
    of_a, of_b = {"params": params_of(NARROW)}, {"params": params_of(WIDE)}
    found = compare(
        params_of(NARROW, 1), params_of(WIDE, 1), model=(NARROW, WIDE), variables=(of_a, of_b),
        train=(X, None),
    )  # fmt: skip
    assert found.kernels_alone is not None
    with pytest.raises(StructureError, match="3 differences"):
        compare(of_a, of_b, model=(NARROW, WIDE), variables=(of_a, of_a), train=(X, None))
    with pytest.raises(InvalidInputError, match=r"\(variables_a, variables_b\), or None"):
        compare(of_a, of_b, model=(NARROW, WIDE), variables=of_a, train=(X, None))


@pytest.mark.long
def test_held_out_examples_of_two_models():
    x2 = RNG.normal(size=(4, 3)).astype(np.float32)
    found = compare(
        params_of(NARROW),
        params_of(WIDE),
        model=(NARROW, WIDE),
        train=(X, Y),
        held_out=(x2, np.array([0, 1, 1, 0])),
    )
    assert found.b.held_out.kernel.shape == (4, 4)
    assert found.a.alignment_gap is not None


@pytest.mark.long
def test_a_model_that_is_dead_is_dead_beside_another_one():
    dead = jax.tree.map(np.zeros_like, params_of(WIDE))
    found = compare(params_of(NARROW), dead, model=(NARROW, WIDE), train=(X, Y))
    assert found.verdict.name == "DEAD"
    assert readings(found)[0].startswith("B is dead: ")


# Steps of a run directory.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run that was tracked: its directory and its checkpoints."""
    out = tmp_path_factory.mktemp("run") / "ntk"
    checkpoints = {step: params_of(NARROW, step) for step in (0, 100)}
    track(checkpoints, model=NARROW, train=(X, Y), loss="cross_entropy", descent=0.1, out=out)
    return out, checkpoints


@pytest.fixture(scope="module")
def in_memory(run):
    _, checkpoints = run
    return compare(
        checkpoints[0],
        checkpoints[100],
        model=NARROW,
        train=(X, Y),
        loss="cross_entropy",
        descent=0.1,
    )


def assert_same_kernels(found, expected):
    for name in ("relative", "distance", "distance_centred"):
        np.testing.assert_allclose(
            getattr(found.drift, name), getattr(expected.drift, name), rtol=1e-4
        )
    for side, same in ((found.a, expected.a), (found.b, expected.b)):
        np.testing.assert_allclose(side.trace, same.trace, rtol=1e-5)
        assert side.accuracy == same.accuracy
        np.testing.assert_allclose(side.alignment.value, same.alignment.value, rtol=1e-4)


@pytest.mark.long
def test_two_steps_of_a_run(run, in_memory, tmp_path):
    out, _ = run
    found = compare(f"{out}@0", f"{out}@100")
    assert isinstance(found, Comparison)
    assert_same_kernels(found, in_memory)
    assert (found.a.label, found.b.label) == ("step 0", "step 100")
    assert found.kernels_alone.reason == (
        "no parameters: of step 0 and step 100 a run directory holds kernel and outputs alone"
    )
    assert found.facts["train_sha256"] == in_memory.facts["train_sha256"]
    assert found.facts["parameters"] == in_memory.facts["parameters"]
    assert found.a.loss is found.a.margin is None  # no loss was named
    found.save(tmp_path / "report.html")
    assert "linen model, 26 float32 parameters" in found.text(everything=True)


def test_two_steps_of_a_run_with_the_examples(run, in_memory):
    out, _ = run
    options = {"loss": "cross_entropy", "descent": 0.1}
    found = compare(f"{out}@0", out, train=(X, Y), **options)
    assert_same_kernels(found, in_memory)
    np.testing.assert_allclose(found.a.loss, in_memory.a.loss, rtol=1e-5)
    np.testing.assert_allclose(found.a.margin, in_memory.a.margin, rtol=1e-4)
    np.testing.assert_allclose(found.b.label_power, in_memory.b.label_power, atol=1e-4)
    np.testing.assert_allclose(found.b.leave_one_out, in_memory.b.leave_one_out, rtol=1e-2)
    # The run has the labels of its examples, too.
    without = compare(f"{out}@0", out, **options)
    assert (without.a.loss, without.b.margin) == (found.a.loss, found.b.margin)
    assert without.verdict.numbers == found.verdict.numbers


def test_two_steps_of_a_run_without_labels(tmp_path):
    checkpoints = {step: params_of(NARROW, step) for step in (0, 1)}
    track(checkpoints, model=NARROW, train=(X, None), out=tmp_path / "run")
    found = compare(f"{tmp_path}/run@0", f"{tmp_path}/run@1")
    assert found.a.alignment is None
    assert found.verdict.task == "unknown"
    with pytest.raises(InvalidInputError, match="examples with their labels beside loss= and desc"):
        compare(f"{tmp_path}/run@0", f"{tmp_path}/run@1", loss="mse")


@pytest.mark.long
def test_a_checkpoint_beside_a_step_of_a_run(run, in_memory):
    out, checkpoints = run
    options = {"train": (X, Y), "loss": "cross_entropy"}
    found = compare(checkpoints[0], f"{out}@100", model=NARROW, **options)
    assert_same_kernels(found, in_memory)
    other = compare(f"{out}@100", params_of(WIDE), model=WIDE, **options)
    assert (other.facts["parameters"], other.facts["parameters_b"]) == (26, 44)
    assert "no parameters: of step 100 a run directory" in other.kernels_alone.reason


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (
            {"train": (X[::-1].copy(), Y)},
            ("the examples that ", "was tracked on: train= with 6 of SHA-256", "got train= with 6 of SHA-256"),
        ),
        ({"held_out": (X, Y)}, ("was tracked on: train= with 6",)),
        (
            {"train": (X, Y), "held_out": (X[:3] + 1, Y[:3])},
            ("of which a run directory has no kernel", "Leave held_out out"),
        ),
        (
            {"train": (X, Y), "reduction": "mean"},
            ("kernels of one reduction", "'mean' beside a stored kernel of 'full'"),
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_a_run_is_refused(run, options, parts):
    out, _ = run
    with pytest.raises(InvalidInputError) as caught:
        compare(f"{out}@0", f"{out}@100", **options)
    for part in parts:
        assert part in str(caught.value), str(caught.value)


def test_steps_of_runs_on_other_examples_are_refused(run, tmp_path):
    out, checkpoints = run
    track({0: checkpoints[0]}, model=NARROW, train=(X + 1, Y), out=tmp_path / "other")
    with pytest.raises(InvalidInputError, match="two steps that were tracked on the same examples"):
        compare(f"{out}@0", tmp_path / "other")


def test_steps_that_are_not_there(run, tmp_path):
    out, _ = run
    with pytest.raises(CheckpointError, match=r"got no step 7\. Finished steps there: 0, 100\."):
        compare(f"{out}@0", f"{out}@7")
    with pytest.raises(InvalidInputError, match="two different checkpoints"):
        compare(f"{out}@0", f"{out}@0")
    (tmp_path / "track.jsonl").write_text("")
    with pytest.raises(CheckpointError, match="one without a finished step"):
        compare(tmp_path, out)


@pytest.mark.parametrize("entry", ["params_sha256", "rank", "norm", "pairs", "convention"])
def test_steps_whose_line_was_changed_are_refused(run, entry, tmp_path):
    out, _ = run
    shutil.copytree(out, tmp_path / "ntk")
    record, *rows = map(json.loads, (tmp_path / "ntk" / "track.jsonl").read_text().splitlines())
    for row in rows:
        del row[entry]
    contents = [{key: line[key] for key in line if key != "crc32"} for line in (record, *rows)]
    lines = "\n".join(map(checked_line_of, contents))
    (tmp_path / "ntk" / "track.jsonl").write_text(lines + "\n")
    with pytest.raises(CheckpointError, match=f"got (no {entry}|it = None)"):
        compare(f"{tmp_path}/ntk@0", f"{tmp_path}/ntk@100")


@pytest.mark.long
def test_reduced_kernels_of_a_run(tmp_path):
    checkpoints = {step: params_of(NARROW, step) for step in (0, 1)}
    options = {"train": (X, Y), "loss": "mse", "reduction": "mean"}
    track(checkpoints, model=NARROW, out=tmp_path / "run", **options)
    options.pop("reduction")  # that of the run is taken
    found = compare(f"{tmp_path}/run@0", params_of(THREE), model=THREE, **options)
    assert found.a.kernel.shape == found.b.kernel.shape == (6, 6)
    assert found.a.critical_learning_rate is None  # there is no function for products
    assert found.a.condition.mean_mode_share == pytest.approx(
        compare(*checkpoints.values(), model=NARROW, **options).a.condition.mean_mode_share,
        rel=1e-4,
    )


class Normalised(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.BatchNorm(use_running_average=not train)(nn.Dense(4)(x))
        return nn.Dense(C)(nn.tanh(x))


def test_a_network_has_the_margin_of_its_training_beside_another_one_too():
    variables = Normalised().init(jax.random.key(0), X)
    options = {"train": (X, Y), "loss": "cross_entropy", "descent": 0.1}
    by_itself = compare(variables, variables, model=Normalised(), **options)
    beside = compare(variables, params_of(NARROW), model=(Normalised(), NARROW), **options)
    assert beside.a.margin == pytest.approx(by_itself.a.margin, rel=1e-4)
    assert beside.a.margin_interval == pytest.approx(by_itself.a.margin_interval, rel=1e-3)
