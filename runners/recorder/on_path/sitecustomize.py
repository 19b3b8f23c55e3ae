"""Starts the recorder in each process whose environment asks for it; then what else has this name runs."""

import importlib
import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = str(Path(__file__).resolve().parent)
if os.environ.get("EAGLEEYE_RECORDER"):
    try:
        importlib.import_module("eagleeye_recorder").start(os.environ["EAGLEEYE_RECORDER"])
    except Exception as error:  # a server starts whatever becomes of its recorder
        print(f"eagleeye: nothing is recorded: {type(error).__name__}: {error}", file=sys.stderr)
_others = [place for place in sys.path if place != _HERE]
_spec = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _spec and _spec.loader:
    _spec.loader.exec_module(importlib.util.module_from_spec(_spec))
