"""The 200 runs: a network, an optimizer, a seed, and what is done to them.

Three of five are troubled, by one of ten causes and by an amount that is drawn; two of five are
sound runs that look dangerous. Which of them spike is decided by the criterion alone.
"""

import dataclasses
import math

import numpy as np
from jaxtyping import Float

STEPS = 400
WARMUP = 20
EVERY = 5  # steps from one measurement to the next
RUNS = 200

# Learning rates at which the networks train well.
RATES = {
    "sgd": {"MLP": 0.1, "CNN": 0.1, "ResNet": 0.1, "GPT": 0.3},
    "momentum": {"MLP": 0.02, "CNN": 0.02, "ResNet": 0.02, "GPT": 0.05},
    "adamw": {"MLP": 5e-3, "CNN": 1e-2, "ResNet": 1e-2, "GPT": 1e-2},
    "adam": {"MLP": 5e-3, "CNN": 1e-2, "ResNet": 1e-2, "GPT": 1e-2},
    "lion": {"MLP": 1e-3, "CNN": 2e-3, "ResNet": 2e-3, "GPT": 1e-3},
    "muon": {"MLP": 0.02, "CNN": 0.02, "ResNet": 0.02, "GPT": 0.02},
}

# The smallest and the largest factor that is drawn for a trouble, on a logarithmic scale.
TROUBLES = {
    "rate jumps": (10.0, 1000.0),
    "rate ramps": (50.0, 5000.0),
    "rate too high": (5.0, 200.0),
    "short warm-up": (5.0, 100.0),
    "slow second moment": (5.0, 100.0),
    "bfloat16": (20.0, 500.0),
    "broken inputs": (10.0, 1000.0),
    "flipped labels": (10.0, 100.0),  # batches
    "growing logits": (5.0, 100.0),
    "slow approach": (20.0, 500.0),
}
# Descent without second moments takes far less: of a rate's factor the square root.
_LESS = ("sgd", "momentum")
SOUND = ("catapult", "edge of stability", "cyclic rate", "noisy loss", "plain")

# A second moment that is slow needs one. Fewer pairs are fewer programs to compile.
_OPTIMIZERS_OF = {
    "slow second moment": ("adam",),
    "slow approach": ("sgd", "momentum", "adamw", "adam"),
    "edge of stability": ("sgd", "momentum", "adamw", "adam"),
    "catapult": ("sgd", "momentum"),
    "bfloat16": ("momentum", "adamw"),
}
# These are drawn twice as often.
_USUAL = ("rate jumps", "rate ramps", "short warm-up", "flipped labels", "slow approach")
# These train on the same examples at every step, without noise of batches.
FULL_BATCH = ("slow second moment", "slow approach", "edge of stability", "catapult")


@dataclasses.dataclass(frozen=True)
class Run:
    """What is trained.

    Attributes:
        number: Of 200; even ones choose thresholds, odd ones are reported.
        network: Name of one of `NETWORKS`.
        optimizer: Name of one of `RATES`.
        cause: What is done to it.
        factor: By how much.
        begins: The step at which it begins, where it begins late.
        seed: Of parameters and batches.
    """

    number: int
    network: str
    optimizer: str
    cause: str
    factor: float
    begins: int
    seed: int

    @property
    def is_held_out(self) -> bool:
        """Whether it is one of those that are reported."""
        return self.number % 2 == 1

    @property
    def dtype(self) -> str:
        """Of parameters and passes."""
        return "bfloat16" if self.cause == "bfloat16" else "float32"

    @property
    def rates(self) -> Float[np.ndarray, " s"]:
        """The learning rate of each step."""
        t = np.arange(STEPS)
        usual = RATES[self.optimizer][self.network]
        warmup = np.minimum((t + 1) / WARMUP, 1.0)
        late = np.clip((t - self.begins) / (STEPS - self.begins), 0.0, 1.0)
        match self.cause:
            case "rate jumps":
                return usual * warmup * np.where(t < self.begins, 1.0, self.factor)
            case "rate ramps":
                return usual * warmup * self.factor**late
            case "rate too high" | "catapult":
                return usual * np.full(STEPS, self.factor)
            case "short warm-up":
                return usual * self.factor * np.minimum((t + 1) / self.begins, 1.0)
            case "slow second moment" | "bfloat16" | "growing logits" | "edge of stability":
                return usual * self.factor * warmup
            case "slow approach":
                return usual * (1.0 + (self.factor - 1.0) * t / STEPS)
            case "cyclic rate":
                return usual * (0.2 + self.factor * np.abs((t / 50 + 1) % 2 - 1))
            case "plain":
                return usual * warmup * (0.55 + 0.45 * np.cos(math.pi * t / STEPS))
            case _:
                return usual * warmup


def all_runs() -> list[Run]:
    """The runs, the same at every call; neighbours have the same network and cause."""
    rng = np.random.default_rng(20261127)
    networks = ("MLP", "CNN", "ResNet", "GPT")
    found = []
    # 25 runs of each network in each half: 15 troubled ones, and 10 that are sound.
    for network in networks:
        causes = [*TROUBLES, *_USUAL, *SOUND, *SOUND]
        for cause in causes:
            for _ in range(2):
                choices = _OPTIMIZERS_OF.get(cause, tuple(RATES))
                found.append(_drawn(rng, len(found), network, choices, cause))
    return found


def _drawn(
    rng: np.random.Generator, number: int, network: str, choices: tuple[str, ...], cause: str
) -> Run:
    """A run with what is left to chance."""
    lowest, highest = TROUBLES.get(cause, (1.0, 4.0))
    optimizer = str(rng.choice(choices))
    exponent = rng.uniform(np.log(lowest), np.log(highest))
    if optimizer in _LESS and cause not in ("broken inputs", "flipped labels"):
        exponent *= 0.5
    return Run(
        number=number,
        network=network,
        optimizer=optimizer,
        cause=cause,
        factor=float(np.exp(exponent)),
        begins=int(rng.integers(100, 250) if cause == "short warm-up" else rng.integers(100, 300)),
        seed=int(rng.integers(2**31)),
    )
