"""What tests look at below the public names of the package, each with the file that it is in.

    from internals import Sink

A file that moves changes one line here, and no test. Nothing is imported before it is asked for.
"""

import importlib

NAMES = {
    "arrays": "as_array as_examples with_arrays",
    "checkpoints.contents": "read_contents",
    "commands.case": "Case",
    "comparison.sides": "read_side",
    "comparison.restore": "Template",
    "comparison.sources": "classified",
    "demo": "first_of_each_class load_digits",
    "descent": "as_descent",
    "engine.jacobian.rules": "REWRITES",
    "engine.plan": "Machine Sizes blocks_within",
    "engine.program": "Program",
    "engine.contraction": "choose ways_of",
    "jaxtools.precision": "roundoff_of_program",
    "judging.labels": "suspicious",
    "judging.of_rows": "LiveJudge judge",
    "judging.of_run": "margin_finding_of",
    "measuring.fit": "label_doubts",
    "judging.regime": "regime_of task_of",
    "losses.alignable": "NO_LABELS alignable_targets why_not_alignable",
    "losses.custom_loss": "CustomLoss",
    "losses.loss_argument": "as_loss",
    "measuring.degeneracy": "loss_of_constant_outputs",
    "models.in_training": "in_training",
    "models.paths": "describe leaves_by_path",
    "models.trainable": "trainable_mask",
    "monitor.instruments.margin": "ends_of",
    "monitor.measurement": "Status",
    "monitor.schedule": "Cost as_schedule",
    "monitor.sink": "Sink",
    "monitor.writers_argument": "read_writers",
    "neural_tangents.empirical": "_warn_about_switches",
    "optimizer.response": "OptimizerStatus Response Trial objection",
    "optimizer.saved_state": "restored_state",
    "probe_batch": "read_probes shared_examples",
    "progress": "under_way",
    "quantities": "QUANTITIES quantity",
    "report.screens": "Screen",
    "display": "number",
    "report.figures": "FIGURES",
    "report.run_page": "RunSubject",
    "report.style": "FAINT INK",
    "runs.json_lines": "checked_line_of",
    "runs.run_writer": "RunWriter",
}
_FILE_OF = {name: file for file, names in NAMES.items() for name in names.split()}


def __getattr__(name):
    if name not in _FILE_OF:
        raise AttributeError(f"{name} is not listed in tests/support/internals.py")
    return getattr(importlib.import_module(f"ntkdiag.{_FILE_OF[name]}"), name)
