"""A small network whose kernel is measured at the end of every epoch while `fit` trains it."""

import os

os.environ["KERAS_BACKEND"] = "jax"  # before keras is imported

import keras
import numpy as np

import ntkdiag


class KernelCallback(keras.callbacks.Callback):
    """Measures the kernel before training and after each epoch."""

    def __init__(self, fn, monitor):
        super().__init__()
        self.fn, self.monitor = fn, monitor

    def on_train_begin(self, logs=None):
        self.monitor(0, self.fn.params)

    def on_epoch_end(self, epoch, logs=None):
        # `self.model` puts the current values into the variables.
        self.monitor(epoch + 1, self.fn.extract(self.model))

    def on_train_end(self, logs=None):
        self.monitor.close()


# Which of the first three numbers is the largest?
random = np.random.default_rng(0)
x = random.normal(size=(640, 10)).astype("float32")
y = x[:, :3].argmax(axis=1)

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [keras.Input((10,)), keras.layers.Dense(32, activation="tanh"), keras.layers.Dense(3)]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
)
fn = ntkdiag.functionalize(model)
monitor = ntkdiag.Monitor(fn, train=(x[:64], y[:64]), instruments="kernel", every=1)
model.fit(x[:512], y[:512], epochs=5, batch_size=64, callbacks=[KernelCallback(fn, monitor)])
print("trace", monitor.last.trace)
