"""import eagleeye_recorder; recorder = eagleeye_recorder.start(FOLDER); recorder.snapshot() at any time."""

import importlib.util
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent.parent
_NAME = "_eagleeye_recorder"
# Under a name of its own: a server may have a package that is called runners, too.
_spec = importlib.util.spec_from_file_location(_NAME, _HERE / "__init__.py", submodule_search_locations=[str(_HERE)])
assert _spec and _spec.loader
sys.modules[_NAME] = _package = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_package)
start = importlib.import_module(f"{_NAME}.hooks").start
