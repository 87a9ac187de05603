"""`track.plot` and `run.plot`: every figure of the report by name, on axes of the user, in dark on light."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from internals import FAINT, FIGURES, INK
from matplotlib.colors import to_hex
from synthetic_run import write_tracked

import ntkdiag
from ntkdiag import errors
from ntkdiag.monitor import RunLog


def store(root):
    """Three checkpoints of a run of 20 steps."""
    e1 = [[0.0, 0.2, 0.3], [0.2, 0.0, 0.1], [0.4, 0.1, 0.0]]
    write_tracked(root, steps=[0, 10, 20], margins=[0.3, 0.5, 0.9], e1=e1)
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Checkpoints of track with their probe, and measurements of a monitor."""
    root = store(tmp_path_factory.mktemp("plots") / "run")
    lines = RunLog(root, name="ntk")
    lines.start({"call": "watch", "source": "watch"})
    for step in range(5):
        row = {"status": 0, "margin": 0.1 * step, "eigenvalues": [1.0, 0.5]}
        lines.write(step, row)
    return ntkdiag.open_run(root)


@pytest.fixture(scope="module")
def track(run):
    return run.tracked


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def test_figures_of_the_report(run):
    for name in ("margin", "e1", "spectrum", "leaf_shares"):
        assert name in FIGURES
        figure, axes = plt.subplots()
        assert getattr(run.plot, name)(ax=axes) is axes
        drawn = axes.lines or axes.images or axes.collections
        assert len(drawn) > 0
        colours = {to_hex(text.get_color()) for text in axes.findobj(plt.Text)}
        colours |= {to_hex(line.get_color()) for line in axes.findobj(plt.Line2D)}
        assert not colours & {INK, FAINT}
        figure.canvas.draw()


def test_all_numbers_and_matrices_are_figures(track):
    for name in (*track.names, *track.matrices, *FIGURES):
        assert name in dir(track.plot)
    np.testing.assert_array_equal(track.plot.norm().lines[0].get_ydata(), track.series("norm"))
    np.testing.assert_array_equal(track.plot.drift().lines[0].get_ydata(), track.series("drift"))
    np.testing.assert_array_equal(
        track.plot.distance().images[0].get_array(), track.matrix("distance")
    )


def test_what_there_is_no_figure_of(run, track, tmp_path):
    with pytest.raises(AttributeError, match="dritf"):
        _ = run.plot.dritf
    bare = ntkdiag.open_run(store(tmp_path / "bare"))
    with pytest.raises(errors.InvalidInputError) as caught:
        bare.plot.layer_updates()
    message = str(caught.value)
    assert "expected a figure whose numbers are there: margin, loss, " in message
    assert "got 'layer_updates'. It needs watch_layer_update; " in message


def test_the_style_of_a_paper(run):
    with ntkdiag.report.paper_style():
        axes = run.plot.drift()
    assert axes.figure.get_size_inches().tolist() == [3.25, 2.3]
    assert axes.xaxis.label.get_fontsize() == 8
    assert plt.rcParams["font.size"] == 10
