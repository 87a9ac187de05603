"""`ntkdiag report`: the page of a run directory, where it goes and what it says."""

pytest_plugins = ["shell"]
