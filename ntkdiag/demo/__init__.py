"""A run to look at: digits, a small network, and everything ntkdiag shows of it."""

from ntkdiag.demo.demo_settings import DemoSettings as DemoSettings
from ntkdiag.demo.run_through import run_demo as run_demo
