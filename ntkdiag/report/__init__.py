"""Results -> terminal table, figures, HTML page."""

from ntkdiag.report.style import paper_style as paper_style
