"""`ntkdiag spectrum CKPT`: the eigenvalues of one checkpoint, and what they say together."""

import math
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from ntkdiag import display, errors
from ntkdiag.commands.case import Case
from ntkdiag.commands.printing import print_json, results_alone
from ntkdiag.commands.shared_options import (
    CaseOption,
    HeldOutOption,
    JsonOption,
    MemoryOption,
    ReductionOption,
    TrainOption,
    examples,
)
from ntkdiag.report.number_text import number, percent

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = examples(
    "ntkdiag spectrum run@100 --case net.py:case",
    "ntkdiag spectrum run/100 --model net.py:net --train train.npz --top 20 --json",
)


def spectrum(
    checkpoint: Annotated[
        str,
        typer.Argument(metavar="CKPT", help="Checkpoint of any format, step, root, or root@step."),
    ],
    case: CaseOption,
    train: TrainOption = None,
    held_out: HeldOutOption = None,
    reduction: ReductionOption = "auto",
    memory: MemoryOption = None,
    top: Annotated[int, typer.Option(min=1, help="Eigenvalues to print.")] = 10,
    as_json: JsonOption = False,
) -> None:
    """Eigenvalues, effective ranks and noise floor of the kernel of one checkpoint.

    On the examples of --train, or else on those that are held out. --case
    imports the module it names, which runs its code.
    """
    from ntkdiag.report.comparison_table import terminal

    with results_alone(as_json):
        read = Case.named(case, "ntkdiag spectrum --case")
        read = read.with_examples(train, held_out, "spectrum")
        read.require_examples()
        content = _measure(checkpoint, read, reduction, memory)
    if as_json:
        print_json(content)
    else:
        console = terminal()
        console.print(_table(content, top))
        console.print(_in_words(content), markup=False, highlight=False)


@errors.called("ntkdiag spectrum")
def _measure(checkpoint: str, case: Case, reduction: str, memory: str | None) -> display.PlainValue:
    """The spectrum of a checkpoint on the examples of a case, as plain values."""
    from ntkdiag.comparison.compared_outputs import require_outputs, with_one_output
    from ntkdiag.comparison.load import read_side
    from ntkdiag.comparison.restore import Template
    from ntkdiag.comparison.sources import classified
    from ntkdiag.engine.ntk import ntk
    from ntkdiag.kernel.decomposition import spectrum
    from ntkdiag.kernel.reduction import automatic
    from ntkdiag.measuring.settings import read_settings
    from ntkdiag.progress import under_way

    # The checkpoint is put into the model as `compare` does it, and refused for the same reasons.
    settings = read_settings(case.train, case.held_out, reduction, None, None, memory)
    model, variables = case.of_checkpoints()
    template = Template.of(classified(model), variables=variables, x=settings.x)
    side = read_side(classified(checkpoint), template, name="checkpoint", label=None)
    side, _ = with_one_output(side, side, settings)
    shape = require_outputs(side, settings)
    if settings.reduction == "auto":
        reduction = automatic(settings.n_examples, math.prod(shape[1:]))
    f, params = side.functional
    with under_way("spectrum"):
        kernel = ntk(f, params, settings.x, reduction=reduction, memory=settings.memory)
        found = spectrum(kernel)
    content = {
        "label": side.label,
        "path": side.path,
        "step": side.step,
        "examples": settings.probes.of_kernel.name,
        "trace": float(np.sum(found.eigenvalues)),
        **found.to_dict(),
    }
    return display.plain(content)


def _table(content: display.PlainValue, top: int) -> "Table":
    """The leading eigenvalues that are resolved, with the share each has in the trace."""
    eigenvalues = content["eigenvalues"][: min(top, content["rank"])]
    title = f"{content['label']}: {len(eigenvalues)} of {content['size']} eigenvalues"
    table = display.terminal_table(title)
    table.expand = False
    for name in ("mode", "eigenvalue", "of the trace", "together"):
        table.add_column(name, justify="right", no_wrap=True)
    together = 0.0
    for place, eigenvalue in enumerate(eigenvalues, start=1):
        share = eigenvalue / content["trace"]
        together += share
        table.add_row(str(place), number(eigenvalue), percent(share), percent(together))
    return table


def _in_words(content: display.PlainValue) -> str:
    """What the eigenvalues say together."""
    convention = content["convention"]
    unresolved = content["size"] - content["rank"]
    lines = [
        f"trace {number(content['trace'])}, status {content['status']}",
        f"effective ranks: participation ratio {number(content['participation_ratio'])}, "
        f"entropy rank {number(content['entropy_rank'])}, "
        f"stable rank {number(content['stable_rank'])}",
        f"rank {content['rank']} of {content['size']}: {unresolved} eigenvalues below the noise "
        f"floor {number(content['noise_floor'])}",
        f"kernel: {convention['reduction']} over {convention['n_outputs']} outputs, "
        f"mode {convention['mode']}, examples of {content['examples']}",
    ]
    return "\n".join(lines)
