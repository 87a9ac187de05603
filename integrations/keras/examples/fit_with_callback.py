"""A small convolutional network with BatchNormalization, watched while `fit` trains it."""

import json
import os

os.environ["KERAS_BACKEND"] = "jax"  # before keras is imported

import keras
import numpy as np
from ntkdiag_keras import NTKCallback

# Images of one bright row: which one is it?
random = np.random.default_rng(0)
y = random.integers(0, 6, size=768)
x = random.normal(size=(768, 6, 6, 1)).astype("float32")
x[np.arange(768), y] += 1.0

keras.utils.set_random_seed(0)
model = keras.Sequential(
    [
        keras.Input((6, 6, 1)),
        keras.layers.Conv2D(8, 3),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.Flatten(),
        keras.layers.Dense(6),
    ]
)
model.compile(
    optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
watch = NTKCallback(train=(x[:64], y[:64]), held_out=(x[512:576], y[512:576]))
history = model.fit(x[:512], y[:512], epochs=5, batch_size=64, verbose=2, callbacks=[watch])

print(watch.monitor.cost)
numbers = {name: values for name, values in history.history.items() if name.startswith("ntk_")}
print(json.dumps(numbers))
