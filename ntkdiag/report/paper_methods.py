"""The methods of a paper: what was measured, in sentences, and the sources of the quantities.

The sentences of a comparison are those of its report. Those of a run are made here, of its record.
"""

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ntkdiag.report.methods_paragraph import methods
from ntkdiag.report.paper_latex import latex
from ntkdiag.report.reported import Comparison, Runs, Track


@dataclasses.dataclass(frozen=True)
class Source:
    """One work that is cited.

    Attributes:
        key: Of its entry.
        names: As it is named in a text.
        said: What is taken from it, a sentence that ends where the work is named.
        entry: The kind of its entry, and its fields.
        needed: The quantities that it is cited for; empty for what holds always.
    """

    key: str
    names: str
    said: str
    entry: tuple[str, Mapping[str, str]]
    needed: tuple[str, ...] = ()


SOURCES = (
    Source(
        "jacot2018neural",
        "Jacot et al., 2018",
        "The neural tangent kernel is that of",
        (
            "inproceedings",
            {
                "author": "Jacot, Arthur and Gabriel, Franck and Hongler, Cl{\\'e}ment",
                "title": "Neural Tangent Kernel: Convergence and Generalization in Neural Networks",
                "booktitle": "Advances in Neural Information Processing Systems",
                "volume": "31",
                "year": "2018",
            },
        ),
    ),
    Source(
        "fort2020deep",
        "Fort et al., 2020",
        "Kernel distances over training, and networks linearized on the way, follow",
        (
            "inproceedings",
            {
                "author": "Fort, Stanislav and Dziugaite, Gintare Karolina and Paul, Mansheej and "
                "Kharaghani, Sepideh and Roy, Daniel M. and Ganguli, Surya",
                "title": "Deep learning versus kernel learning: an empirical study of loss "
                "landscape geometry and the time evolution of the Neural Tangent Kernel",
                "booktitle": "Advances in Neural Information Processing Systems",
                "volume": "33",
                "year": "2020",
            },
        ),
        ("distance",),
    ),
    Source(
        "chizat2019lazy",
        "Chizat et al., 2019",
        "The error e₁ of a network linearized in its parameters, over the change of its outputs, "
        "tells lazy training in the sense of",
        (
            "inproceedings",
            {
                "author": "Chizat, L{\\'e}na{\\\"i}c and Oyallon, Edouard and Bach, Francis",
                "title": "On Lazy Training in Differentiable Programming",
                "booktitle": "Advances in Neural Information Processing Systems",
                "volume": "32",
                "year": "2019",
            },
        ),
        ("e1",),
    ),
    Source(
        "cohen2021gradient",
        "Cohen et al., 2021",
        "A margin of 1 is the edge of stability of",
        (
            "inproceedings",
            {
                "author": "Cohen, Jeremy M. and Kaur, Simran and Li, Yuanzhi and Kolter, J. Zico "
                "and Talwalkar, Ameet",
                "title": "Gradient Descent on Neural Networks Typically Occurs at the Edge of "
                "Stability",
                "booktitle": "International Conference on Learning Representations",
                "year": "2021",
            },
        ),
        ("margin",),
    ),
    Source(
        "cortes2012algorithms",
        "Cortes et al., 2012",
        "Alignment with the labels is centred kernel-target alignment,",
        (
            "article",
            {
                "author": "Cortes, Corinna and Mohri, Mehryar and Rostamizadeh, Afshin",
                "title": "Algorithms for Learning Kernels Based on Centered Alignment",
                "journal": "Journal of Machine Learning Research",
                "volume": "13",
                "pages": "795--828",
                "year": "2012",
            },
        ),
        ("alignment",),
    ),
    Source(
        "roy2007effective",
        "Roy and Vetterli, 2007",
        "The entropy rank is the effective rank of",
        (
            "inproceedings",
            {
                "author": "Roy, Olivier and Vetterli, Martin",
                "title": "The effective rank: A measure of effective dimensionality",
                "booktitle": "15th European Signal Processing Conference",
                "pages": "606--610",
                "year": "2007",
            },
        ),
        ("entropy_rank",),
    ),
)


def methods_of_comparison(comparison: Comparison) -> list[str]:
    """The paragraphs of its report."""
    return methods(comparison)


