"""Two kernels may be compared only when their numbers mean the same thing."""

from ntkdiag import errors
from ntkdiag.kernel.convention import Convention
from ntkdiag.kernel.kernel_argument import KernelArgument, KernelLike, read

# What decides what the numbers of a kernel mean. Precision does not: it decides how good they are.
_MEANING = ("reduction", "n_outputs", "examples", "mode", "preconditioner", "probe")
# Values of a convention that say nothing.
_UNSTATED = (None, "unspecified")


def read_pair(
    a: KernelLike, b: KernelLike, names: tuple[str, str]
) -> tuple[KernelArgument, KernelArgument]:
    """Read two kernels of the same examples in the same convention; `names` are for the message."""
    operand_a = read(a, names[0], diagonal=True)
    operand_b = read(b, names[1], diagonal=True)
    shapes = operand_a.array.shape, operand_b.array.shape
    if shapes[0] != shapes[1]:
        raise errors.InvalidInputError(
            expected="two kernels of the same shape",
            got=f"`{names[0]}` {shapes[0]} and `{names[1]}` {shapes[1]}",
            do="Compute both on the same probe examples and with the same `reduction`.",
        )
    differences = _differences(operand_a, operand_b)
    if differences:
        raise errors.InvalidInputError(
            expected="two kernels in the same convention",
            got=", ".join(differences),
            do="Recompute one of them: numbers in different conventions do not compare.",
        )
    return operand_a, operand_b


def _differences(a: KernelArgument, b: KernelArgument) -> list[str]:
    """In what the conventions of two kernels differ; nothing beside a bare array."""
    if a.convention is None or b.convention is None:
        return []
    differences = [
        f"{name}={getattr(a.convention, name)!r} and {name}={getattr(b.convention, name)!r}"
        for name in _MEANING
        if _differ(a.convention, b.convention, name)
    ]
    if a.symmetric != b.symmetric:
        differences.append(f"symmetric={a.symmetric} and symmetric={b.symmetric}")
    return differences


def _differ(a: Convention, b: Convention, name: str) -> bool:
    """Whether both conventions state this attribute, and state something else."""
    of_a = getattr(a, name)
    of_b = getattr(b, name)
    both_stated = of_a not in _UNSTATED and of_b not in _UNSTATED
    return both_stated and of_a != of_b
