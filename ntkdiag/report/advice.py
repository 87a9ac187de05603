"""What to do next: one list, each line for a cause that the numbers show.

What is wrong with B comes first, then the learning rate, then single parameters, then what to look
at to learn more. A line names the numbers it rests on.
"""

import math

from ntkdiag.judging.alignment_growth import LUCK
from ntkdiag.judging.margin_levels import EDGE, OVER, SLACK
from ntkdiag.report.causes import some_of, unmoved_leaves, unreached_leaves
from ntkdiag.report.fixed_arrays_reading import only_fixed_arrays_moved
from ntkdiag.report.number_text import number
from ntkdiag.report.rate_advice import watch_the_loss
from ntkdiag.report.reported import Comparison, Measured


def advice(comparison: Comparison) -> list[str]:
    """Say what to do next."""
    if comparison.verdict.state != "alive":
        lines = [_where_it_broke(comparison)]
    else:
        lines = [
            _learning_rate(comparison),
            _labels(comparison),
            _unreached(comparison),
            _unmoved(comparison),
            _regime(comparison),
            _task(comparison),
        ]
    return [line for line in lines if line]


def _where_it_broke(comparison: Comparison) -> str:
    """How to get a network back that is dead or has collapsed."""
    a = comparison.a
    dead = comparison.verdict.state == "dead"
    if a.trace == 0 and comparison.b.trace == 0:
        return (
            "Look for what cuts the parameters off the outputs, at A already: a stop_gradient, "
            "parameters that f does not use, or units that are off for all examples."
        )
    if a.condition.dead:
        return "Initialise anew: the network is dead at A already."
    if a.margin is not None and a.margin > OVER:
        return (
            f"Train again from A with {_below_critical(a)}, or warm up to it: yours was "
            f"{number(a.margin, 2)} times the critical one."
        )
    if a.condition.equal:
        return (
            "The outputs are equal over examples at A, too: compare with a later checkpoint, or "
            "look for what holds the last layer at zero."
        )
    happened = "died" if dead else "collapsed"
    line = f"Compare A with checkpoints between A and B to find where the network {happened}"
    if dead:
        return f"{line}, and train on from before: gradient steps from B do not bring it back."
    return f"{line}."


def _learning_rate(comparison: Comparison) -> str:
    """Lower it, warm up to it, or raise it, where the margins say so."""
    a = comparison.a
    b = comparison.b
    if a.margin is None or b.margin is None:
        return ""
    # A margin may be NaN, and is then neither above nor below anything.
    lowest = math.nan if b.margin_interval is None else b.margin_interval[0]
    if b.margin > OVER and lowest <= 1:
        return watch_the_loss(lowest)
    if b.margin > OVER:
        return f"Lower the learning rate, or warm up to it: at B, {_below_critical(b)} is stable."
    if a.margin > OVER:
        return f"Warm up the learning rate: at A, {_below_critical(a)} is stable."
    # Slack is worth something only to a network that hardly got anywhere.
    slow = _how_it_is_slow(comparison)
    if slow and a.margin < SLACK and b.margin < SLACK:
        up_to = number(EDGE * min(a.critical_learning_rate, b.critical_learning_rate), 2)
        if comparison.facts["optimizer"] is not None:  # its rate may differ between the sides
            up_to = f"{number(EDGE / max(a.margin, b.margin), 2)} times as much"
        return (
            f"Raise the learning rate: {slow}, and up to {up_to} neither A nor B is at the edge of "
            "stability."
        )
    return ""


def _how_it_is_slow(comparison: Comparison) -> str:
    """By what one sees that training hardly got anywhere; nothing where it did."""
    if comparison.verdict.regime == "unchanged":
        return "the parameters changed no output"
    if comparison.b.is_at_constant_loss:
        return "the loss is still that of constant outputs"
    if comparison.verdict.regime == "lazy":
        return "the network did not leave the linear regime"
    return ""


def _below_critical(side: Measured) -> str:
    """A learning rate below the critical one of a side."""
    if side.critical_learning_rate is None or math.isnan(side.critical_learning_rate):
        return f"a learning rate below {number(1.0 / side.margin, 2)} times yours"
    return f"a learning rate below {number(side.critical_learning_rate, 2)}"


def _labels(comparison: Comparison) -> str:
    """Where nothing about the labels was learned."""
    b = comparison.b
    if only_fixed_arrays_moved(comparison):
        return ""  # no labels were learned from
    if b.is_at_constant_loss and b.alignment is not None and b.alignment.deviations < LUCK:
        return (
            "Check that examples and labels belong together: the loss at B is that of constant "
            "outputs, and the alignment is at chance."
        )
    return ""


def _unreached(comparison: Comparison) -> str:
    """Parameters that gradients reached at A, and no more at B."""
    at_a = set(unreached_leaves(comparison.a))
    lost = [path for path in unreached_leaves(comparison.b) if path not in at_a]
    if not lost:
        return ""
    return (
        f"Look for units that are off for all examples, or saturated, behind {some_of(lost)}: no "
        "gradient reaches it at B, and at A one did."
    )


def _unmoved(comparison: Comparison) -> str:
    """Parameters that stayed where they were."""
    unmoved = unmoved_leaves(comparison)
    if not unmoved:
        return ""
    return (
        f"If {some_of(unmoved)} should be trained, look at the optimizer's masks: gradients reach "
        "it, and it did not move."
    )


def _regime(comparison: Comparison) -> str:
    """What the regime leaves to find out."""
    regime = comparison.verdict.regime
    if regime == "unchanged":
        if only_fixed_arrays_moved(comparison):
            return (
                "Look for where the fixed arrays come from, such as the batches of the running "
                "statistics: nothing else differs."
            )
        return "Compare checkpoints that lie further apart: the parameters changed no output."
    if regime == "lazy":
        return (
            "Train the linearized model, too (ntkdiag.baselines.linear_baseline): if it does as "
            "well, the kernel at A is all there is to this run."
        )
    if regime == "nonlinear":
        return (
            "Compare B with a later checkpoint: if that pair is lazy, the model linearized at B "
            "explains the rest of training."
        )
    return ""


def _task(comparison: Comparison) -> str:
    """Where the kernel lost the labels."""
    if comparison.verdict.task != "fell":
        return ""
    return (
        "Compare A with checkpoints between A and B to find where the alignment fell; "
        "ntkdiag.watch records it at every step."
    )
