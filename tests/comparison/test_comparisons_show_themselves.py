"""Comparisons as tables of a notebook and as figures."""

import os
import time

import matplotlib.pyplot as plt
import numpy as np
import pytest

import ntkdiag


def f(params, x):
    return np.tanh(1.0) * x @ params["w"]


@pytest.fixture(scope="module")
def comparison():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 3)).astype(np.float32)
    a = {"w": rng.normal(size=(3, 2)).astype(np.float32)}
    b = {"w": a["w"] + 1}
    return ntkdiag.compare(
        a,
        b,
        model=f,
        train=(x, np.arange(6) % 2),
        loss="mse",
        descent=0.1,
        names=("<start>", "end"),
    )


def test_in_a_notebook(comparison):
    page = comparison._repr_html_()
    assert "<caption>A: &lt;start&gt; → B: end</caption>" in page
    assert f'<th scope="row">verdict</th><td>{comparison.verdict.headline}</td>' in page
    assert '<th scope="row">stability margin η/η_c</th>' in page
    assert '<th scope="row">centred kernel distance S_c</th>' in page


def test_plot(comparison):
    figure, axes = plt.subplots()
    assert comparison.plot(axes) is axes
    spectrum = comparison.a.spectrum
    np.testing.assert_array_equal(
        axes.lines[0].get_ydata(), np.asarray(spectrum.eigenvalues)[: spectrum.rank]
    )
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["<start>", "end"]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    plt.close(figure)
    plt.close(comparison.plot().figure)


def test_what_a_killed_save_left_behind(comparison, tmp_path):
    """It is no report, and a later save removes it; that of a save under way stays."""
    dead, under_way = tmp_path / ".a.json.1.tmp", tmp_path / ".a.json.2.tmp"
    of_another = tmp_path / ".b.json.1.tmp"
    for file in (dead, under_way, of_another):
        file.write_text("{")
    two_hours_ago = time.time() - 7200
    for file in (dead, of_another):
        os.utime(file, (two_hours_ago, two_hours_ago))
    comparison.save(tmp_path / "a.json")
    left = sorted(file.name for file in tmp_path.iterdir())
    assert left == [".a.json.2.tmp", ".b.json.1.tmp", "a.json"]
