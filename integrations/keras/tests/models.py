"""Small models of the kinds that Keras has, and the dense Jacobian of its own `stateless_call`."""

import jax
import keras
import numpy as np

layers = keras.layers


def mlp():
    return keras.Sequential(
        [keras.Input((5,)), layers.Dense(7, activation="tanh"), layers.Dense(3)]
    )


def cnn():
    """With running statistics that are not those of the start."""
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(3, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(4),
        ]
    )
    norm = model.layers[1]
    norm.moving_mean.assign([0.1, -0.2, 0.3])
    norm.moving_variance.assign([0.5, 1.5, 2.0])
    return model


def attention():
    inputs = keras.Input((5, 6))
    # Without dropout Keras calls `jax.nn.dot_product_attention`, whose softmax is of float32.
    mixed = layers.MultiHeadAttention(num_heads=2, key_dim=3, dropout=0.1)(inputs, inputs)
    hidden = layers.LayerNormalization()(layers.Add()([inputs, mixed]))
    pooled = layers.GlobalAveragePooling1D()(layers.Dense(4, activation="gelu")(hidden))
    return keras.Model(inputs, layers.Dense(2)(pooled))


def shared():
    inputs = keras.Input((5,))
    twice = layers.Dense(5, activation="tanh")
    return keras.Model(inputs, layers.Dense(2)(twice(twice(inputs))))


def frozen():
    model = mlp()
    model.layers[0].trainable = False
    return model


def without_dropout(model):
    """A copy of the same values whose Dropout layers drop nothing and draw nothing."""

    def copied(layer):
        is_dropout = isinstance(layer, layers.Dropout)
        return layers.Dropout(0.0) if is_dropout else type(layer).from_config(layer.get_config())

    copy = keras.models.clone_model(model, clone_function=copied)
    for new, old in zip(copy.layers, model.layers, strict=True):
        if not isinstance(new, layers.Dropout):
            new.set_weights(old.get_weights())
    return copy


class Tower(keras.Model):
    """Subclassed, with layers in a list."""

    def __init__(self, width=4, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.blocks = [layers.Dense(width, activation="tanh") for _ in range(2)]
        self.drop = layers.Dropout(0.5)
        self.head = layers.Dense(2, name="head")

    def call(self, x, training=False):
        for block in self.blocks:
            x = block(x)
        return self.head(self.drop(x, training=training))

    def get_config(self):
        return {**super().get_config(), "width": self.width}


def tower():
    model = Tower()
    model(np.ones((1, 3)))
    return model


def two_inputs():
    a = keras.Input((3,), name="a")
    b = keras.Input((2,), name="b")
    joined = layers.Concatenate()([layers.Dense(3)(a), layers.Dense(3)(b)])
    return keras.Model({"a": a, "b": b}, layers.Dense(2)(layers.Activation("tanh")(joined)))


MODELS = {
    "mlp": (mlp, (5,)),
    "cnn": (cnn, (6, 6, 2)),
    "attention": (attention, (5, 6)),
    "shared": (shared, (5,)),
    "frozen": (frozen, (5,)),
    "subclassed": (tower, (3,)),
    "two inputs": (two_inputs, {"a": (3,), "b": (2,)}),
}


def examples(shape, n=4, seed=0, dtype="float64"):
    random = np.random.default_rng(seed)
    if isinstance(shape, dict):
        return {name: random.normal(size=(n, *one)).astype(dtype) for name, one in shape.items()}
    return random.normal(size=(n, *shape)).astype(dtype)


def dense_jacobian(model, x, training=False):
    """`[n o p]` of what `fit` trains."""
    held = [variable.value for variable in model.non_trainable_variables]

    def outputs(weights):
        return model.stateless_call(weights, held, x, training=training)[0]

    weights = [variable.value for variable in model.trainable_variables]
    n, o = outputs(weights).shape
    leaves = jax.jacrev(outputs)(weights)
    return np.concatenate([np.reshape(leaf, (n, o, -1)) for leaf in leaves], axis=2)
