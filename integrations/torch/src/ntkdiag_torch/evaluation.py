"""A function of tensors as one of JAX arrays: by torchax where it converts, else by torch.func."""

import threading
import warnings
from typing import Any

from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag_torch import by_torch_func, by_torchax
from ntkdiag_torch.by_torch_func import Forward

WAYS = ("auto", "torchax", "torch.func")


class Evaluation:
    """How the functions of one module are evaluated; `str` of it names what does so.

    Whether torchax converts a module shows when it is called: "auto" tries it at the first call,
    and goes on with torch.func for good where it fails and PyTorch itself does not.

    Attributes:
        via: "auto", "torchax" or "torch.func".
        reason: Why torch.func stands in for torchax; empty where it does not.
    """

    def __init__(self, via: str) -> None:
        if via not in WAYS:
            raise errors.InvalidInputError(
                expected=" or ".join(f'via="{way}"' for way in WAYS),
                got=f"via={via!r}",
                do="Choose one of them.",
            )
        self.via = via
        self.reason = ""
        # A call puts its arrays into the module for as long as it runs.
        self.lock = threading.RLock()

    def __str__(self) -> str:
        return "torch.func" if self.via == "torch.func" or self.reason else "jax"

    def __call__(
        self,
        forward: Forward,
        params: dict[str, PyTree],
        fixed: dict[str, PyTree],
        args: tuple,
        kwargs: dict[str, Any],
    ) -> PyTree:
        """Outputs as JAX arrays."""
        arguments = (forward, params, fixed, args, kwargs, self.lock)
        if str(self) == "torch.func":
            return by_torch_func.call(*arguments)
        try:
            return by_torchax.call(*arguments)
        except Exception as error:
            if self.via == "torchax":
                raise
            # What PyTorch refuses, too, is its own error, and says nothing about torchax.
            outputs = by_torch_func.call(*arguments)
            first_line = (str(error).strip() or "no message").splitlines()[0]
            self.reason = f"{type(error).__name__}: {first_line[:200]}"
        warnings.warn(
            f"torchax does not convert this module ({self.reason}): torch.func evaluates and "
            'differentiates it, by callbacks. via="torch.func" says so from the start.',
            stacklevel=2,
        )
        return outputs
