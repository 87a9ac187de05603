"""One vocabulary: one parameter name for one idea, one meaning for one name, and no word of former versions.

A parameter that is new stands in `MEANINGS` with its one meaning. Before you add one, look whether the idea has a name.
"""

import functools
import inspect
import pathlib
import re
import tokenize

import pytest
from public_names import documented, resolve

ROOT = pathlib.Path(__file__).parents[2]
# The names of this module are those of another library, whose calls it answers.
TRANSLATION = "ntkdiag.neural_tangents."
# Classes whose instances users make; those of all others are results.
MADE_BY_USERS = {
    "ntkdiag.CG",
    "ntkdiag.Descent",
    "ntkdiag.JsonLines",
    "ntkdiag.Kernel",
    "ntkdiag.Monitor",
    "ntkdiag.NTKOperator",
    "ntkdiag.kernel.Convention",
    "ntkdiag.kernel.RandomProjections",
    "ntkdiag.losses.CrossEntropy",
    "ntkdiag.losses.MSE",
    "ntkdiag.losses.SigmoidCrossEntropy",
    "ntkdiag.matrix_free.CG",
    "ntkdiag.matrix_free.LSMR",
    "ntkdiag.monitor.At",
    "ntkdiag.monitor.CriticalMultiple",
    "ntkdiag.monitor.DeadLayer",
    "ntkdiag.monitor.Every",
    "ntkdiag.monitor.ExactKernel",
    "ntkdiag.monitor.Findings",
    "ntkdiag.monitor.GradientNoise",
    "ntkdiag.monitor.InMemory",
    "ntkdiag.monitor.JaxMonitoring",
    "ntkdiag.monitor.LayerNorms",
    "ntkdiag.monitor.LogSpaced",
    "ntkdiag.monitor.MarginAbove",
    "ntkdiag.monitor.NaNNear",
    "ntkdiag.monitor.RankCollapse",
    "ntkdiag.monitor.RunLog",
    "ntkdiag.monitor.SampledTrace",
    "ntkdiag.monitor.SpectralPosition",
    "ntkdiag.monitor.StepError",
    "ntkdiag.monitor.StepErrorAbove",
    "ntkdiag.monitor.Terminal",
    "ntkdiag.monitor.TopCurvatures",
}

