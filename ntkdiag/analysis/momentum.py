"""How large an eigenvalue each optimizer can bear; stands with the predictions, which warn by it."""

from ntkdiag.linearize.predict.threshold import MomentumKind as MomentumKind
from ntkdiag.linearize.predict.threshold import stability_threshold as stability_threshold
