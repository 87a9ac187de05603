"""Carrying out a plan: factors of blocks of examples, contracted into a kernel."""
