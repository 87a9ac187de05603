"""Which runs belong together: those that are the same but for a seed.

1. What was passed becomes a list of runs, each with a name and the label of its group: the label of
   a dictionary, an entry of the records with `by`, or else its own name.
2. The records of all runs are laid side by side. What numbers mean and which examples they are of
   has to be the same; within a group everything but the seed has to.
"""

import dataclasses
import glob
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from ntkdiag import errors
from ntkdiag.comparison.member_run import MemberRun, RunLike, read_member
from ntkdiag.comparison.tracked import Track
from ntkdiag.display import shortened
from ntkdiag.path_argument import as_path
from ntkdiag.runs.run_reader import RunReader

RunsLike: TypeAlias = (
    str | os.PathLike[str] | Sequence[RunLike] | Mapping[str, RunLike | Sequence[RunLike]]
)

# Entries of a record that decide what the numbers are and which examples they are of.
MEANING = (
    "source",
    "reduction",
    "loss",
    "denominator",
    "outputs",
    "n_outputs",
    "probes",
    "probe",
    "alignment_probe",
    "alignment_reduction",
)
# Entries in which runs of one group may differ: they say nothing of how a network was trained.
_OF_NO_SETTING = ("versions", "seed", "schedule", "notes", "format")
_MOST_DIFFERENCES = 3  # named in a message
# A value that is written as it is made, and one of its arguments.
_CALL = re.compile(r"\w+\(.*\)")
_ARGUMENT = re.compile(r"(\w+)=([^,()]+)")
_ONE_RUN = (str, os.PathLike, RunReader, Track)


def read_groups(runs: RunsLike, by: str | None, stream: str) -> list[MemberRun]:
    """Read all runs, each with its name and the label of its group."""
    for argument, text in (("by", by), ("stream", stream)):
        if text is not None and not isinstance(text, str):
            raise errors.InvalidInputError(
                argument=f"{argument}=...",
                expected=f"{argument}= as text",
                got=shortened(text),
                do='Write stream="watch", or by="descent".',
            )
    listed = list(_listed(runs))
    if not listed:
        raise _no_runs(runs)
    if by is not None and any(group != name for name, group, _ in listed):
        raise errors.InvalidInputError(
            argument="by=...",
            expected="groups by their label, or by an entry of the records",
            got=f"a dictionary of groups, and by={by!r}",
            do="Leave one of them out.",
        )
    members = [read_member(run, name, group, stream) for name, group, run in listed]
    return members if by is None else _grouped_by(members, by)


def require_comparable(members: Sequence[MemberRun], may_differ: Sequence[str]) -> None:
    """Refuse runs whose numbers are of different things, and groups that are not of one setting."""
    if isinstance(may_differ, str) or not isinstance(may_differ, Sequence):
        raise errors.InvalidInputError(
            argument="may_differ=...",
            expected="a list of entries of the records",
            got=shortened(may_differ),
            do='Write may_differ=["probes"].',
        )
    first = members[0]
    entries = [name for name in MEANING if name not in may_differ]
    for member in members[1:]:
        differences = _differences(first, member, entries)
        if differences:
            raise errors.InvalidInputError(
                expected="runs with numbers of one meaning, on the same examples",
                got="; ".join(differences[:_MOST_DIFFERENCES]),
                do="Measure them alike, or name what may differ: "
                f"may_differ=[{_entry_of(differences[0])!r}].",
            )
    first_of = {}
    for member in members:
        first = first_of.setdefault(member.group, member)
        names = {*first.record, *member.record} - {*_OF_NO_SETTING, *may_differ}
        differences = _differences(first, member, sorted(names))
        if differences:
            raise errors.InvalidInputError(
                expected=f"runs that differ in their seed alone as the group {member.group!r}",
                got="; ".join(differences[:_MOST_DIFFERENCES]),
                do="Make them groups of their own, or name what may differ: "
                f"may_differ=[{_entry_of(differences[0])!r}].",
            )


def varying_settings(members: Sequence[MemberRun]) -> dict[str, dict[str, str]]:
    """Name of a run -> dotted path and text of the settings that are not the same in all runs."""
    entries = []
    for member in members:
        of_member = {}
        for path, text in _entries(member.record):
            entry = path.partition(".")[0]
            if entry == "seed" or entry not in _OF_NO_SETTING:
                of_member[path] = text
        entries.append(of_member)
    paths = _varying(entries)
    settings = {}
    for member, of_member in zip(members, entries, strict=True):
        settings[member.name] = {path: of_member.get(path, "nothing") for path in paths}
    return settings


def _listed(runs: RunsLike) -> Iterator[tuple[str, str, RunLike]]:
    """Name, label and run of everything that was passed."""
    if isinstance(runs, Mapping):
        for label, several in runs.items():
            if isinstance(several, _ONE_RUN):
                yield label, label, several
                continue
            for name, run in _named(several):
                yield f"{label}: {name}", label, run
        return
    if isinstance(runs, str | os.PathLike):
        runs = _folders(runs)
    for name, run in _named(runs):
        yield name, name, run


def _named(runs: Sequence[RunLike]) -> list[tuple[str, RunLike]]:
    """Each run with the name of its folder, or its whole path where folders share a name."""
    if not isinstance(runs, Sequence):
        raise _no_run(runs)
    for run in runs:
        if not isinstance(run, _ONE_RUN):
            raise _no_run(run)
    names = [_folder_name(run) or f"run {place}" for place, run in enumerate(runs)]
    if len(set(names)) < len(names):
        names = [_whole_path(run) or f"run {place}" for place, run in enumerate(runs)]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise errors.InvalidInputError(
            expected="each run once", got=f"{twice!r} twice", do="Leave one of them out."
        )
    return list(zip(names, runs, strict=True))


