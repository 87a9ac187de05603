"""Influence functions in PyTorch, in a process of its own: `NaiveInfluenceFunction` of Captum.

The Hessian of the loss is formed in the parameters, and its inverse on 50 directions taken between
the gradients of training and test examples: to first order what leaving an example out does.
"""

from typing import Any

from benchmarks.gradient_inputs import SMALL, labels_of
from benchmarks.peers.job import Job
from benchmarks.peers.torch_func import load
from benchmarks.peers.torch_gradients import module_of
from benchmarks.worker import Worker, serve


def build() -> Job:
    """The influences of all examples on themselves as test examples, Hessian and all."""
    import torch
    from captum.influence._core.influence_function import NaiveInfluenceFunction

    f, params, x = load(SMALL)
    y = torch.from_numpy(labels_of(SMALL)).long()
    network = module_of(f, params)

    def compute() -> Any:
        influences = NaiveInfluenceFunction(
            network,
            torch.utils.data.TensorDataset(x, y),
            "the parameters as they are",
            lambda model, path: 1.0,
            loss_fn=torch.nn.CrossEntropyLoss(reduction="none"),
            batch_size=len(x),
        )
        return influences.influence((x, y))

    return Job(compute, is_kernel=False)


if __name__ == "__main__":
    serve(lambda: Worker(build(), "influence"))
