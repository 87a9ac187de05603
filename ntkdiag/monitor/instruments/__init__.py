"""Instruments of a monitor: what is measured, by name, tier and cost."""
