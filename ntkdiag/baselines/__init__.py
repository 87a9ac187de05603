"""The linearized model as a baseline: trained beside the network, compared on the way and after."""

from ntkdiag.baselines.linear_baseline import LinearBaseline as LinearBaseline
from ntkdiag.baselines.linear_baseline import first_beyond as first_beyond
from ntkdiag.baselines.linear_baseline import linear_baseline as linear_baseline
