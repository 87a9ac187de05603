"""Every exception ntkdiag raises, and the one shape their messages have."""


class NtkdiagError(Exception):
    """Base class: catch this to catch everything ntkdiag raises on purpose."""


class InvalidInputError(NtkdiagError, ValueError):
    """An argument has the wrong shape, dtype, range or content."""


class StructureError(NtkdiagError, ValueError):
    """Two parameter trees, or a tree and a model, do not have the same structure, shapes or dtypes."""


class UnsupportedModelError(NtkdiagError, TypeError):
    """No adapter knows this object, or the model cannot be differentiated as asked."""


class ExamplesInteractError(NtkdiagError, ValueError):
    """The output for one example depends on the other examples of the batch."""


class CheckpointError(NtkdiagError, ValueError):
    """A checkpoint is missing, unfinished, corrupt, or not of a known format."""


class MemoryBudgetError(NtkdiagError, ValueError):
    """The work cannot be done within the memory budget, however it is split."""


class MissingDependencyError(NtkdiagError, ImportError):
    """An optional library is needed for this call and is not installed."""


def message(call: str, *, expected: str, got: str, do: str) -> str:
    """Format an error message: the call, what was expected, what came, what to do."""
    return f"{call}: expected {expected}; got {got}. {do}"
