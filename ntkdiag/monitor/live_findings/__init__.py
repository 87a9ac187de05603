"""Alerts: rules over the last records of a run, and who is told when one of them fires."""