MEANINGS = {
    # Models and functions
    "model": "a model of some library, or a function f(params, x)",
    "variables": "what a model needs beside itself: its parameters and collections",
    "f": "a function f(params, x, **kwargs) of a batch",
    "f2": "the function of the columns, where it is another",
    "params": "the parameters of f, a pytree",
    "parameter_names": "what paths the names of arrays in a file have",
    "fixed": "arrays that f holds fixed, by path",
    "kwargs": "keyword arguments of f",
    "call_kwargs": "keyword arguments of f, where they cannot stand by themselves",
    "options": "keyword arguments of functionalize",
    "arguments": "positional arguments of functionalize, then the batch",
    "mode": "whether random layers and batch statistics are on: eval, dropout or train",
    "statistics": "examples that the statistics of normalisation layers are taken from",
    "method": "the name of the method of a model that maps a batch to outputs",
    "trainable": "which leaves are differentiated",
    "inputs": "which part of x the model gets",
    "output": "which part of what the model returns",
    "unpack": "whether x holds several positional arguments",
    "package": "the import name of a library",
    "adapter": "a function that turns a model of a library into a Functional",
    "labels": "a tree of names, one for each parameter, as Optax takes them",
    "chosen": "which of the labels are trained",
    "mask": "True where a token is real",
    "path": "a path: of a leaf, or of a file",
    # Examples, outputs and labels
    "x": "inputs, examples first; the rows of a kernel",
    "x2": "inputs of the columns; None for those of the rows",
    "x_test": "inputs that were not trained on",
    "y": "labels: class numbers or targets, one for each example",
    "y2": "labels of the columns",
    "ignore": "the class number of what has no label",
    "f0": "outputs at the start of training",
    "outputs": "values f(params, x) on a batch",
    "shape": "of the outputs on a batch",
    "curvature": "the largest eigenvalue of the Gauss-Newton matrix",
    "f0_test": "outputs at the start of training on test examples",
    "names": "what the two sides are called",
    "run": "all checkpoints of one training",
    "follow": "whether what is not there yet is waited for, or what says so",
    "last": "how many are taken, from the end",
    "out": "a folder that results are written into",
    "patience": "seconds that something new is waited for",
    "a": "the first of two of a kind",
    "b": "the second of two of a kind",
    # Kernels
    "backend": "what evaluates and differentiates the model",
    "kernel": "a kernel, or what stands for one: its spectrum, a matrix",
    "kernel_test": "the kernel of test examples by training examples",
    "array": "the entries of a kernel",
    "convention": "what a kernel is a kernel of",
    "symmetric": "whether rows and columns are the same examples",
    "standard_error": "the standard error of the entries",
    "leaves": "kernels of groups of parameters",
    "reduction": "what becomes of the output axes of a kernel",
    "examples": "whether examples are independent or interact",
    "preconditioner": "P in J P^-1 J^T",
    "gradient_kernel": "whether the kernel of single examples' losses is measured",
    "per_leaf": "which groups of parameters have a kernel of their own",
    "precision": "the precision of products",
    "n_outputs": "outputs of an example",
    "n": "how many examples",
    "unit_roundoff": "the rounding of the kernel's dtype",
    "model_roundoff": "the rounding of the model's coarsest dtype",
    "probe": "a digest of the examples",
    "dtype": "a dtype",
    "k": "how many of them",
    "n_train": "how many examples the whole training set has",
    "seed": "the seed of random numbers",
    "vectors": "whether eigenvectors are kept",
    "trace_probes": "random vectors that the trace is estimated from",
    "gamma": "the scale of the effective dimension",
    "centred": "whether constants are projected out",
    # How much at a time
    "memory": "bytes that a computation may hold at once",
    "spill": "a folder where factors wait that do not fit into the memory",
    "time_share": "the share of the time of training that measuring may take",
    "seconds": "how long something is waited for",
    "first_measurement": "the seconds that the first measurement of a monitor may take by plan",
    "model_state": "what moves beside the parameters in training, such as running statistics",
    "batch_size": "examples at a time",
    "batch": "examples that a gradient is a mean over",
    "batch_sizes": "examples of a small and of a large batch",
    "small": "squared norms of gradients of small batches",
    "large": "the same of large batches",
    "progress": "whether it is shown how far long work has come",
    "quantity": "which cost is drawn: flops or bytes",
    "check": "whether arguments are checked by computing",
    # Training
    "loss": "a loss: its name, an object or loss(outputs, y)",
    "denominator": "what the sum of the terms of a loss is divided by",
    "descent": "how one trains: a Descent, or its learning rate",
    "learning_rate": "the step of gradient descent",
    "momentum": "beta of momentum",
    "kind": "which momentum: heavy-ball, nesterov or ema",
    "weight_decay": "decoupled weight decay, as Optax has it",
    "optimizer": "an optax.GradientTransformation",
    "opt_state": "its state",
    "data": "(x, y, x_test, y_test)",
    "steps": "numbers of steps",
    "step": "a number of steps since the start",
    "time": "time of gradient flow",
    "checkpoint": "the step at which a run is linearized",
    "marks": "steps at which something is recorded",
    "kernel_examples": "how many examples enter a kernel, at most",
    "residual": "outputs minus labels",
    "fraction": "the part of a residual that is left",
    # Pulls on parameters, and solvers
    "ridge": "added to the eigenvalues of the kernel",
    "relative_ridge": "ridge in units of the mean eigenvalue",
    "trained_on": "whether the examples of a kernel were trained on",
    "toward": "what the ridge pulls to: start or zero",
    "solver": "how a system or an equation is solved",
    "tolerance": "the relative error that is accepted",
    "max_steps": "steps of a solver after which it gives up",
    "rank": "rank of a preconditioner",
    "space": "in which space a system is solved: function or parameters",
    "dt0": "the first step of an integrator",
    "operator": "an NTKOperator",
    "prior": "covariances of random initial outputs",
    "v": "a vector of the size of the outputs",
    "train": "what belongs to the training examples: (x, y), or values there",
    "held_out": "examples that are not trained on, with their labels: (x, y)",
    "old": "examples that were trained on before, with their labels: (x, y)",
    "new": "examples that will be trained on, with their labels: (x, y)",
    "test": "what belongs to the test examples: (x, y), or values there",
    "count": "how many are named",
    "left_out": "numbers of training examples that are left out, one at a time",
    "test_train": "a kernel between test and training examples",
    # Linearization
    "degree": "the degree of a Taylor expansion",
    "coordinates": "whether the linear model has parameters or displacements",
    "at": "where a model is linearized, or which tree of a checkpoint is read",
    "start": "where training begins",
    "second_order": "whether second derivatives are computed too",
    # Monitoring
    "everything": "whether all tables and notes are shown, instead of the first screen",
    "explain": "whether what the numbers mean is shown where there is no room beside them",
    "width": "of a printed text, in columns",
    "every": "when a monitor measures: a schedule, or each so many steps",
    "top_k": "how many eigenvalues are recorded",
    "instruments": "what a monitor measures: tiers, names or instruments",
    "findings": "what is looked for while a run trains, and who is told",
    "gradient": "what an optimizer made its update of",
    "updates": "what an optimizer adds to the parameters",
    "batch_indices": "numbers of the examples of the batch of a step",
    "kept": "vectors that are kept from one measurement to the next",
    "rounds": "passes of an iteration in one measurement, at least",
    "most_rounds": "passes of an iteration in one measurement, at most",
    "cold_rounds": "passes where nothing is kept",
    "restart_every": "measurements from one random start to the next",
    "restart_rounds": "passes after a random start",
    "memory_limit": "bytes that are kept from one measurement to the next",
    "context": "one step of training, as instruments see it",
    "layout": "shapes of the outputs on the examples that are measured",
    "writers": "where measurements go",
    "name": "a name: of a monitor, or of a quantity",
    "key": "the name of an array that a run has at every step",
    "prefix": "what stands before every name",
    "text": "what a user is told",
    "run_id": "what a tracker calls a run by",
    "scalars": "finite numbers of a step by their names",
    "record": "what stays the same in a run",
    "values": "what was measured at a step",
    "base": "the ratio of one measured step to the one before",
    "per_decade": "measurements for each factor of ten",
    "digits": "digits that are printed",
    "console": "a rich.Console",
    "history": "the measurements of a run, or how many of them are kept",
    "rules": "what is looked for in the measurements of a run",
    "finding": "a judgement on the numbers of a run",
    "on_finding": "functions that are called with a finding",
    "folder": "where files are written, each with a name of its own",
    "threshold": "what a measured number is compared with",
    "times": "measurements in a row",
    "rises": "measurements in a row of which each is above the one before",
    "calm": "share of the threshold below which a rise begins",
    "far": "multiple of the threshold that is far above it",
    "share": "the smallest share of the whole that is in order",
    "factor": "how many times another number of the same run",
    "ax": "axes of matplotlib",
    "runs": "several runs, which are laid beside each other",
    "by": "an entry of the records whose value makes the groups",
    "stream": "a stream of a run directory, where several runs are read",
    "overwrite": "whether what a former call wrote is replaced",
    "may_differ": "entries of the records that need not be the same",
}

