"""One self-contained HTML page about one run or several."""

from probmargin.reporting.page.render import render as render
