"""A small network, watched while `fit` trains it."""

import json
import os

os.environ["KERAS_BACKEND"] = "jax"  # before keras is imported

import keras
import numpy as np
from ntkdiag_keras import NTKCallback

# Which of the first three numbers is the largest?
random = np.random.default_rng(0)
x = random.normal(size=(640, 10)).astype("float32")
y = x[:, :3].argmax(axis=1)

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((10,)),
        keras.layers.Dense(32, activation="tanh"),
        keras.layers.Dense(3),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.01),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
watch = NTKCallback(train=(x[:64], y[:64]), held_out=(x[512:576], y[512:576]), loss="cross_entropy")
history = model.fit(x[:512], y[:512], epochs=5, batch_size=64, verbose=2, callbacks=[watch])

print(watch.monitor.cost)
numbers = {name: values for name, values in history.history.items() if name.startswith("ntk_")}
print(json.dumps(numbers))