# Word of a former version -> what it is called now. In signatures, pages, examples and messages.
OLD_PARAMETERS = {
    "x1": "x",
    "loss_denominator": "Loss(denominator=...)",
    "momentum_kind": "Descent(kind=...)",
    "nesterov": 'Descent(kind="nesterov")',
    "microbatch": "batch_size",
    "budget": "memory or time_share",
    "kernel0": "a",
    "kernel1": "b",
    "params_a": "a",
    "params_b": "b",
    "keywords": "call_kwargs",
    "check_finite": "check",
    "damping": "ridge",
    "origin": 'toward="zero"',
    "method_of_solution": "solver",
}
OLD_WORDS = {
    r"ntkdiag\.compat|ntkdiag/compat|import compat\b": "ntkdiag.neural_tangents",
    r"ntkdiag\.adapters|ntkdiag/adapters": "ntkdiag.models",
    r"ntkdiag\.kernels|ntkdiag/kernels": "ntkdiag.kernel and ntkdiag.engine",
    r"ntkdiag\.tangents|ntkdiag/tangents|engine\.tangents": "ntkdiag.engine.jacobian",
    r"ntkdiag[./]_compat": "ntkdiag._jax",
    r"\bcheck_finite\b": "check",
    r"\bmomentum_kind\b": "Descent(kind=...)",
    r"\bloss_denominator\b": "Loss(denominator=...)",
    r"`nesterov=`": 'Descent(kind="nesterov")',
    r"\bmicrobatch(_size)?=": "batch_size=",
    r"\bbudget=": "memory= or time_share=",
    r"\bkernel[01]=|`kernel[01]`": "a, b",
    r"\bparams_[ab]=|`params_[ab]`": "a, b",
}
# Names that could be read in two ways: what the description of each of them has to speak of.
UNITS = {
    "batch_size": "example",
    "f0": "output|f_0|before training",
    "memory": "byte|memory|budget",
    "reduction": "output|reduction|trace",
    "ridge": r"eigenvalue|kernel|K \+|ridge|\|\||penalt",
    "time_share": "share|training",
    "top_k": "eigenvalue",
}


