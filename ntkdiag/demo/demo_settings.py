"""Settings of the demo run."""

import dataclasses

# How the network is trained.
LEARNING_RATE = 0.05
MOMENTUM = 0.9
BATCH = 128
LOSS = "cross_entropy"
# What is measured: 60 images of ten classes that are trained on and 60 that are not, and of the
# kernel so many eigenvalues.
PROBE_PER_CLASS = 6
TOP_K = 5


@dataclasses.dataclass(frozen=True)
class DemoSettings:
    """What can be chosen.

    Attributes:
        library: Library of the model: linen, equinox or nnx.
        steps: Number of updates.
        every: Steps between two measurements of the kernel.
        seed: Of data split, initialisation and batches.
    """

    library: str = "linen"
    steps: int = 300
    every: int = 10
    seed: int = 0
