"""Settings of the demo run."""

import dataclasses
import math

# How the network is trained.
LEARNING_RATE = 0.05
MOMENTUM = 0.9
BATCH = 128
LOSS = "cross_entropy"
# What is measured: 60 images of ten classes that are trained on and 60 that are not, and of the
# kernel so many eigenvalues.
PROBE_PER_CLASS = 6
TOP_K = 5
# As they were on two cores.
SECONDS_OF_COMPILING = 45.0
SECONDS_OF_A_STEP = 0.03
SECONDS_OF_A_MEASUREMENT = 0.2


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

    @property
    def seconds(self) -> float:
        """What the demo takes, about; at the defaults most of it compiles."""
        n_measurements = math.ceil(self.steps / self.every)
        of_training = SECONDS_OF_A_STEP * self.steps + SECONDS_OF_A_MEASUREMENT * n_measurements
        return SECONDS_OF_COMPILING + of_training
