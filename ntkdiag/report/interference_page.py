"""What training on new examples does to old ones, as a page: the change, and who is hit hardest."""

import numpy as np
from jaxtyping import PyTree

from ntkdiag.report.examples_page import PageOfExamples, drawn_in_order, examples_html
from ntkdiag.report.named_examples import NamedExamples, require_examples
from ntkdiag.report.number_text import number
from ntkdiag.report.reported import Interference
from ntkdiag.report.run_answers import Answer
from ntkdiag.report.run_gallery import MOST_LOOKED_AT, Gallery

_DIGITS = 3


def interference_html(interference: Interference, old: tuple[PyTree, PyTree] | None) -> str:
    """Write an interference as a page that loads nothing.

    Args:
        interference: An `Interference`.
        old: (x, y) of the old examples, for their labels and pictures; None without.

    Returns:
        The HTML document.

    Raises:
        InvalidInputError: The examples are not those of the interference.
        MissingDependencyError: jinja2 or matplotlib is not installed.
    """
    by_example = np.asarray(interference.by_example, np.float64)
    n = len(by_example)
    expected = f"the {n} old examples of the call with their labels"
    require_examples(old, "old", expected, n, most=n)
    order = np.argsort(-by_example, kind="stable")
    harmed = order[:MOST_LOOKED_AT][by_example[order[:MOST_LOOKED_AT]] > 0].tolist()
    helped = order[::-1][:MOST_LOOKED_AT]
    helped = helped[by_example[helped] < 0].tolist()
    of_old = NamedExamples.of("example", old, [*harmed, *helped])

    def gallery(title: str, caption: str, places: list[int]) -> Gallery:
        return Gallery(title, caption, [of_old.shown(k, float(by_example[k])) for k in places])

    unit = _unit(interference)
    page = PageOfExamples(
        name="old",
        heading="Old examples",
        drawings=[
            drawn_in_order(
                "interference",
                "Loss of each old example",
                f"The change of the loss of each old example{unit}, in order: above 0 it is worse.",
                by_example,
                "change of the loss",
            )
        ],
        galleries=[
            gallery("Hit hardest", "Their loss rises most: mix these into the new ones.", harmed),
            gallery("Helped most", "Their loss falls most.", helped),
        ],
    )
    numbers = [
        ("steps", "infinitesimal" if interference.per_rate else f"{interference.steps}"),
        ("old examples", f"{n:,}"),
        ("e1 on the old examples", number(interference.e1)),
        ("e1 on the new examples", number(interference.e1_of_new)),
        ("change of the mean loss on the old examples", _change(interference.change)),
        ("its 95 % interval", _interval(interference)),
        ("the same, of the network itself", _change(interference.of_network)),
        ("change of the mean loss on the new examples", _change(interference.of_new)),
        ("old examples that are harmed", f"{int((by_example > 0).sum()):,}"),
    ]
    return examples_html(
        kind="interference",
        title="New examples and old ones",
        facts=numbers[:4],
        answers=_answers(interference),
        findings=interference.findings,
        pages=[page],
        numbers=numbers,
    )


def _answers(interference: Interference) -> list[Answer]:
    """What happens to the old examples, and how far the network follows."""
    unit = _unit(interference)
    if interference.lower > 0:
        does = "raises"
    elif interference.upper < 0:
        does = "lowers"
    else:
        does = "may raise or lower"
    change = f"{_change(interference.change)} ({_interval(interference)})"
    of_old = Answer(
        f"Training on the new examples {does} the mean loss on the old ones: {change}{unit}.",
        "The change, after minus before, of the linearized model, with its 95 % interval over "
        "examples like the old ones, widened by what that model misses of the network.",
    )
    of_new = f"The loss on the new examples changes by {_change(interference.of_new)}{unit}."
    if interference.per_rate:
        return [of_old, Answer(of_new, "To first order: name an optimizer for real steps.")]
    of_network = f"The network itself, moved as far: {_change(interference.of_network)} on the old."
    e1, e1_of_new = (number(e, 2) for e in (interference.e1, interference.e1_of_new))
    trust = f"e1 {e1} on the old and {e1_of_new} on the new examples: near 0 the network follows."
    return [of_old, Answer(f"{of_new} {of_network}", trust)]


def _unit(interference: Interference) -> str:
    """What stands behind a change."""
    if interference.per_rate:
        return " per unit of the learning rate"
    return " after 1 step" if interference.steps == 1 else f" after {interference.steps} steps"


def _change(value: float) -> str:
    """A change with its sign."""
    return f"{'+' if value > 0 else ''}{number(float(value), _DIGITS)}"


def _interval(interference: Interference) -> str:
    return f"{_change(interference.lower)} to {_change(interference.upper)}"