def methods_of_track(track: Track) -> list[str]:
    """What was measured at the checkpoints, and how."""
    record = track.record
    first = track.steps[0]
    model = record.get("model", {})
    n_parameters = sum(map(_size_of, record.get("parameters", {}).values()))
    outputs = record.get("outputs", [])
    sentences = [
        f"The empirical neural tangent kernel Θ = J Jᵀ of a {model.get('library', 'plain')} model "
        f"with {n_parameters:,} parameters, in {model.get('mode', 'unspecified')} mode, was "
        f"computed at {len(track.steps)} checkpoints from step {first} to step {track.steps[-1]} "
        f"({record.get('reduction')} kernel, {math.prod(outputs)} outputs of each example).",
        *(_probe(probe) for probe in record.get("probes", ())),
        "Eigenvalues below the noise floor, ε √n λ₁ with ε the unit roundoff of the kernel and n "
        "its size, or that of the model times λ₁ if larger, are unresolved and not shown.",
        f"Drift D is ‖Θ − Θ₀‖ / ‖Θ₀‖ with Θ₀ the kernel of step {first}, and S_c the distance, 1 − "
        "cosine, of kernels centred over examples. The network linearized at step i is f(θᵢ) + "
        "J(θᵢ)(θ − θᵢ), and e₁ its error over the change of the outputs.",
    ]
    if record.get("loss"):
        sentences.append(f"Loss: {record['loss']}.")
    if record.get("descent") and "margin" in track.names:
        sentences.append(
            f"The margin is the learning rate over the critical one of {record['descent']}, on the "
            "quadratic model of the loss of all examples of the probe; it does not hold for other "
            "update rules."
        )
    versions = record.get("versions", ())
    return [" ".join(sentences), f"Versions: {', '.join(versions)}."]


def methods_of_watched(record: Mapping[str, Any]) -> list[str]:
    """What a monitor measured while the network trained."""
    described = (
        f"While the network trained, its empirical neural tangent kernel Θ = J Jᵀ was measured on "
        f"{record.get('n_examples')} examples ({record.get('reduction')} kernel), on the schedule "
        f"{record.get('schedule')}, by the instruments {', '.join(record.get('instruments', ()))}."
    )
    if record.get("loss"):
        described += f" Loss: {record['loss']}."
    return [described]


def methods_of_runs(runs: Runs) -> list[str]:
    """How runs were averaged."""
    groups = [f"{label} (n = {len(group)})" for label, group in runs.groups.items()]
    return [
        f"Runs: {', '.join(groups)}. Runs of a group differ in their seed alone. Averaged is over "
        "the steps that all runs of a group have; bands are 95 % intervals of the mean, mean ± t s "
        "/ √n with the standard deviation s over n runs and the quantile t of Student's "
        "distribution with n − 1 degrees of freedom."
    ]


def sources_of(quantities: Sequence[str]) -> list[Source]:
    """The works that are cited for quantities of these names."""
    text = " ".join(quantities)
    return [
        source
        for source in SOURCES
        if not source.needed or any(name in text for name in source.needed)
    ]


def methods_files(paragraphs: Sequence[str], sources: Sequence[Source], version: str) -> dict:
    """The methods as LaTeX and as plain text, and the works that are cited as BibTeX."""
    used = f"Computed with ntkdiag {version}"
    in_tex = [rf"{latex(used)}~\cite{{ntkdiag}}."]
    in_text = [f"{used}."]
    for source in sources:
        in_tex.append(rf"{latex(source.said)}~\cite{{{source.key}}}.")
        in_text.append(f"{source.said} {source.names}.")
    entries = [_software(version)]
    for source in sources:
        entries.append(_entry(source.key, *source.entry))
    tex = "\n\n".join([*map(latex, paragraphs), "\n".join(in_tex)]) + "\n"
    text = "\n\n".join([*paragraphs, " ".join(in_text)]) + "\n"
    return {
        "methods.tex": tex.encode(errors="replace"),
        "methods.txt": text.encode(errors="replace"),
        "references.bib": "\n".join(entries).encode(errors="replace"),
    }


def _software(version: str) -> str:
    """The entry of ntkdiag itself."""
    fields = {
        "author": "{The ntkdiag authors}",
        "title": "{ntkdiag}: training diagnostics for {Flax} and {Equinox} models, built on the "
        "empirical neural tangent kernel",
        "note": f"Python package, version {version}",
    }
    return _entry("ntkdiag", "misc", fields)


def _entry(key: str, kind: str, fields: Mapping[str, str]) -> str:
    """One entry of BibTeX."""
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items()]
    return "\n".join([f"@{kind}{{{key},", *lines, "}", ""])


def _probe(probe: Mapping[str, Any]) -> str:
    """Which examples, with their hash."""
    kind = "examples that are trained on" if probe.get("name") == "train" else "held-out examples"
    digest = str(probe.get("x"))[:16]
    return f"It is of N = {probe.get('examples')} {kind} (SHA-256 {digest})."


def _size_of(leaf: str) -> int:
    """The number of entries of "float32[3, 4]"."""
    shape = re.search(r"\[(.*)\]", leaf)
    sizes = re.findall(r"\d+", shape[1]) if shape else []
    return math.prod(map(int, sizes))
