"""The engine of this process: a worker's environment says which before it starts."""

from __future__ import annotations

import os

if os.environ.get("TRITON_INTERPRET") == "1":
    from runners.engines import emulated as engine
else:
    # Two modules with the same functions; mypy takes the first one for the only type that the name may have.
    from runners.engines import cuda as engine  # type: ignore[no-redef]

__all__ = ["engine"]
