"""The parsers of all commands, as the command lines build them."""

from __future__ import annotations

import argparse
from typing import Any

from fuzz import __main__ as fuzz
from reports import __main__ as reports
from repro import __main__ as repro
from runners import __main__ as runners

PARSERS = {
    "fuzz": fuzz.parser,
    "repro": repro.parser,
    "reports": reports.parser,
    "runners": runners.parser,
}


def commands_of(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Each verb's own parser, by the verb's name."""
    (choices,) = (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(choices)
