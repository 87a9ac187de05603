"""The training whose hook is measured: a network, its optimizer, and its usual step.

Everything works on shapes (`jax.ShapeDtypeStruct`) as well as on arrays.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from jaxtyping import Array, Float, PyTree

import ntkdiag
from benchmarks.monitor_cost.models import DigitsNet, LanguageModel, ResNet, VisionTransformer

# The names of tiers or instruments; empty for a step without the hook.
Instruments: TypeAlias = Sequence[str]
ECONOMY: Instruments = ("economy",)
SPECTRAL: Instruments = ("economy", "spectral")


@dataclasses.dataclass(frozen=True)
class Training:
    """What is trained, and how.

    Attributes:
        name: For the table.
        module: A linen module; it takes `train=` where it has batch normalisation.
        optimizer: The optimizer.
        input_shape: Of one example: an image, or a sequence of tokens.
        batch_size: Examples of one step.
        is_language: Whether inputs are tokens, and each is to be predicted from those before it.
        has_batch_norm: Whether the module normalises by the batch.
    """

    name: str
    module: nn.Module
    optimizer: optax.GradientTransformation
    input_shape: tuple[int, ...]
    batch_size: int
    is_language: bool = False
    has_batch_norm: bool = False

    @property
    def probe_size(self) -> int:
        """An eighth of the batch."""
        return self.batch_size // 8

    def examples(self, n: int) -> tuple[Any, Any]:
        """Shapes of n examples and their labels."""
        dtype = jnp.int32 if self.is_language else jnp.float32
        x = jax.ShapeDtypeStruct((n, *self.input_shape), dtype)
        y_shape = x.shape if self.is_language else (n,)
        return x, jax.ShapeDtypeStruct(y_shape, jnp.int32)

    def variables(self, key: Array, x: PyTree) -> PyTree:
        """Initial variables of the module."""
        return self.module.init(key, x, **self._switch)

    def variable_shapes(self) -> PyTree:
        """Their shapes."""
        x, _ = self.examples(1)
        return jax.eval_shape(self.variables, jax.random.key(0), x)

    @property
    def _switch(self) -> dict[str, Any]:
        return {"train": True} if self.has_batch_norm else {}

    def functional(self, variables: PyTree) -> ntkdiag.Functional:
        """The network as the hook takes it."""
        call_kwargs = {"train": False} if self.has_batch_norm else {}
        return ntkdiag.functionalize(self.module, variables, call_kwargs=call_kwargs)

    def watched(
        self, variables: PyTree, probe: PyTree, instruments: Instruments, every: int = 100
    ) -> optax.GradientTransformationExtraArgs:
        """The optimizer with the hook; without instruments, the optimizer alone."""
        if not instruments:
            return optax.with_extra_args_support(self.optimizer)
        return ntkdiag.watch(
            self.optimizer,
            self.functional(variables),
            train=probe,
            loss="cross_entropy",
            every=every,
            instruments=instruments,
        )

    def step(
        self,
        optimizer: optax.GradientTransformationExtraArgs,
        variables: PyTree,
        opt_state: PyTree,
        batch: tuple[Array, Array],
    ) -> tuple[PyTree, PyTree, Float[Array, ""]]:
        """One step of training: variables, state, and the loss."""
        x, y = batch
        params = variables["params"]
        others = {name: tree for name, tree in variables.items() if name != "params"}

        def loss_of(params: PyTree) -> tuple[Float[Array, ""], PyTree]:
            outputs, written = self.module.apply(
                {"params": params, **others}, x, **self._switch, mutable=list(others)
            )
            losses = optax.softmax_cross_entropy_with_integer_labels(outputs, y)
            return losses.mean(), written

        (loss, written), gradient = jax.value_and_grad(loss_of, has_aux=True)(params)
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        return {"params": optax.apply_updates(params, updates), **written}, opt_state, loss

    def step_of_shapes(self, instruments: Instruments) -> tuple[Callable[..., PyTree], list]:
        """The step as a function, and shapes of its arguments: the second is the state.

        The hook is made inside, so that the examples of its probe may be shapes, too.
        """
        variables = self.variable_shapes()
        probe = self.examples(self.probe_size)

        def init(variables: PyTree, probe: PyTree) -> PyTree:
            return self.watched(variables, probe, instruments).init(variables["params"])

        def step(variables: PyTree, opt_state: PyTree, batch: PyTree, probe: PyTree) -> PyTree:
            optimizer = self.watched(variables, probe, instruments)
            return self.step(optimizer, variables, opt_state, batch)

        opt_state = jax.eval_shape(init, variables, probe)
        return step, [variables, opt_state, self.examples(self.batch_size), probe]


def momentum_sgd() -> optax.GradientTransformation:
    """As residual networks are trained."""
    return optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.1, momentum=0.9, nesterov=True))


def adamw() -> optax.GradientTransformation:
    """As transformers are trained: warm-up, clipping, and decay of weights."""
    schedule = optax.warmup_cosine_decay_schedule(0.0, 6e-4, 2000, 600_000)
    adam = optax.adamw(schedule, b1=0.9, b2=0.95, weight_decay=0.1)
    return optax.chain(optax.clip_by_global_norm(1.0), adam)


LARGE = (
    Training("ResNet-50", ResNet(), momentum_sgd(), (224, 224, 3), 1024, has_batch_norm=True),
    Training("ViT-B/16", VisionTransformer(), adamw(), (224, 224, 3), 1024),
    Training("GPT-2 124M", LanguageModel(), adamw(), (1024,), 512, is_language=True),
)

# Small ones, which a machine of two cores runs.
SMALL = (
    Training("demo CNN", DigitsNet(), adamw(), (8, 8, 1), 256),
    Training(
        "ResNet with batch norm",
        ResNet((1, 1, 1), width=16, classes=10),
        momentum_sgd(),
        (32, 32, 3),
        128,
        has_batch_norm=True,
    ),
    Training(
        "transformer of 4 layers",
        LanguageModel(4, 64, 4, 96),
        adamw(),
        (64,),
        128,
        is_language=True,
    ),
)
