"""Look at a model the way the kernels will, before paying for one."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ntkdiag import errors
from ntkdiag.adapters import functionalize
from ntkdiag.checking import behaviour, brute, numbers
from ntkdiag.checking.result import Finding, Leaf, SelfCheck
from ntkdiag.kernels.interaction import roundoff_of

EXAMPLES = 4


def selfcheck(
    model: Any,
    *arguments: Any,
    examples: Literal["independent", "joint"] = "independent",
    keywords: Mapping[str, Any] | None = None,
    **options: Any,
) -> SelfCheck:
    """Say what is differentiated, what is held fixed, and whether the numbers can be trusted.

    On the first examples of a batch: does the model run, is it deterministic, do examples interact (one is changed and
    the outputs of the others are watched), does every input reach the outputs, which parameters have no gradient,
    which dtypes are there, and is the kernel of two examples the one that plain `jax.vjp` gives, in float64 or, where
    the model is another one there, without compilation. What is wrong is said in the result, not raised.

    Cost: a few forward passes of four examples, compiled and not, four backward passes of two: seconds, most of which
    are compilation.

    Args:
        model: As for `functionalize`, or its result.
        *arguments: The batch `x`, arrays with the example axis first; before it, for models that do not carry their
            parameters, the variables: `selfcheck(model, x)`, `selfcheck(module, variables, x)`,
            `selfcheck(f, params, x)`.
        examples: ``"joint"`` where examples are meant to interact, as for `ntk`.
        keywords: Keyword arguments of `f(params, x, **keywords)`.
        **options: For `functionalize`: `mode`, `trainable`, `output`, ...

    Returns:
        A `SelfCheck`: print it for a table, ask `.ok` whether nothing is wrong.

    Raises:
        InvalidInputError: If there is no `x`, or `functionalize` refuses an argument.

    Example:
        >>> import jax.numpy as jnp, ntkdiag
        >>> x = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 7.0]])
        >>> check = ntkdiag.selfcheck(lambda w, x: (x - x.mean(axis=0)) @ w, jnp.ones((2, 3)), x)
        >>> check.ok, check["examples"].status
        (False, 'wrong')
    """
    begun = time.perf_counter()
    _require_batch(arguments)
    fn = functionalize(model, *arguments[:-1], **options)
    x = jax.tree.map(lambda leaf: jnp.asarray(leaf[:EXAMPLES]), arguments[-1])
    given = dict(keywords or {})

    def f(params: Any, x: Any) -> Any:
        return fn(params, x, **given)

    findings = [_mode(fn.mode, examples)]
    try:
        for finding in _answers(f, fn, x, given, examples == "joint"):
            findings.append(finding)
    except Exception as error:  # whatever the model raises is what the check is for
        runs = any(finding.question == "runs" for finding in findings)
        refused = Finding("the rest", "not checked", f"the model refuses other numbers than these: {_said(error)}")
        findings.append(refused if runs else Finding("runs", "wrong", _said(error)))
    return SelfCheck(
        model=f"{fn.library} {fn.name}".strip(),
        mode=fn.mode,
        trainable=Leaf.of(fn.params),
        fixed=Leaf.of(fn.fixed),
        findings=tuple(findings),
        seconds=time.perf_counter() - begun,
    )


def _answers(f: Callable[..., Any], fn: Any, x: Any, keywords: dict[str, Any], joint: bool) -> Iterator[Finding]:
    y = f(fn.params, x)
    yield (runs := numbers.runs(y, x))
    if runs.status == "wrong":
        return
    compiled, unit = jax.jit(f), roundoff_of(f, fn.params, x)
    yield (deterministic := behaviour.deterministic(f, compiled, fn.params, x, y, unit))
    if deterministic.status != "ok":
        yield Finding("the rest", "not checked", "it means something for a deterministic function only")
        return
    yield (interaction := behaviour.interaction(compiled, fn.params, x, joint, unit))
    yield behaviour.inputs(compiled, fn.params, x)
    yield numbers.dtypes(fn.params, x, y, unit)
    two = jax.tree.map(lambda leaf: leaf[:2], x)
    rows = brute.wide_rows(f, fn.params, two, unit) or brute.plain_rows(f, fn.params, two)
    yield numbers.gradients(rows.rows, fn.params)
    if interaction.status == "wrong":
        yield Finding("engine", "not checked", "the kernel is not defined as long as the above is wrong")
    else:
        yield brute.compared(f, fn, two, rows, keywords, joint)


def _mode(mode: str, examples: str) -> Finding:
    if mode == "unspecified":
        return Finding("mode", "note", "a plain function: whether it trains or evaluates is its own affair")
    said = {
        "eval": "dropout off, running statistics",
        "dropout": "dropout on with one mask for all examples, running statistics",
        "train": "dropout on with a mask for each example, statistics of the batch",
        "train, fixed statistics": "dropout on with one mask for all examples, statistics of a batch held fixed",
    }
    return Finding("mode", "ok", f"{mode}: {said.get(mode, 'as its adapter has it')}; examples {examples}")


def _said(error: BaseException) -> str:
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith("ntkdiag:")]
    return "\n".join([f"{type(error).__name__}: {error}", *notes])


def _require_batch(arguments: tuple[Any, ...]) -> None:
    leaves = jax.tree.leaves(arguments[-1]) if arguments else []
    lengths = {np.shape(leaf)[0] if np.ndim(leaf) else None for leaf in leaves}
    if 1 <= len(arguments) <= 2 and len(lengths) == 1 and lengths.pop():
        return
    shapes = ", ".join(str(np.shape(leaf)) for leaf in leaves) or "no arrays"
    got = f"{len(arguments)} arguments after the model, the last with {shapes}" if arguments else "the model alone"
    raise errors.InvalidInputError(
        errors.message(
            "selfcheck(model, ..., x)",
            expected="the batch as last argument, arrays whose first axis is the examples",
            got=got,
            do="Pass selfcheck(model, x), or selfcheck(module, variables, x), or selfcheck(f, params, x).",
        )
    )
