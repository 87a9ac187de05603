"""Several runs: which belong together, what is averaged over seeds, and what is refused."""

import json

import numpy as np
import pytest
from scipy import stats
from stored_runs import LEAVES, RECORD, STEPS, store

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor import JsonLines

FAST = {"descent": "Descent(learning_rate=0.3, kind='heavy-ball')"}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Three seeds of one learning rate, two of another."""
    root = tmp_path_factory.mktemp("runs")
    for seed in range(3):
        store(root / f"a{seed}", seed)
    for seed in range(2):
        store(root / f"b{seed}", seed + 5, **FAST)
    return root


def paths(root, names):
    return [root / name for name in names.split()]


@pytest.fixture
def runs(root):
    return ntkdiag.open_runs({"slow": paths(root, "a0 a1 a2"), "fast": paths(root, "b0 b1")})


def refused(call, *args, **kwargs):
    """The message of the error that a call raises."""
    with pytest.raises(errors.NtkdiagError) as caught:
        call(*args, **kwargs)
    return str(caught.value)


def test_mean_and_interval_over_seeds(runs, root):
    means = runs.mean("drift")
    assert list(means) == ["slow", "fast"]
    for mean, names in ((means["slow"], "a0 a1 a2"), (means["fast"], "b0 b1")):
        values = np.stack(
            [ntkdiag.open_runs([p]).series("drift")[p.name] for p in paths(root, names)]
        )
        n = len(values)
        assert (mean.steps, mean.n_runs, mean.reason) == (list(STEPS), n, "")
        np.testing.assert_allclose(mean.mean, np.mean(values, axis=0))
        np.testing.assert_allclose(mean.standard_deviation, np.std(values, axis=0, ddof=1))
        # From the second step on: the drift of the first kernel from itself is zero in all runs.
        moved = values[:, 1:]
        error = stats.sem(moved, axis=0)
        lower, upper = stats.t.interval(0.95, n - 1, moved.mean(axis=0), error)
        np.testing.assert_allclose(mean.lower[1:], lower)
        np.testing.assert_allclose(mean.upper[1:], upper)
        assert (mean.lower[1:] < mean.upper[1:]).all()


def test_lists_are_averaged_entry_by_entry(runs):
    mean = runs.mean("leaf_shares")["slow"]
    np.testing.assert_allclose(mean.mean, np.tile([0.26, 0.74], (len(STEPS), 1)))
    np.testing.assert_allclose(mean.standard_deviation, np.full((len(STEPS), 2), 0.01))


def test_one_run_has_no_spread(root):
    means = ntkdiag.open_runs(paths(root, "a0 b0")).mean("loss")
    assert list(means) == ["a0", "b0"]
    for mean in means.values():
        assert np.isfinite(mean.mean).all()
        assert np.isnan([mean.standard_deviation, mean.lower, mean.upper]).all()
        assert mean.reason == "one run: its spread over seeds is not known"


def test_only_common_steps_are_averaged(root, tmp_path):
    store(tmp_path / "longer", 7, steps=(0, 10, 1000))
    runs = ntkdiag.open_runs({"slow": [root / "a0", tmp_path / "longer"]})
    assert runs.steps == {"slow: a0": list(STEPS), "slow: longer": [0, 10, 1000]}
    mean = runs.mean("loss")["slow"]
    assert mean.steps == [0, 10]
    np.testing.assert_allclose(mean.mean, [(1.0 + 1.7) / 2, (1.0 + 1.7) / 2 / 11])
    store(tmp_path / "elsewhere", 7, steps=(3,))
    apart = ntkdiag.open_runs({"slow": [root / "a0", tmp_path / "elsewhere"]})
    mean = apart.mean("loss")["slow"]
    assert (mean.steps, mean.mean.shape) == ([], (0,))
    assert mean.reason == "the runs have no step in common"


def test_what_one_seed_does_not_know_is_not_known(tmp_path):
    for name, loss in (("a", 1.0), ("b", np.nan)):
        lines = JsonLines(tmp_path / name / "ntk.jsonl")
        lines.start({"source": "watch", "probe": "ab"})
        for step in (0, 1):
            lines.write(step, {"margin": 1.0 if step == 0 else loss})
    runs = ntkdiag.open_runs({"all": [tmp_path / "a", tmp_path / "b"]}, stream="ntk")
    mean = runs.mean("margin")["all"]
    np.testing.assert_array_equal(mean.mean, [1.0, np.nan])
    assert mean.reason == "not known at some steps of all: b"


def test_of_a_step_that_was_written_twice_the_later_row_holds(tmp_path):
    lines = JsonLines(tmp_path / "a" / "ntk.jsonl")
    lines.start({"source": "watch"})
    for step, trace in ((0, 1.0), (10, 2.0), (10, 3.0)):
        lines.write(step, {"trace": trace})
    runs = ntkdiag.open_runs([tmp_path / "a"], stream="ntk")
    assert runs.series("trace")["a"].tolist() == [1.0, 3.0]
    pytest.importorskip("xarray")
    assert runs.to_xarray()["trace"].values.tolist() == [[[1.0, 3.0]]]


def test_groups_by_an_entry_of_the_records(root, tmp_path):
    for runs in (root, str(root / "*"), paths(root, "a0 a1 a2 b0 b1")):
        groups = ntkdiag.open_runs(runs, by="descent").groups
        names = {label: [member.name for member in group] for label, group in groups.items()}
        assert names == {
            "learning_rate=0.1": ["a0", "a1", "a2"],
            "learning_rate=0.3": ["b0", "b1"],
        }
    wide = {**RECORD["parameters"], "Dense_0/kernel": "float32[3, 8]"}
    store(tmp_path / "wide", parameters=wide)
    groups = ntkdiag.open_runs([root / "a0", tmp_path / "wide"], by="parameters").groups
    assert list(groups) == [
        "Dense_0/kernel=float32[3, 2]",
        "Dense_0/kernel=float32[3, 8]",
    ]


def test_runs_in_memory_and_opened_ones(root):
    track = ntkdiag.open_runs([root / "a0"]).members[0].source
    assert isinstance(track, ntkdiag.comparison.Track)
    runs = ntkdiag.open_runs({"a": track, "b": ntkdiag.open_run(root / "a1")})
    assert list(runs.series("loss")) == ["a", "b"]
    np.testing.assert_array_equal(runs.series("drift")["a"], track.series("drift"))


def test_folders_of_one_name_go_by_their_paths(root, tmp_path):
    store(tmp_path / "a0", 1)
    runs = ntkdiag.open_runs([root / "a0", tmp_path / "a0"])
    assert list(runs.steps) == [str(root / "a0"), str(tmp_path / "a0")]


def test_pandas(runs):
    pytest.importorskip("pandas")
    frame = runs.to_pandas()
    assert list(frame.columns[:4]) == ["group", "run", "seed", "step"]
    assert len(frame) == 5 * len(STEPS)
    one = frame[(frame["group"] == "fast") & (frame["seed"] == 1)]
    assert set(one["run"]) == {"fast: b1"}
    np.testing.assert_array_equal(one["drift"], runs.series("drift")["fast: b1"])
    assert (
        frame.attrs["records"]["fast: b1"]["descent"]
        == "Descent(learning_rate=0.3, kind='heavy-ball')"
    )


def test_xarray(runs, tmp_path):
    xarray = pytest.importorskip("xarray")
    dataset = runs.to_xarray()
    assert dataset["drift"].dims == ("group", "seed", "step")
    assert dataset["eigenvalues"].dims == ("group", "seed", "step", "mode")
    assert dataset["e1"].dims == ("group", "seed", "step", "step_2")
    assert dataset["leaf"].values.tolist() == LEAVES
    at = {"group": "fast", "seed": 1}
    np.testing.assert_array_equal(dataset["drift"].sel(at), runs.series("drift")["fast: b1"])
    assert dataset["run"].sel(at) == "fast: b1"
    # There is no third seed of that group.
    assert np.isnan(dataset["drift"].sel(group="fast", seed=2)).all()
    np.testing.assert_allclose(
        dataset["loss"].sel(group="slow").mean("seed"), runs.mean("loss")["slow"].mean
    )
    assert json.loads(dataset.attrs["common_steps"])["slow"] == list(STEPS)
    assert (
        json.loads(dataset.attrs["records"])["slow: a0"]["descent"]
        == "Descent(learning_rate=0.1, kind='heavy-ball')"
    )
    assert "spectrum_status" not in dataset
    dataset.to_netcdf(tmp_path / "runs.nc", engine="scipy")
    with xarray.open_dataset(tmp_path / "runs.nc", engine="scipy") as read:
        xarray.testing.assert_equal(read.load(), dataset)


def test_what_differs_in_its_steps_is_nan_where_it_was_not_measured(root, tmp_path):
    pytest.importorskip("xarray")
    store(tmp_path / "longer", 7, steps=(0, 10, 1000))
    dataset = ntkdiag.open_runs({"slow": [root / "a0", tmp_path / "longer"]}).to_xarray()
    assert dataset["step"].values.tolist() == [0, 1, 10, 100, 1000]
    assert json.loads(dataset.attrs["common_steps"]) == {"slow": [0, 10]}
    known = np.isfinite(dataset["loss"].isel(group=0))
    assert known.values.tolist() == [[True] * 4 + [False], [True, False, True, False, True]]


@pytest.mark.parametrize("band", ["interval", "deviation", None])
@pytest.mark.parametrize("n_seeds", [1, 2, 3, 4])
def test_axes_have_room_for_the_runs_and_no_more(root, tmp_path, n_seeds, band):
    plt = pytest.importorskip("matplotlib.pyplot")
    store(tmp_path / "fourth", 9)
    members = [*paths(root, "a0 a1 a2"), tmp_path / "fourth"][:n_seeds]
    runs = ntkdiag.open_runs({"slow": members})
    axes = runs.plot("loss", band=band)
    values = np.concatenate(list(runs.series("loss").values()))
    lowest, highest = axes.get_ylim()
    room = 0.05 * (values.max() - values.min())
    np.testing.assert_allclose([lowest, highest], [values.min() - room, values.max() + room])
    has_band = (band == "interval" and n_seeds == 4) or (band == "deviation" and n_seeds > 1)
    assert bool(axes.collections) == has_band
    if has_band:
        mean = runs.mean("loss")["slow"]
        upper = mean.upper if band == "interval" else mean.mean + mean.standard_deviation
        drawn = axes.collections[0].get_datalim(axes.transData).y1
        np.testing.assert_allclose(drawn, upper.max())
    plt.close(axes.figure)


def test_axes_of_a_quantity_that_does_not_change(root):
    plt = pytest.importorskip("matplotlib.pyplot")
    runs = ntkdiag.open_runs(paths(root, "a0 b0"))
    axes = runs.plot.rank()  # the same at every step
    lowest, highest = axes.get_ylim()
    assert lowest < runs.series("rank")["a0"][0] < highest
    plt.close(axes.figure)


def test_settings_that_differ(runs):
    rates = {name: settings["descent.learning_rate"] for name, settings in runs.settings.items()}
    assert set(rates.values()) == {"0.1", "0.3"}
    assert rates["fast: b0"] == "0.3"
    assert all(list(of_run) == ["descent.learning_rate"] for of_run in runs.settings.values())


def test_runs_of_one_setting_differ_in_nothing(root):
    runs = ntkdiag.open_runs(paths(root, "a0 a1"))
    assert runs.settings == {"a0": {}, "a1": {}}


def test_plot(runs):
    plt = pytest.importorskip("matplotlib.pyplot")
    assert {"drift", "loss"} <= set(dir(runs.plot))
    assert "leaf_shares" not in dir(runs.plot)
    figure, axes = plt.subplots()
    assert runs.plot.drift(ax=axes) is axes
    labelled = {line.get_label(): line.get_ydata() for line in axes.get_legend_handles_labels()[0]}
    means = runs.mean("drift")
    np.testing.assert_array_equal(labelled["slow (n = 3)"], means["slow"].mean)
    np.testing.assert_array_equal(labelled["fast (n = 2)"], means["fast"].mean)
    assert len(axes.lines) == 2 + 5
    assert not axes.collections  # of two or three runs an interval says nothing
    plt.close(figure)
    axes = runs.plot("drift", band="deviation")
    slow = means["slow"]
    top = axes.collections[0].get_datalim(axes.transData).y1
    np.testing.assert_allclose(top, (slow.mean + slow.standard_deviation).max())
    plt.close(axes.figure)
    axes = runs.plot("drift", band=None)
    assert not axes.collections
    plt.close(axes.figure)
    assert refused(runs.plot.drift, band="sigma") == (
        'Runs.plot.drift(band=...): expected "interval", "deviation" or None; got \'sigma\'. '
        "The interval is that of the mean, the deviation that of single runs."
    )
    names = ", ".join(dir(runs.plot))
    message = refused(runs.plot, "leaf_shares")
    assert message.startswith("Runs.plot('leaf_shares'): expected a figure: trace, norm, rank")
    with pytest.raises(AttributeError, match=r"Runs\.plot\.dritf: expected a figure: trace"):
        _ = runs.plot.dritf
    assert not hasattr(runs.plot, "_repr_html_")
    assert set(names.split(", ")) == set(repr(runs.plot).removeprefix("Runs.plot: ").split(", "))


def test_it_shows_itself(runs):
    assert repr(runs) == "Runs(5 runs: 'slow' 3 runs, 'fast' 2 runs)"
    page = runs._repr_html_()
    assert "<caption>5 runs</caption>" in page
    assert '<th scope="row">slow</th><td>3 runs, 4 steps 0 to 100</td>' in page


def test_runs_of_other_examples_are_refused(root, tmp_path):
    probe = {**RECORD["probes"][0], "x": "ee" * 32}
    store(tmp_path / "other", probes=[probe])
    runs = [root / "a0", tmp_path / "other"]
    assert refused(ntkdiag.open_runs, runs) == (
        "open_runs(runs): expected runs with numbers of one meaning, on the same examples; got "
        "probes.0.x=ab12 of a0 and eeeeeeeeeeeeeeee... of other. "
        "Measure them alike, or name what may differ: may_differ=['probes']."
    )
    assert len(ntkdiag.open_runs(runs, may_differ=["probes"]).members) == 2


def test_a_group_differs_in_the_seed_alone(root):
    assert refused(ntkdiag.open_runs, {"all": paths(root, "a0 b0")}) == (
        "open_runs(runs): expected runs that differ in their seed alone as the group 'all'; got "
        "descent.learning_rate=0.1 of all: a0 and 0.3 of all: b0. "
        "Make them groups of their own, or name what may differ: may_differ=['descent']."
    )
    runs = ntkdiag.open_runs({"all": paths(root, "a0 b0")}, may_differ=["descent"])
    assert runs.mean("loss")["all"].n_runs == 2


def test_a_quantity_that_a_run_lacks(root, tmp_path):
    with_margin = ntkdiag.open_run(root / "a0").rows()
    lines = JsonLines(tmp_path / "more" / "ntk.jsonl")
    lines.start({"source": "watch"})
    fewer = JsonLines(tmp_path / "fewer" / "ntk.jsonl")
    fewer.start({"source": "watch"})
    lines.write(0, {"trace": with_margin[0]["trace"], "margin": 1.0})
    fewer.write(0, {"trace": 2.0})
    runs = ntkdiag.open_runs([tmp_path / "more", tmp_path / "fewer"], stream="ntk")
    assert runs.names == ["trace"]
    for call in (runs.series, runs.mean):
        assert refused(call, "margin") == (
            f"Runs.{call.__name__}(name): expected a quantity that every run has: trace; got 'margin', which "
            "fewer has not. What needs labels, a loss or held-out examples is there where they were given."
        )


def test_lists_of_two_lengths_have_no_mean(tmp_path):
    for name, eigenvalues in (("a", [2.0, 1.0]), ("b", [2.0])):
        lines = JsonLines(tmp_path / name / "ntk.jsonl")
        lines.start({"source": "watch"})
        lines.write(0, {"eigenvalues": eigenvalues})
    runs = ntkdiag.open_runs({"g": [tmp_path / "a", tmp_path / "b"]}, stream="ntk")
    assert refused(runs.mean, "eigenvalues") == (
        "Runs.mean(name): expected eigenvalues of one length in the group 'g'; got [1], [2]. "
        "Average networks of one size."
    )


def test_axes_of_two_lengths_have_no_common_dataset(tmp_path):
    pytest.importorskip("xarray")
    lines = JsonLines(tmp_path / "x" / "ntk.jsonl")
    lines.start({"source": "watch"})
    lines.write(0, {"eigenvalues": [2.0, 1.0]})
    lines = JsonLines(tmp_path / "y" / "ntk.jsonl")
    lines.start({"source": "watch"})
    lines.write(0, {"eigenvalues": [2.0]})
    runs = ntkdiag.open_runs([tmp_path / "x", tmp_path / "y"], stream="ntk")
    message = refused(runs.to_xarray)
    assert message.startswith("Runs.to_xarray(): expected runs whose axes fit each other; got ")
    assert message.endswith("Open the runs of each size by themselves.")


def test_what_is_no_run_is_refused(root, tmp_path):
    assert refused(ntkdiag.open_runs, []) == (
        'open_runs(runs): expected at least one run; got none. Write open_runs(["a", "b"]).'
    )
    assert refused(ntkdiag.open_runs, tmp_path) == (
        f"open_runs(runs): expected run directories at {str(tmp_path)!r}; got no folder with a .jsonl file. "
        "Pass the folder that holds the runs, or a pattern such as 'runs/lr_*'."
    )
    assert refused(ntkdiag.open_runs, [root / "a0", root / "a0"]) == (
        f"open_runs(runs): expected each run once; got {str(root / 'a0')!r} twice. Leave one of them out."
    )
    groups = {"slow": paths(root, "a0 a1")}
    assert refused(ntkdiag.open_runs, groups, by="descent") == (
        "open_runs(runs, by=...): expected groups by their label, or by an entry of the records; got "
        "a dictionary of groups, and by='descent'. Leave one of them out."
    )
    assert refused(ntkdiag.open_runs, root, by="width") == (
        "open_runs(runs, by=...): expected an entry of the records; they differ in descent.learning_rate; got 'width', "
        'which a0 does not have. Pass a dictionary of groups: {"lr 0.1": ["a0", "a1"], ...}.'
    )
