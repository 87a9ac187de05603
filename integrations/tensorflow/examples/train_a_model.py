"""A Keras model trained in TensorFlow, watched by its kernel, and compared at both ends.

Run with python examples/train_a_model.py.
"""

import numpy as np
import tensorflow as tf
from ntkdiag_tensorflow import functionalize

import ntkdiag
from ntkdiag.monitor.writers import InMemory

LEARNING_RATE = 0.1


def two_rings(n, seed):
    """Points in the plane, labelled by their distance from the origin."""
    points = np.random.default_rng(seed).normal(size=(n, 2)).astype(np.float32)
    return points, (np.linalg.norm(points, axis=1) > 1.2).astype(np.int32)


def main():
    """Train for a hundred steps."""
    tf.keras.utils.set_random_seed(0)
    model = tf.keras.Sequential(
        [
            tf.keras.Input((2,)),
            tf.keras.layers.Dense(32, "relu"),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Dense(32, "relu"),
            tf.keras.layers.Dense(2),
        ]
    )
    x, y = two_rings(128, seed=0)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.SGD(LEARNING_RATE)

    fn = functionalize(model)
    memory = InMemory()
    monitor = ntkdiag.Monitor(
        fn, train=(x[:32], y[:32]), instruments="kernel", every=50, writers=[memory]
    )
    for step in range(101):
        monitor(step, fn.extract(model))
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for step, alignment in zip(memory.steps, memory.series("alignment"), strict=True):
        print(f"step {step:3d}: alignment with the labels {alignment:.3f}")
    print(ntkdiag.compare(fn.params, fn.extract(model), model=fn, train=(x[:32], y[:32])))


if __name__ == "__main__":
    main()
