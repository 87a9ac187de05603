"""The backend that Keras runs on, which is chosen before it is imported."""

import keras

from ntkdiag import errors


def require_jax(model: object = None) -> None:
    """Refuse to work where Keras runs on another backend; say what does."""
    backend = keras.backend.backend()
    if backend == "jax":
        return
    got = f"Keras on {backend}"
    if model is not None:
        got = f"a {type(model).__name__} of Keras on {backend}"
    do = (
        "Set the environment variable KERAS_BACKEND=jax before keras is imported: a .keras file "
        "loads on either backend"
    )
    if backend in ("tensorflow", "torch"):
        do += f"; or pass ntkdiag_{backend}.functionalize(model)"
    raise errors.InvalidInputError(expected="Keras on the JAX backend", got=got, do=f"{do}.")
