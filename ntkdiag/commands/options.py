"""Options that several commands have, each written once."""

import pathlib
from typing import Annotated, Literal, TypeAlias

import typer

CaseArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="CASE",
        help="path.py:function that returns a model, (model, x), (model, variables, x) or a "
        "dictionary. IMPORTS CODE.",
    ),
]
CaseOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--case",
        metavar="CASE",
        help="path.py:function, a model or what returns one, with examples if it has some. "
        "IMPORTS CODE.",
    ),
]
TrainOption: TypeAlias = Annotated[
    pathlib.Path | None,
    typer.Option(
        metavar="FILE.npz",
        help="Examples of the training set: arrays x and, optionally, y. Default: the case's.",
    ),
]
HeldOutOption: TypeAlias = Annotated[
    pathlib.Path | None,
    typer.Option(
        metavar="FILE.npz", help="Examples that were not trained on: x and y. Default: the case's."
    ),
]
ReductionOption: TypeAlias = Annotated[
    Literal["auto", "full", "mean", "trace", "sum-of-logits"],
    typer.Option(
        metavar="KIND",
        help="Of the kernel over outputs: full, mean, trace, sum-of-logits; auto is full up to "
        "2048 rows, else reduced.",
    ),
]
LossOption: TypeAlias = Annotated[
    Literal["mse", "cross_entropy", "sigmoid_cross_entropy"] | None,
    typer.Option(
        metavar="LOSS",
        help="That is trained: mse, cross_entropy, sigmoid_cross_entropy. Default: the case's; "
        "without one there are no stability numbers.",
    ),
]
LearningRateOption: TypeAlias = Annotated[
    float | None,
    typer.Option(metavar="RATE", help="For the stability margin. Default: the case's."),
]
MomentumOption: TypeAlias = Annotated[
    float | None, typer.Option(metavar="BETA", help="Of SGD. Default: the case's, or 0.")
]
MemoryOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory of a kernel, such as 4GB.")
]
ModeOption: TypeAlias = Annotated[
    Literal["eval", "dropout", "train"] | None,
    typer.Option(metavar="MODE", help="eval, dropout or train. Default: the case's, or else eval."),
]
TrainableOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(metavar="GLOB", help="Path glob of what is differentiated; repeatable."),
]
JointOption: TypeAlias = Annotated[
    bool, typer.Option("--joint", help="Examples are meant to interact.")
]
JsonOption: TypeAlias = Annotated[
    bool, typer.Option("--json", help="Print JSON, and nothing else.")
]
FailOnOption: TypeAlias = Annotated[
    Literal["warning", "error"] | None,
    typer.Option(
        metavar="SEVERITY",
        help="End with status 1 for warnings, 2 for errors, 3 where it cannot tell, if a finding "
        "is as urgent: warning or error.",
    ),
]


def examples(*lines: str) -> str:
    """The end of a help text: commands that can be copied, one under the other."""
    return "\n\n".join(("Examples:", *lines))
