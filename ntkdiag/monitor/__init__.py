"""During training: an Optax transform, a hook for the host, schedules and writers."""

from ntkdiag.monitor.alerting.alert import Alert as Alert
from ntkdiag.monitor.alerting.alert import Rule as Rule
from ntkdiag.monitor.alerting.alerts import Alerts as Alerts
from ntkdiag.monitor.alerting.standard_rules import DeadLayer as DeadLayer
from ntkdiag.monitor.alerting.standard_rules import MarginAbove as MarginAbove
from ntkdiag.monitor.alerting.standard_rules import NaNNear as NaNNear
from ntkdiag.monitor.alerting.standard_rules import RankCollapse as RankCollapse
from ntkdiag.monitor.alerting.standard_rules import StepErrorAbove as StepErrorAbove
from ntkdiag.monitor.hook import Monitor as Monitor
from ntkdiag.monitor.measure import measure as measure
from ntkdiag.monitor.measurement import Measurement as Measurement
from ntkdiag.monitor.monitor_plan import plan as plan
from ntkdiag.monitor.schedule import At as At
from ntkdiag.monitor.schedule import Every as Every
from ntkdiag.monitor.schedule import LogSpaced as LogSpaced
from ntkdiag.monitor.unwatch import rewatch as rewatch
from ntkdiag.monitor.unwatch import unwatch as unwatch
from ntkdiag.monitor.watch import watch as watch
from ntkdiag.monitor.writers import InMemory as InMemory
from ntkdiag.monitor.writers import JsonLines as JsonLines
from ntkdiag.monitor.writers import Terminal as Terminal
from ntkdiag.monitor.writers import Writer as Writer
from ntkdiag.monitor.writers import read_alerts as read_alerts
from ntkdiag.monitor.writers import read_json_lines as read_json_lines
