"""What happens without a training example, as a page: of every test example who helped, who hurt.

Changes are those of the loss when an example is left out: above 0 it helped, below 0 it hurt.
"""

import numpy as np
from jaxtyping import Float, Int, PyTree

from ntkdiag.judging.regime import LAZY_E1, NONLINEAR_E1
from ntkdiag.report.examples_page import PageOfExamples, drawn_in_order, examples_html
from ntkdiag.report.named_examples import NamedExamples, require_examples
from ntkdiag.report.number_text import number
from ntkdiag.report.reported import Influence
from ntkdiag.report.run_answers import Answer
from ntkdiag.report.run_gallery import MOST_EXAMPLES, Gallery, ShownExample

MOST_TEST_EXAMPLES = 12
MOST_OF_EACH = 4  # training examples that helped, or hurt, one test example
_DIGITS = 3


def influence_html(
    influence: Influence,
    train: tuple[PyTree, PyTree] | None,
    test: tuple[PyTree, PyTree] | None,
) -> str:
    """Write an influence as a page that loads nothing.

    Args:
        influence: An `Influence`.
        train: (x, y) of the training examples, for their labels and pictures; None without.
        test: (x, y) of the test examples; None without.

    Returns:
        The HTML document.

    Raises:
        InvalidInputError: The examples are not those of the influence.
        MissingDependencyError: jinja2 or matplotlib is not installed.
    """
    left_out = np.asarray(influence.left_out)
    change = np.asarray(influence.loss, np.float64)  # [train test]
    n_test = change.shape[1]
    fewest = int(left_out.max()) + 1
    expected = f"the training examples of the call, {fewest} or more, with their labels"
    require_examples(train, "train", expected, fewest, most=2**62)
    expected = f"the {n_test} test examples of the call with their labels"
    require_examples(test, "test", expected, n_test, most=n_test)

    # 1. The test examples whose loss depends most on one training example, with those examples.
    shown_test = np.argsort(-np.abs(change).max(axis=0), kind="stable")[:MOST_TEST_EXAMPLES]
    helped = {column: _largest(change[:, column], MOST_OF_EACH) for column in shown_test.tolist()}
    hurt = {column: _largest(-change[:, column], MOST_OF_EACH) for column in shown_test.tolist()}
    # 2. Those that matter most for the mean over all of them.
    mean = change.mean(axis=1)
    helpful = _largest(mean, MOST_EXAMPLES)
    harmful = _largest(-mean, MOST_EXAMPLES)

    rows = np.concatenate([*helped.values(), *hurt.values(), helpful, harmful]).astype(int)
    of_train = NamedExamples.of("example", train, left_out[rows].tolist())
    of_test = NamedExamples.of("test example", test, shown_test.tolist())

    def shown(rows: Int[np.ndarray, " k"], by_row: Float[np.ndarray, " n"]) -> list[ShownExample]:
        return [of_train.shown(int(left_out[row]), float(by_row[row])) for row in rows]

    lines = []
    for column in shown_test.tolist():
        of_one = change[:, column]
        cells = shown(helped[column], of_one), shown(hurt[column], of_one)
        lines.append([[of_test.shown(column)], *cells])
    pages = [
        PageOfExamples(
            name="test",
            heading="By test example",
            caption=f"{len(lines)} of {n_test} test examples, those first whose loss depends most "
            "on one training example. The number is the change of that loss without it: above 0 "
            "the training example helped, below 0 it hurt.",
            head=("test example", "helped most", "hurt most"),
            lines=lines,
        ),
        PageOfExamples(
            name="train",
            heading="All test examples together",
            drawings=[
                drawn_in_order(
                    "influence",
                    "Mean test loss without each training example",
                    "The change of the mean loss of the test examples when one training example is "
                    "left out, in order. A few at the left are worth a look; where all are near 0, "
                    "no single example matters.",
                    mean,
                    "change of the mean test loss",
                )
            ],
            galleries=[
                Gallery(
                    "Hurt most", "Without these the mean test loss falls.", shown(harmful, mean)
                ),
                Gallery(
                    "Helped most", "Without these the mean test loss rises.", shown(helpful, mean)
                ),
            ],
        ),
    ]
    numbers = [
        ("training examples left out, one at a time", f"{len(left_out):,}"),
        ("test examples", f"{n_test:,}"),
        ("ridge", number(influence.ridge)),
        ("e1", number(influence.e1)),
    ]
    return examples_html(
        kind="influence",
        title="Influence of training examples",
        facts=numbers[:4],
        answers=[_answer(left_out, mean, helpful, harmful), _trust(influence)],
        findings=(),
        pages=pages,
        numbers=numbers,
    )


def _largest(values: Float[np.ndarray, " n"], count: int) -> Int[np.ndarray, " k"]:
    """The rows of the largest values above 0, at most so many."""
    order = np.argsort(-values, kind="stable")[:count]
    return order[values[order] > 0]


def _answer(
    left_out: Int[np.ndarray, " n"],
    mean: Float[np.ndarray, " n"],
    helpful: Int[np.ndarray, " k"],
    harmful: Int[np.ndarray, " l"],
) -> Answer:
    """Which example hurts the mean test loss most, and which helps it most."""
    said = []
    if len(harmful):
        row = int(harmful[0])
        fall = number(-float(mean[row]), _DIGITS)
        said.append(f"Without example {left_out[row]} the mean test loss falls by {fall}.")
    else:
        said.append("No training example hurts the mean test loss.")
    if len(helpful):
        row = int(helpful[0])
        rise = number(float(mean[row]), _DIGITS)
        said.append(f"Without example {left_out[row]} it rises by {rise}.")
    n_hurting = int((mean < 0).sum())
    return Answer(" ".join(said), f"{n_hurting} of {len(mean)} examples hurt on average.")


def _trust(influence: Influence) -> Answer:
    """How far the network follows the linearized model, of which the numbers are."""
    e1 = float(influence.e1)
    if e1 < LAZY_E1:
        said = "The network follows the linearized model nearly: these are its influences, too."
    elif e1 < NONLINEAR_E1:
        said = (
            "The network follows the linearized model in part: trust the order more than the sizes."
        )
    else:
        said = "The network does not follow: these influences are of the linearized model alone."
    trust = (
        f"e1 {number(e1, 2)}, the error of the linearized model on the test examples over the "
        f"change of the outputs. Exact for that model, at ridge {number(influence.ridge, _DIGITS)}"
    )
    return Answer(said, f"{trust}.")
