"""Results -> terminal table, figures, HTML page."""

from ntkdiag.report.paper_style import paper_style as paper_style
