"""Findings: every threshold and every judgement, for comparisons and runs."""
