"""Gram matrices of single examples' gradients in PyTorch, in a process of its own.

`python -m benchmarks.peers.torch_gradients --workload W1 --examples 128 --method captum`

    vmap(grad)   `torch.func`, gradients of all examples, then a product for each leaf: as TRAK has
                 its features, without projecting them
    captum       `TracInCP` of Captum, of one checkpoint: all pairs of training and test examples
                 (gradients of a batch at once for `Linear` and `Conv2d`, else one by one)
    backpack     `BatchL2Grad` of BackPACK: the diagonal alone, what self-influence and a noise
                 scale without interval need; for networks of `Linear` and `Conv2d`
"""

import argparse
import dataclasses
from typing import Any

import numpy as np

from benchmarks import workloads
from benchmarks.gradient_inputs import labels_of, of_size
from benchmarks.peers.job import Job
from benchmarks.peers.torch_func import load
from benchmarks.worker import Worker, serve

METHODS = ("vmap(grad)", "captum", "backpack")


def build(workload: workloads.Workload, method: str) -> Job:
    """The Gram matrix of the cross-entropy, or its diagonal, by one method."""
    import torch

    f, params, x = load(workload)
    y = torch.from_numpy(labels_of(workload)).long()
    in_known_layers = workload.network in ("mlp", "cnn")
    if method == "vmap(grad)":
        return Job(_stacked(f, params, x, y))
    if method == "captum":
        network = _sequential(workload, params) if in_known_layers else module_of(f, params)
        return Job(_tracin(network, in_known_layers, x, y))
    return Job(_squared_norms(_sequential(workload, params), x, y))


def _stacked(f, params, x, y):
    import torch
    from torch.func import grad, vmap
    from torch.utils._pytree import tree_leaves

    def of_one(params, x, y):
        return torch.nn.functional.cross_entropy(f(params, x[None]), y[None])

    gradients = vmap(grad(of_one), (None, 0, 0))

    def compute() -> Any:
        rows = [leaf.flatten(1) for leaf in tree_leaves(gradients(params, x, y))]
        return sum(row @ row.T for row in rows)

    return compute


def module_of(f, params):
    """A module of PyTorch around f(params, x)."""
    import torch
    from torch.utils._pytree import tree_flatten, tree_unflatten

    leaves, structure = tree_flatten(params)

    class Network(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.leaves = torch.nn.ParameterList(torch.nn.Parameter(leaf) for leaf in leaves)

        def forward(self, x):
            return f(tree_unflatten(list(self.leaves), structure), x)

    return Network()


def _tracin(network, in_known_layers, x, y):
    import torch
    from captum.influence import TracInCP

    influences = TracInCP(
        network,
        torch.utils.data.TensorDataset(x, y),
        ["the parameters as they are"],
        lambda model, path: 1.0,  # its learning rate
        # Gradients of a batch at once where its layers are known; else one after the other.
        loss_fn=torch.nn.CrossEntropyLoss(reduction="sum" if in_known_layers else "none"),
        sample_wise_grads_per_batch=in_known_layers,
        batch_size=len(x),
    )

    def compute() -> Any:
        return influences.influence((x, y))

    return compute


def _squared_norms(network, x, y):
    import torch
    from backpack import backpack, extend
    from backpack.extensions import BatchL2Grad

    network, loss = extend(network), extend(torch.nn.CrossEntropyLoss(reduction="sum"))

    def compute() -> Any:
        network.zero_grad()
        with backpack(BatchL2Grad()):
            loss(network(x), y).backward()
        return sum(p.batch_l2 for p in network.parameters())

    return compute


def _sequential(workload: workloads.Workload, params):
    """The network in layers of PyTorch, which Captum and BackPACK know."""
    from torch.nn import Conv2d, Flatten, Linear, Parameter, ReLU, Sequential

    def with_numbers(layer, weight, bias):
        layer.weight, layer.bias = Parameter(weight), Parameter(bias)
        return layer

    def dense(part):
        return with_numbers(Linear(*part["w"].shape), part["w"].T.contiguous(), part["b"])

    def convolution(part):
        n_out, n_in = part["w"].shape[:2]
        return with_numbers(Conv2d(n_in, n_out, 3), part["w"], part["b"])

    def with_relu(layers):
        return [part for layer in layers for part in (layer, ReLU())]

    if workload.network == "mlp":
        *hidden, head = map(dense, params)
        return Sequential(*with_relu(hidden), head)
    if workload.network == "cnn":
        *hidden, last = map(convolution, params["convolutions"])
        return Sequential(*with_relu(hidden), last, Flatten(), dense(params["head"]))
    raise NotImplementedError("not in layers that BackPACK knows")


@dataclasses.dataclass
class GramWorker(Worker):
    """Compares a Gram matrix, or its diagonal, with that of a file."""

    job: Job
    reduction: str = "gradient"

    def _error(self, kernel: Any, expected: np.ndarray) -> float:
        found = np.asarray(kernel.detach())
        if found.ndim == 1:
            expected = np.diagonal(expected)
        return float(np.abs(found - expected).max() / np.abs(expected).max())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", required=True)
    parser.add_argument("--examples", type=int, required=True)
    parser.add_argument("--method", required=True, choices=METHODS)
    parser.add_argument("--tiny", action="store_true")
    arguments = parser.parse_args()
    workload = of_size(workloads.get(arguments.workload, arguments.tiny), arguments.examples)
    serve(lambda: GramWorker(build(workload, arguments.method)))


if __name__ == "__main__":
    main()
