"""Kernels of the prototype's documented examples, beside the same networks written in JAX.

Both sides are one computation with the same weights in one process: a call of `empirical_ntk_fn_tf`
on the Keras model, and one of `ntkdiag.neural_tangents.empirical_ntk_fn` on the function of JAX.
The first call is timed with empty caches, for TensorFlow with the conversion of the model.
Run with python benchmarks/native.py.
"""

import os
import time

os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)  # the first call compiles
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax
from ntkdiag_tensorflow import empirical_ntk_fn_tf, get_apply_fn_and_params

import ntkdiag
import ntkdiag.neural_tangents as nt

layers = tf.keras.layers
RUNS = 5


def cnn(size, channels):
    """The CNN of the prototype's docstring, and of its example file."""
    model = tf.keras.Sequential(
        [
            tf.keras.Input((size, size, 3)),
            layers.Conv2D(channels, 3, activation="relu", name="0"),
            layers.Conv2D(channels, 3, activation="relu", name="1"),
            layers.Conv2D(channels, 3, name="2"),
            layers.Flatten(),
            layers.Dense(10, name="3"),
        ],
        name="net",
    )

    def native(params, x):
        for layer in range(3):
            x = conv(params, f"net/{layer}", x, padding="VALID")
            x = jax.nn.relu(x) if layer < 2 else x
        return x.reshape(len(x), -1) @ params["net/3/kernel"] + params["net/3/bias"]

    return model, native


def fcn():
    """The fully connected network of the docstring."""
    model = tf.keras.Sequential(
        [
            tf.keras.Input((32, 32, 3)),
            layers.Flatten(),
            layers.Dense(1024, activation="relu", name="0"),
            layers.Dense(1024, activation="relu", name="1"),
            layers.Dense(10, name="2"),
        ],
        name="net",
    )

    def native(params, x):
        x = x.reshape(len(x), -1)
        for layer in range(3):
            x = x @ params[f"net/{layer}/kernel"] + params[f"net/{layer}/bias"]
            x = jax.nn.relu(x) if layer < 2 else x
        return x

    return model, native


def resnet50(size, classes):
    """The ResNet50 of the notebook, for images of another size."""
    model = tf.keras.applications.ResNet50(
        classes=classes, weights=None, input_shape=(size, size, 3), classifier_activation=None
    )
    fixed = ntkdiag.functionalize(model).fixed

    def norm(params, name, x):
        scale = lax.rsqrt(fixed[f"{name}/moving_variance"] + 1.001e-5) * params[f"{name}/gamma"]
        return (x - fixed[f"{name}/moving_mean"]) * scale + params[f"{name}/beta"]

    def conv_norm(params, name, x, **options):
        return norm(params, f"{name}_bn", conv(params, f"{name}_conv", x, **options))

    def block(params, name, x, stride, has_projection):
        shortcut = x
        if has_projection:
            shortcut = conv_norm(params, f"{name}_0", x, stride=stride)
        x = jax.nn.relu(conv_norm(params, f"{name}_1", x, stride=stride))
        x = jax.nn.relu(conv_norm(params, f"{name}_2", x, padding="SAME"))
        return jax.nn.relu(shortcut + conv_norm(params, f"{name}_3", x))

    def native(params, x):
        x = jnp.pad(x, ((0, 0), (3, 3), (3, 3), (0, 0)))
        x = jax.nn.relu(conv_norm(params, "conv1", x, stride=2))
        x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "VALID")
        for stack, n_blocks in enumerate((3, 4, 6, 3), start=2):
            for number in range(1, n_blocks + 1):
                stride = 2 if number == 1 and stack > 2 else 1
                x = block(params, f"conv{stack}_block{number}", x, stride, number == 1)
        return x.mean((1, 2)) @ params["predictions/kernel"] + params["predictions/bias"]

    return model, native


def conv(params, name, x, stride=1, padding="VALID"):
    """A convolution with a bias."""
    kernel = params[f"{name}/kernel"]
    layout = ("NHWC", "HWIO", "NHWC")
    x = lax.conv_general_dilated(x, kernel, (stride, stride), padding, dimension_numbers=layout)
    return x + params[f"{name}/bias"]


def timed(make, *arguments):
    """Seconds of the first call with its preparation, of the best later one, and the kernel."""
    jax.clear_caches()
    ntkdiag.clear_caches()
    start = time.perf_counter()
    ntk_fn = make()
    jax.block_until_ready(ntk_fn(*arguments))
    first = time.perf_counter() - start
    runs = []
    for _ in range(RUNS):
        start = time.perf_counter()
        kernel = jax.block_until_ready(ntk_fn(*arguments))
        runs.append(time.perf_counter() - start)
    return first, min(runs), np.asarray(kernel)


def compare(name, model, native, n1, n2, **options):
    """One row of the table."""
    shape = model.input_shape[1:]
    rng = np.random.default_rng(0)
    x1 = rng.normal(size=(n1, *shape)).astype(np.float32)
    x2 = None if n2 is None else rng.normal(size=(n2, *shape)).astype(np.float32)
    _, params = get_apply_fn_and_params(model)
    in_jax = timed(lambda: nt.empirical_ntk_fn(native, **options), x1, x2, params)
    in_tf = timed(lambda: empirical_ntk_fn_tf(model, **options), x1, x2, params)
    difference = np.abs(in_tf[2] - in_jax[2]).max() / np.abs(in_jax[2]).max()
    print(
        f"| {name} | {list(in_jax[2].shape)} | {in_jax[0]:.2f} | {in_tf[0]:.2f} "
        f"| {in_tf[0] / in_jax[0]:.2f} | {1e3 * in_jax[1]:.1f} | {1e3 * in_tf[1]:.1f} "
        f"| {in_tf[1] / in_jax[1]:.2f} | {difference:.0e} |",
        flush=True,
    )


def main():
    """The table in the README."""
    large_cnn = cnn(32, 32)
    compare("not counted: imports", *cnn(8, 4), 2, None)
    print(
        "| example | kernel | first, JAX (s) | first, TF | ratio | later, JAX (ms) | later, TF "
        "| ratio | difference |\n|---|---|---|---|---|---|---|---|---|"
    )
    compare("CNN, trace", *large_cnn, 5, 20, vmap_axes=0)
    compare("CNN, full", *large_cnn, 5, 20, trace_axes=(), vmap_axes=0)
    compare("FCN, trace", *fcn(), 5, None, vmap_axes=0, implementation=2)
    compare("FCN, diagonal", *fcn(), 20, None, diagonal_axes=(0,))
    compare("small CNN, full", *cnn(8, 16), 3, 6, trace_axes=())
    compare("ResNet50 at 64 x 64, full", *resnet50(64, 4), 2, 2, trace_axes=(), vmap_axes=0)


if __name__ == "__main__":
    main()
