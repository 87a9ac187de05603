"""Findings while a run trains: rules over its last records, and who is told what they find."""
