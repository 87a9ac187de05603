"""Two kernels may be compared only when their numbers mean the same thing."""

from ntkdiag.kernels.convention import Convention
from ntkdiag.kernels.operands.operand import KernelLike, Operand, read, refuse


def read_pair(kernel0: KernelLike, kernel1: KernelLike, call: str, names: tuple[str, str]) -> tuple[Operand, Operand]:
    """Read two kernels of the same examples in the same convention.

    Cost: as `operand.read`, twice.

    Args:
        kernel0: The reference kernel.
        kernel1: The kernel compared with it.
        call: The public call, for the message.
        names: The two argument names, for the message.

    Returns:
        The two operands.

    Raises:
        InvalidInputError: When shapes or conventions differ. Precision may differ; a probe or mode that one side
            does not state is not compared.
    """
    first = read(kernel0, call, names[0], diagonal=True)
    second = read(kernel1, call, names[1], diagonal=True)
    if first.array.shape != second.array.shape:
        refuse(
            call,
            expected="two kernels of the same shape",
            got=f"`{names[0]}` {first.array.shape} and `{names[1]}` {second.array.shape}",
            do="Compute both on the same probe examples and with the same `outputs`.",
        )
    difference = _difference(first, second)
    if difference:
        refuse(
            call,
            expected="two kernels in the same convention",
            got=difference,
            do="Recompute one of them: numbers in different conventions do not compare.",
        )
    return first, second


def _difference(first: Operand, second: Operand) -> str:
    a, b = first.convention, second.convention
    if a is None or b is None:
        return ""
    fields = [f for f in ("outputs", "n_outputs", "examples", "mode", "preconditioner", "probe") if _differ(a, b, f)]
    lines = [f"{f}={getattr(a, f)!r} and {f}={getattr(b, f)!r}" for f in fields]
    if first.symmetric != second.symmetric:
        lines.append(f"symmetric={first.symmetric} and symmetric={second.symmetric}")
    return ", ".join(lines)


def _differ(a: Convention, b: Convention, field: str) -> bool:
    unstated = (None, "unspecified")
    left, right = getattr(a, field), getattr(b, field)
    return left != right and left not in unstated and right not in unstated
