"""Results -> terminal table, figures, HTML page."""

from ntkdiag.report.comparison_table import comparison_text as comparison_text
from ntkdiag.report.dependencies import require_report as require_report
from ntkdiag.report.html import comparison_html as comparison_html
