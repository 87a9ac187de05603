"""Two kernels may be compared only when their numbers mean the same thing."""

from ntkdiag import errors
from ntkdiag.kernel.convention import Convention
from ntkdiag.kernel.operand import KernelLike, Operand, read


def read_pair(a: KernelLike, b: KernelLike, names: tuple[str, str]) -> tuple[Operand, Operand]:
    """Read two kernels of the same examples in the same convention.

    Cost: as `operand.read`, twice.

    Args:
        a: The reference kernel.
        b: The kernel compared with it.
        names: The two argument names, for the message.

    Returns:
        The two operands.

    Raises:
        InvalidInputError: When shapes or conventions differ. Precision may differ; a probe or mode that one side
            does not state is not compared.
    """
    first = read(a, names[0], diagonal=True)
    second = read(b, names[1], diagonal=True)
    if first.array.shape != second.array.shape:
        raise errors.InvalidInputError(
            expected="two kernels of the same shape",
            got=f"`{names[0]}` {first.array.shape} and `{names[1]}` {second.array.shape}",
            do="Compute both on the same probe examples and with the same `reduction`.",
        )
    difference = _difference(first, second)
    if difference:
        raise errors.InvalidInputError(
            expected="two kernels in the same convention",
            got=difference,
            do="Recompute one of them: numbers in different conventions do not compare.",
        )
    return first, second


def _difference(first: Operand, second: Operand) -> str:
    a, b = first.convention, second.convention
    if a is None or b is None:
        return ""
    fields = [
        f
        for f in ("reduction", "n_outputs", "examples", "mode", "preconditioner", "probe")
        if _differ(a, b, f)
    ]
    lines = [f"{f}={getattr(a, f)!r} and {f}={getattr(b, f)!r}" for f in fields]
    if first.symmetric != second.symmetric:
        lines.append(f"symmetric={first.symmetric} and symmetric={second.symmetric}")
    return ", ".join(lines)


def _differ(a: Convention, b: Convention, field: str) -> bool:
    unstated = (None, "unspecified")
    left, right = getattr(a, field), getattr(b, field)
    return left != right and left not in unstated and right not in unstated
