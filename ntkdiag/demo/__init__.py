"""A run to look at: digits, a small network, and everything ntkdiag shows of it."""

from ntkdiag.demo.run import run_demo as run_demo
from ntkdiag.demo.settings import DemoSettings as DemoSettings
