"""Make keras_fit.log, what the real Keras writes into the log of a job: ``python keras_fit.py > keras_fit.log``."""

import os

os.environ["KERAS_BACKEND"] = "jax"

import keras
import numpy as np

model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
numbers = np.zeros((640, 4), "float32")
model.fit(numbers, numbers[:, :1], epochs=3, batch_size=8)
