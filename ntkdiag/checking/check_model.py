"""Check a model before computing a kernel.

The questions are asked in the order in which their answers mean something: a model that does not
run has no other answers, one that draws random numbers by itself is not a function, and if examples
interact unexpectedly the kernel is undefined. An exception of the model becomes an answer, too.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import jax
import numpy as np
from jaxtyping import PyTree

from ntkdiag import errors
from ntkdiag.arrays import as_examples
from ntkdiag.call_f import outputs_of
from ntkdiag.checking import behaviour, outputs_and_gradients, plain_jacobian
from ntkdiag.checking.behaviour import Subject
from ntkdiag.checking.result import Check, SelfCheck, describe_leaves
from ntkdiag.jaxtools.arguments import check_no_nan
from ntkdiag.jaxtools.cpu import compiler_options
from ntkdiag.jaxtools.precision import in_full_precision, roundoff_of_program
from ntkdiag.models import functionalize
from ntkdiag.models.functional import Functional

EXAMPLES = 4


@errors.public
def selfcheck(
    model: object,
    *arguments: PyTree,
    examples: Literal["independent", "joint"] = "independent",
    call_kwargs: Mapping[str, PyTree] | None = None,
    **options: Any,
) -> SelfCheck:
    """Say what is differentiated, what is held fixed, and whether the numbers can be trusted.

    On the first examples of a batch: does the model run, is it deterministic, do examples interact
    (as `ntk` determines before it relies on the answer), does every input reach the outputs, which
    parameters have no gradient, and is the kernel of two examples the one that plain `jax.vjp`
    gives. On all examples: are outputs and gradients finite. Problems are in the result, not
    raised.

    Cost: a few forward passes of four examples, four backward passes of two, and a forward and a
    backward pass of all: seconds, most of which go into compiling the model six times (forward for
    four examples and for one, its two passes, the engine's, and that of all examples).

    Args:
        model: As for `functionalize`, or its result.
        *arguments: The batch `x`, arrays with the example axis first; before it, for models that
            do not carry their parameters, the variables: `selfcheck(model, x)`,
            `selfcheck(module, variables, x)`, `selfcheck(f, params, x)`.
        examples: ``"joint"`` where examples are meant to interact, as for `ntk`.
        call_kwargs: Keyword arguments of `f(params, x, **call_kwargs)`.
        **options: For `functionalize`: `mode`, `trainable`, `output`, ...

    Returns:
        A `SelfCheck`: print it for a table, ask `.ok` whether nothing is wrong.

    Raises:
        InvalidInputError: If there is no `x`, it holds NaN, or `functionalize` refuses an argument.

    Example:
        >>> import jax.numpy as jnp, ntkdiag
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]])
        >>> check = ntkdiag.selfcheck(lambda w, x: (x - x.mean(axis=0)) @ w, jnp.ones((2, 3)), x)
        >>> check.ok, check["examples"].status
        (False, 'wrong')
    """
    begun = time.perf_counter()
    if arguments:
        arguments = (*arguments[:-1], as_examples(arguments[-1]))
    _require_batch(arguments)
    *variables, batch = arguments
    functional = functionalize(model, *variables, **options)
    x = jax.tree.map(lambda leaf: leaf[:EXAMPLES], batch)
    check_no_nan(batch, "x")

    findings: list[Check] = []
    try:
        # One by one: those from before an exception are kept.
        keywords = dict(call_kwargs or {})
        for finding in _answers(functional, x, batch, keywords, examples == "joint"):
            findings.append(finding)
    except Exception as error:  # any exception of the model is a result of the check
        if any(finding.question == "runs" for finding in findings):
            text = f"the model raised an error for other inputs or parameters: {error}"
            findings.append(Check("the rest", "not checked", text))
        else:
            findings.append(Check("runs", "wrong", str(error)))
    return SelfCheck(
        model=f"{functional.library} {functional.name}".strip(),
        mode=functional.mode,
        trainable=describe_leaves(functional.params),
        fixed=describe_leaves(functional.fixed),
        findings=tuple(findings),
        seconds=time.perf_counter() - begun,
    )


def _answers(
    functional: Functional,
    x: PyTree,
    batch: PyTree,
    call_kwargs: Mapping[str, PyTree],
    joint: bool,
) -> Iterator[Check]:
    """Ask one question after the other, as long as the answers mean something."""

    @in_full_precision
    def f(params: PyTree, x: PyTree) -> PyTree:
        return outputs_of(functional, params, x, dict(call_kwargs))

    # Whole programs are compiled at the lowest optimization level: single operations would be
    # hundreds of programs.
    compiled = jax.jit(f, compiler_options=compiler_options(reduces=False, once=True))
    program = compiled.trace(functional.params, x).jaxpr
    outputs = compiled(functional.params, x)
    runs = outputs_and_gradients.runs(outputs, x)
    yield runs
    if runs.status == "wrong":
        return
    statistics = outputs_and_gradients.statistics(functional)
    if statistics is not None:
        yield statistics
    subject = Subject(
        functional=functional,
        joint=joint,
        f=f,
        compiled=compiled,
        program=program,
        x=x,
        outputs=outputs,
        roundoff=roundoff_of_program(program),
    )

    deterministic = behaviour.deterministic(subject)
    yield deterministic
    if deterministic.status != "ok":
        text = "it is meaningful only for a deterministic function"
        yield Check("the rest", "not checked", text)
        return
    interaction = behaviour.interaction(subject)
    yield interaction
    # These do not depend on the examples.
    yield behaviour.inputs(subject)

    # The rows of the Jacobian answer both of the last questions.
    interact = joint or interaction.status == "wrong"
    pair = subject.first(2, interact=interact)
    rows = plain_jacobian.jacobian_rows(pair)
    gradients = outputs_and_gradients.gradients(rows.rows, subject.params)
    not_finite = outputs_and_gradients.not_finite_at(f, subject.params, batch, interact=interact)
    yield outputs_and_gradients.at_all_examples(gradients, not_finite, batch)
    if interaction.status == "wrong":
        text = "the kernel is undefined until the answers above are right"
        yield Check("engine", "not checked", text)
    else:
        yield plain_jacobian.compare_with_engine(pair, rows)


def _require_batch(arguments: tuple[PyTree, ...]) -> None:
    """Refuse a last argument that is no batch, and more than variables before it."""
    leaves = jax.tree.leaves(arguments[-1]) if arguments else []
    shapes = [np.shape(leaf) for leaf in leaves]
    lengths = {shape[:1] for shape in shapes}
    # One first axis for all: () would be a number, which has none, (0,) a batch without examples.
    one_length = len(lengths) == 1 and lengths.isdisjoint({(), (0,)})
    if one_length and len(arguments) <= 2:
        return
    got = "the model alone"
    if arguments:
        written = ", ".join(map(str, shapes)) or "no arrays"
        got = f"{len(arguments)} arguments after the model, the last with {written}"
    raise errors.InvalidInputError(
        expected="the batch as last argument, arrays whose first axis is the examples",
        got=got,
        do="Pass selfcheck(model, x), or selfcheck(module, variables, x), or selfcheck(f, params, "
        "x).",
    )
