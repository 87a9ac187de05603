"""During training: an Optax optimizer that measures, a hook, instruments and writers."""

from ntkdiag.estimate import Estimate as Estimate
from ntkdiag.judging.finding import Finding as Finding
from ntkdiag.monitor.context import Context as Context
from ntkdiag.monitor.hook import Monitor as Monitor
from ntkdiag.monitor.measure import measure as measure
from ntkdiag.monitor.measurement import Measurement as Measurement
from ntkdiag.monitor.schedule import log_spaced as log_spaced
from ntkdiag.monitor.watch import watch as watch
from ntkdiag.monitor.watch_state import WatchState as WatchState
from ntkdiag.monitor.watch_state import record as record
from ntkdiag.monitor.watch_state import rewatch as rewatch
from ntkdiag.monitor.watch_state import unwatch as unwatch
from ntkdiag.monitor.writers import InMemory as InMemory
from ntkdiag.monitor.writers import Terminal as Terminal
from ntkdiag.monitor.writers import Writer as Writer
from ntkdiag.monitor.writers import scalars_of as scalars_of
from ntkdiag.runs.run_log import RunLog as RunLog