def public_callables():
    """(name, function) of functions, methods, and classes whose instances users make."""
    for name in documented():
        value = resolve(name)
        if inspect.isfunction(value):
            yield name, value
        if not inspect.isclass(value):
            continue
        if name in MADE_BY_USERS:
            yield name, value
        if issubclass(value, BaseException):
            continue
        for attribute, member in vars(value).items():
            if inspect.isfunction(member) and (attribute == "__call__" or attribute[0] != "_"):
                yield f"{name}.{attribute}", member


def parameters():
    """Name of a parameter -> the public functions that have it."""
    found = {}
    for name, function in public_callables():
        if not name.startswith(TRANSLATION):
            for parameter in inspect.signature(function).parameters:
                if parameter != "self":
                    found.setdefault(parameter, []).append(name)
    return found


def test_every_parameter_has_its_one_meaning():
    unknown = {name: functions for name, functions in parameters().items() if name not in MEANINGS}
    assert not unknown, (
        f"Parameters without a meaning: {unknown}. If the idea has a name in MEANINGS of {__file__}, "
        "use that; if it is a new idea, give its name and its one meaning there."
    )


def test_no_parameter_has_an_old_name():
    old = {
        name: (functions, f"is called {OLD_PARAMETERS[name]}")
        for name, functions in parameters().items()
        if name in OLD_PARAMETERS
    }
    assert not old


def test_no_meaning_is_given_twice():
    assert len(set(MEANINGS.values())) == len(MEANINGS)
    assert not MEANINGS.keys() & OLD_PARAMETERS.keys()


@pytest.mark.parametrize("name", UNITS)
def test_one_name_is_described_in_one_way(name):
    """In the units of its one meaning: where a description speaks of something else, the name has a second meaning."""
    strange = {}
    for function_name in parameters().get(name, ()):
        line = described(resolve(function_name).__doc__ or "", name)
        if line and not re.search(UNITS[name], line, flags=re.IGNORECASE):
            strange[function_name] = line
    assert not strange


def described(docstring, name):
    """What the section Args says about a parameter; nothing where it refers to another function."""
    entry = re.search(
        rf"^ +{name}: ((?:.|\n)*?)(?=^ +\w+: |^\s*$|\Z)", docstring, flags=re.MULTILINE
    )
    line = " ".join(entry[1].split()) if entry else ""
    return "" if line.startswith("As ") else line


def strings(path):
    """(line, text) of the strings of a Python file: docstrings and messages."""
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if tokenize.tok_name[token.type] in ("STRING", "FSTRING_MIDDLE"):
                for offset, line in enumerate(token.string.splitlines()):
                    yield token.start[0] + offset, line


@functools.cache
def texts():
    """(path, line number, line) of what people read: pages, examples, docstrings and messages."""
    return list(lines_of_texts())


def lines_of_texts():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    pages += [path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts]
    pages += [path for path in (ROOT / "integrations").rglob("*.md") if ".venv" not in path.parts]
    pages += list((ROOT / "examples").glob("*"))
    for path in pages:
        if path.suffix in (".md", ".py"):
            for number, line in enumerate(path.read_text().splitlines(), start=1):
                yield path, number, line
    for path in (ROOT / "ntkdiag").rglob("*.py"):
        if "neural_tangents" not in path.parts:
            for number, line in strings(path):
                yield path, number, line


@pytest.mark.parametrize("old", OLD_WORDS)
def test_pages_and_messages_do_not_speak_of_former_versions(old):
    word = re.compile(old)
    places = []
    for path, number, line in texts():
        name = path.relative_to(ROOT).as_posix()
        if word.search(line):
            places.append(f"{name}:{number} {line.strip()[:80]}")
    assert not places, f"{old} is now {OLD_WORDS[old]}:\n" + "\n".join(places)
