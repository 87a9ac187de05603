"""Findings while a run trains: judgements of its last records, and who is told."""
