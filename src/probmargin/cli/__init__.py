"""The command line: parses, calls, prints."""

from probmargin.cli.main import main as main
