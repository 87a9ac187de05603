"""Findings of comparisons and runs: what is found, and that all who print say the same."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import ntkdiag

N, C = 24, 3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, 5)).astype(np.float32)
Y = np.arange(N) % C


def network(params, x):
    return jnp.tanh(x @ params["first"] + params["bias"]) @ params["last"]


def start(scale=1.0):
    rng = np.random.default_rng(1)
    return {
        "first": jnp.asarray(scale * rng.normal(size=(5, 16)), jnp.float32),
        "bias": jnp.zeros(16),
        "last": jnp.asarray(scale * rng.normal(size=(16, C)), jnp.float32),
    }


def trained(params, rate, steps=60):
    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(network(params, X), Y).mean()

    step = jax.jit(lambda params: jax.tree.map(jnp.add, params, gradient_step(params)))

    def gradient_step(params):
        return jax.tree.map(lambda leaf: -rate * leaf, jax.grad(loss)(params))

    for _ in range(steps):
        params = step(params)
    return params


def compare(a, b, rate):
    return ntkdiag.compare(
        a, b, model=network, train=(X, Y), loss="cross_entropy", descent=rate, progress=False
    )


def ids(found):
    return [finding.id for finding in found]


@pytest.fixture(scope="module")
def beyond():
    params = start()
    return compare(params, trained(params, 0.05), 50.0)


def test_a_margin_beyond_the_edge(beyond):
    found = next(finding for finding in beyond.findings if finding.id == "margin-beyond-edge")
    assert found.severity == "warning"
    assert found.value == pytest.approx(beyond.b.margin)
    assert found.interval == beyond.b.margin_interval
    assert found.interval[0] > found.threshold >= 1.5
    assert found.do.startswith("Lower the learning rate")


def test_the_fields_are_those_of_the_documentation(beyond):
    page = (pathlib.Path(__file__).parents[2] / "docs" / "findings.md").read_text()
    table = page[page.index("| field |") : page.index("Every field")].strip()
    named = " ".join(row.split("|")[1] for row in table.splitlines()[2:])
    documented = re.findall(r"`(\w+)`", named)
    for finding in beyond.findings:
        assert sorted(finding.to_dict()) == sorted(documented)


def test_everybody_prints_the_same(beyond, tmp_path):
    said = beyond.findings
    assert beyond.to_dict()["findings"] == [finding.to_dict() for finding in said]
    page = beyond.save(tmp_path / "report.html").read_text()
    for finding in said:
        assert f"<code>{finding.id}</code>" in page


def test_a_dead_network_is_an_error_and_nothing_else():
    dead = jax.tree.map(jnp.zeros_like, start())
    found = compare(start(), dead, 0.1).findings
    assert ids(found) == ["dead"]
    assert found[0].severity == "error"
