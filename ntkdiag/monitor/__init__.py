"""During training: an Optax optimizer that measures, a hook, instruments and writers."""

from ntkdiag.estimate import Estimate as Estimate
from ntkdiag.judging.finding import Finding as Finding
from ntkdiag.monitor.flat_scalars import scalars_of as scalars_of
from ntkdiag.monitor.hook import Monitor as Monitor
from ntkdiag.monitor.instruments.exact_kernel import ExactKernel as ExactKernel
from ntkdiag.monitor.instruments.gradient_noise import GradientNoise as GradientNoise
from ntkdiag.monitor.instruments.instrument import Instrument as Instrument
from ntkdiag.monitor.instruments.layer_norms import LayerNorms as LayerNorms
from ntkdiag.monitor.instruments.sampled_trace import SampledTrace as SampledTrace
from ntkdiag.monitor.instruments.step_error import StepError as StepError
from ntkdiag.monitor.instruments.top_curvatures import TopCurvatures as TopCurvatures
from ntkdiag.monitor.last_numbers import record as record
from ntkdiag.monitor.measure_once import measure as measure
from ntkdiag.monitor.measurement import Measurement as Measurement
from ntkdiag.monitor.run_log import RunLog as RunLog
from ntkdiag.monitor.schedule import log_spaced as log_spaced
from ntkdiag.monitor.unwatch import unwatch as unwatch
from ntkdiag.monitor.watch import watch as watch
from ntkdiag.monitor.watch_state import WatchState as WatchState
from ntkdiag.monitor.writers import InMemory as InMemory
from ntkdiag.monitor.writers import JsonLines as JsonLines
from ntkdiag.monitor.writers import Terminal as Terminal
from ntkdiag.monitor.writers import Writer as Writer
from ntkdiag.monitor.writers import read_findings as read_findings
from ntkdiag.monitor.writers import read_json_lines as read_json_lines
