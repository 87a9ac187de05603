"""Trackio in a folder of the tests, without a network; it reads this when it is imported."""

import os
import tempfile

_folder = tempfile.TemporaryDirectory(prefix="ntkdiag-trackio-")
os.environ["TRACKIO_DIR"] = _folder.name
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
