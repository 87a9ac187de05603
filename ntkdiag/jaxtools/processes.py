"""Words between the processes of a program, which JAX has no public call for."""

from typing import Any

import jax


def say_to_processes(key: str, text: str) -> None:
    """Have the other processes of the program hear a text under a key that nobody used before."""
    client = _coordination_client()
    if client is not None:
        client.key_value_set(key, text)


def hear_of_process(key: str, seconds: float) -> str | None:
    """The text that a process said under a key; None where nobody did for so long."""
    client = _coordination_client()
    if client is None:
        return None
    try:
        return client.blocking_key_value_get(key, int(1000 * seconds))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error):
            return None
        raise


def can_hear_processes() -> bool:
    """Whether there is a way for words between processes."""
    return _coordination_client() is not None


def _coordination_client() -> Any:
    """What the processes of a program speak through; None where they were not introduced."""
    from jax._src import distributed

    return getattr(getattr(distributed, "global_state", None), "client", None)
