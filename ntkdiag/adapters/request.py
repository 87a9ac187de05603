"""What the user asked `functionalize` for, handed to the adapter of the model's library."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ntkdiag import errors

_TRAINING = ("train", "training", "is_training")
_EVALUATING = ("deterministic", "use_running_average")


@dataclasses.dataclass(frozen=True)
class Request:
    """The arguments of one `functionalize` call; see there for what they mean.

    Attributes:
        variables: What came beside the model.
        mode: ``"eval"`` or ``"train"``.
        method: Method to call instead of the model itself.
        trainable: Which leaves are differentiated.
        output: Applied to what the model returns.
        call_kwargs: Keyword arguments of every call of the model.
        unpack: Spread `x` over the arguments of the model.
        check_finite: Refuse NaN and infinity.
        options: Arguments that only some libraries know, as given.
    """

    variables: Any
    mode: str
    method: Any
    trainable: Any
    output: Callable[[Any], Any] | None
    call_kwargs: Mapping[str, Any]
    unpack: bool
    check_finite: bool
    options: Mapping[str, Any]

    def require_options(self, known: tuple[str, ...], *, call: str) -> None:
        """Refuse an option that means nothing for this library.

        Args:
            known: Names of the options the library has.
            call: The call to name in the message, in code form.

        Raises:
            InvalidInputError: If another one was given.
        """
        unknown = [name for name in self.options if name not in known]
        if unknown:
            raise errors.InvalidInputError(
                errors.message(
                    call,
                    expected=f"options among: {', '.join(known) or 'none'}",
                    got=", ".join(f"{name}=" for name in unknown),
                    do="Leave it out: it belongs to another library.",
                )
            )

    def spread(self, x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Turn the batch into positional and keyword arguments of the model."""
        if not self.unpack:
            return (x,), {}
        return ((), dict(x)) if isinstance(x, Mapping) else (tuple(x), {})


def mode_flags(mode: str) -> dict[str, bool]:
    """Name the usual switches between training and evaluation, with their values in `mode`."""
    training = mode == "train"
    return dict.fromkeys(_TRAINING, training) | dict.fromkeys(_EVALUATING, not training)


def mode_arguments(function: Callable[..., Any], mode: str) -> dict[str, bool]:
    """Give the switches that `function` has arguments for.

    Args:
        function: The method that is going to be called.
        mode: ``"eval"`` or ``"train"``.

    Returns:
        Keyword arguments; empty if it has none of the usual ones by name.
    """
    names = inspect.signature(function).parameters
    return {name: value for name, value in mode_flags(mode).items() if name in names}