def _whole_path(run: RunLike) -> str:
    """The path of a run; empty for one in memory."""
    if isinstance(run, Track):
        return ""
    return os.fspath(run.root if isinstance(run, RunReader) else run)


def _folder_name(run: RunLike) -> str:
    """The last part of the path of a run; empty for one in memory."""
    path = _whole_path(run)
    return as_path(path).name if path else ""


def _folders(path: str | os.PathLike[str]) -> list[str]:
    """The run directories that fit a pattern, or lie in a folder, or are the folder itself."""
    root = os.fspath(as_path(path))
    if _is_run(root):
        return [root]
    pattern = os.path.join(glob.escape(root), "*") if os.path.isdir(root) else root
    return [folder for folder in sorted(glob.glob(pattern)) if _is_run(folder)]


def _is_run(folder: str) -> bool:
    return any(pathlib.Path(folder).glob("*.jsonl"))


def _no_run(run: object) -> errors.InvalidInputError:
    """The error for something else than a run, or several."""
    return errors.InvalidInputError(
        expected="run directories as paths or as ntkdiag.Run, or results of track",
        got=f"a {type(run).__name__}",
        do='Write open_runs(["a", "b"]).',
    )


def _no_runs(runs: RunsLike) -> errors.NtkdiagError:
    """What is wrong with a list, a pattern or a folder without a run."""
    if isinstance(runs, str | os.PathLike):
        return errors.CheckpointError(
            expected=f"run directories at {os.fspath(runs)!r}",
            got="no folder with a .jsonl file",
            do="Pass the folder that holds the runs, or a pattern such as 'runs/lr_*'.",
        )
    return errors.InvalidInputError(
        expected="at least one run", got="none", do='Write open_runs(["a", "b"]).'
    )


def _grouped_by(members: Sequence[MemberRun], by: str) -> list[MemberRun]:
    """The runs grouped by an entry of their records, such as "descent" or "model.mode"."""
    entries = [dict(_entries(member.record)) for member in members]
    texts = []
    for member, of_member in zip(members, entries, strict=True):
        inside = {path: text for path, text in of_member.items() if _is_inside(path, by)}
        if not inside:
            different = _varying(entries)[:_MOST_DIFFERENCES] or ["nothing"]
            raise errors.InvalidInputError(
                argument="by=...",
                expected=f"an entry of the records; they differ in {', '.join(different)}",
                got=f"{by!r}, which {member.name} does not have",
                do='Pass a dictionary of groups: {"lr 0.1": ["a0", "a1"], ...}.',
            )
        texts.append(inside)
    labels = _labels(texts)
    return [
        dataclasses.replace(member, group=label)
        for member, label in zip(members, labels, strict=True)
    ]


def _labels(texts: Sequence[Mapping[str, str]]) -> list[str]:
    """A label for each record, the same where the entries are.

    Of a dictionary, such as the parameters, one entry that tells them apart is enough.
    """
    n_groups = len({tuple(sorted(of_one.items())) for of_one in texts})
    paths = _varying(texts) or list(texts[0])[:1]
    for path in paths:
        name = path.rpartition(".")[2]
        labels = [f"{name}={of_one.get(path, 'nothing')}" for of_one in texts]
        if len(set(labels)) == n_groups:
            return labels
    return [", ".join(f"{path}={of_one.get(path)}" for path in paths) for of_one in texts]


def _varying(entries: Sequence[Mapping[str, str]]) -> list[str]:
    """The paths whose text is not the same in all records."""
    paths = dict.fromkeys(path for of_one in entries for path in of_one)
    return [path for path in paths if len({of_one.get(path) for of_one in entries}) > 1]


def _differences(a: MemberRun, b: MemberRun, names: Sequence[str]) -> list[str]:
    """In which entries two records differ, in words."""
    of_a = dict(_entries({name: a.record.get(name) for name in names}))
    of_b = dict(_entries({name: b.record.get(name) for name in names}))
    differences = []
    for path in _varying([of_a, of_b]):
        in_a = _cut(of_a.get(path, "nothing"))
        in_b = _cut(of_b.get(path, "nothing"))
        differences.append(f"{path}={in_a} of {a.name} and {in_b} of {b.name}")
    return differences


def _entry_of(difference: str) -> str:
    """The entry of the record that a difference is in."""
    return difference.partition("=")[0].partition(".")[0]


def _is_inside(path: str, by: str) -> bool:
    return path == by or path.startswith(f"{by}.")


def _entries(record: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted path and text of everything in a record, inside its dictionaries and lists, too."""
    if isinstance(record, str) and _CALL.fullmatch(record):
        record = dict(_ARGUMENT.findall(record)) or record  # such as "Descent(learning_rate=0.1)"
    if isinstance(record, list | tuple):
        record = {str(place): item for place, item in enumerate(record)}
    if isinstance(record, Mapping) and record:
        for key, value in record.items():
            yield from _entries(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, record if isinstance(record, str) else json.dumps(record)


def _cut(text: str) -> str:
    """A long value, such as a hash, by its beginning."""
    return text if len(text) <= 40 else f"{text[:16]}..."
