"""How large an eigenvalue each optimizer can bear; stands with the predictions, which warn by it."""

from ntkdiag.linearization.predict.threshold import MomentumKind as MomentumKind
from ntkdiag.linearization.predict.threshold import stability_threshold as stability_threshold
