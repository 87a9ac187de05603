"""Batches of graphs: arrays of nodes, edges and graphs in one x, differentiated as a whole."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

import ntkdiag
from ntkdiag.errors import InvalidInputError


class Graphs(NamedTuple):
    """As jraph has it: graphs one after the other, their nodes and edges joined."""

    nodes: jax.Array
    edges: jax.Array
    senders: jax.Array
    receivers: jax.Array
    n_node: jax.Array


def batch(seed, n_node, n_edge):
    rng = np.random.default_rng(seed)
    nodes = sum(n_node)
    return Graphs(
        jnp.asarray(rng.normal(size=(nodes, 3)), jnp.float32),
        jnp.asarray(rng.normal(size=(n_edge, 2)), jnp.float32),
        jnp.asarray(rng.integers(0, nodes, n_edge)),
        jnp.asarray(rng.integers(0, nodes, n_edge)),
        jnp.asarray(n_node),
    )


def network(params, graphs):
    """One round of messages along the edges, then a sum over the nodes of every graph."""
    n_nodes, n_graphs = len(graphs.nodes), len(graphs.n_node)
    sent = jnp.concatenate([graphs.nodes[graphs.senders], graphs.edges], axis=-1) @ params["edge"]
    arrived = jax.ops.segment_sum(sent, graphs.receivers, n_nodes)
    nodes = jnp.tanh(graphs.nodes @ params["node"] + arrived)
    graph_of = jnp.repeat(jnp.arange(n_graphs), graphs.n_node, total_repeat_length=n_nodes)
    return jax.ops.segment_sum(nodes, graph_of, n_graphs) @ params["out"]  # [graphs, 2]


def parameters():
    rng = np.random.default_rng(0)
    shapes = {"edge": (5, 4), "node": (3, 4), "out": (4, 2)}
    return {name: jnp.asarray(rng.normal(size=s), jnp.float32) for name, s in shapes.items()}


ROWS, COLUMNS = (1, (4, 3, 2), 12), (2, (2, 5), 8)


@pytest.mark.slow
def test_every_graph_is_a_row():
    params, rows, columns = parameters(), batch(*ROWS), batch(*COLUMNS)
    want = reference.ntk(network, params, rows, columns)
    full = ntkdiag.ntk(network, params, rows, columns, examples="joint", reduction="full").array
    np.testing.assert_allclose(full, want, rtol=1e-4, atol=1e-4)


def test_graphs_are_refused_where_examples_are_independent():
    text = (
        "Add an example axis in front; a batch of graphs, whose arrays have axes of nodes, edges "
        'and graphs, is taken by ntk(f, params, x, examples="joint"), with one row for each of the '
        "outputs."
    )
    for call in (ntkdiag.ntk, ntkdiag.NTKOperator):
        with pytest.raises(InvalidInputError) as caught:
            call(network, parameters(), batch(*ROWS))
        assert str(caught.value).endswith(text)
