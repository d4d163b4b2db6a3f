"""Sound functions: whatever is reported on one of them is a false alarm."""

from __future__ import annotations

import importlib
import pkgutil

from benchmarks.faults.sound.entry import Sound


def entries() -> dict[str, Sound]:
    """Every sound function by name, over the modules of this folder."""
    found: dict[str, Sound] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        table = getattr(importlib.import_module(f"{__name__}.{module}"), "SOUND", {})
        repeated = found.keys() & table.keys()
        if repeated:
            raise ValueError(f"names must be unique, used again in {module}: {sorted(repeated)}")
        found |= table
    return found
