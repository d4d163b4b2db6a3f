"""Results that are kept: what has not changed since is not checked again.

A report is kept under all that it depends on: the source of the target and of every file of the
user's that it imports, the inputs to the last number, the settings, this version of pullback with
the rules of other packages, the installed packages by their versions, PyTorch, Python and the
machine. Nothing of it is a time or a place of installation, so that what one machine of CI kept
holds on the next. What a function reads besides (a file, the environment, a library that it loads
by itself) is not seen: `--no-cache` checks anew.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pullback.check.findings.report import Report
from pullback.check.processes.crash import RULE as CRASH
from pullback.check.rules import all_rules
from pullback.check.target.registration import is_in_one_file
from pullback.check.target.target import Target
from pullback.cli.identity import Identity, source_text
from pullback.cli.settings import Chosen
from pullback.cli.sources import sources_of
from pullback.judge.example import Example
from pullback.report.stored import restored_report, stored
from pullback.run.disk.cache import entry, root

FORMAT = 1
LIMIT = 2000  # results that are kept: some kilobytes each
PACKAGE = Path(__file__).resolve().parents[1]


class Unkeepable(Exception):
    """An argument whose value cannot be told from another one."""


def recalled(
    target: Target,
    identity: Identity,
    examples: Sequence[Example],
    chosen: Chosen,
    check: Callable[[], Report],
) -> tuple[Report, bool]:
    """The report that is kept, else what `check` gives, which is kept; and whether it was kept."""
    try:
        origin = _origin(target, identity, examples, chosen)
    except Unkeepable:
        return check(), False
    place = root() / "checked"
    with entry(origin, within=place) as kept:
        facts = kept.facts()
        report = None if facts is None else restored_report(facts.get("report"))
        if report is not None:
            return report, True
    report = check()
    if _is_lasting(report):
        with entry(origin, within=place) as kept:
            kept.empty()
            kept.seal({"report": stored(report)})
        _forget_oldest(place)
    return report, False


def _forget_oldest(place: Path) -> None:
    """Keep the last results only; one that goes while another process reads it is made anew."""
    folders = [path for path in place.glob("??/*") if path.is_dir()]
    if len(folders) > LIMIT:
        for folder in sorted(folders, key=_last_use)[: len(folders) - LIMIT * 9 // 10]:
            shutil.rmtree(folder, ignore_errors=True)


def _last_use(folder: Path) -> float:
    return max((path.stat().st_mtime for path in folder.iterdir()), default=0.0)


def _is_lasting(report: Report) -> bool:
    """Whether a second check would say the same: not where the time or a process was lost."""
    is_lost = any(finding.rule.code == CRASH.code for finding in report.findings)
    is_late = any(skip.is_refusal and skip.raised is None for skip in report.skips)
    return not (report.interrupted or is_lost or is_late)


def _origin(target: Target, identity: Identity, examples: Sequence[Example], chosen: Chosen) -> str:
    """The text of all that a report depends on; raises `Unkeepable`."""
    if identity.path is None or target.compare_with is not None:
        raise Unkeepable  # there is no source to look at
    if target.is_op and not is_in_one_file(target.thing):
        raise Unkeepable  # another file may have given it its backward, or a kernel
    files = {str(path): _digest(path.read_bytes()) for path in sources_of(identity.path)}
    settings = [chosen.select, chosen.allow, chosen.profile, chosen.time, chosen.declares]
    if not target.is_function:
        settings += chosen.of_others
    modules = sorted({one.module for one in all_rules() if not one.module.startswith("pullback.")})
    foreign = {name: _version_of(name) for name in modules}
    numbers = [
        [_value(arg) for arg in example.args] + sorted(example.needs) for example in examples
    ]
    parts = {
        "check": FORMAT,
        "ours": _own_version(),
        "target": identity.names[1],
        "name": identity.name,
        "folder": os.getcwd(),  # places are relative to it
        "files": files,
        "settings": repr(settings),
        "foreign": foreign,
        "installed": _installed(tuple(sys.path)),
        "inputs": _digest(repr(numbers).encode()),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.is_available(),
    }
    return json.dumps(parts, sort_keys=True)


@functools.cache
def _own_version() -> str:
    """What tells this version of pullback from others: every file of it."""
    whole = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*")):
        if path.suffix in (".py", ".html"):
            whole.update(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes())
    return whole.hexdigest()


@functools.cache
def _installed(folders: tuple[str, ...]) -> list[str]:
    """The packages in these folders, each with its version, as installers note them."""
    notes = (path for folder in folders for path in Path(folder).glob("*.*-info"))
    return sorted({path.name for path in notes})


def _version_of(module: str) -> str:
    """What tells a module with rules of another package from other versions of it."""
    path = source_text(sys.modules[module]) if module in sys.modules else None
    if path is None:
        raise Unkeepable  # it could not be imported: next time it may
    return _digest(path.read_bytes())


def _value(value: Any) -> Any:
    """What tells an argument from others; raises `Unkeepable` where nothing does."""
    if isinstance(value, Tensor):
        if type(value) is not Tensor or value.layout != torch.strided or value.is_quantized:
            raise Unkeepable
        plain = value.detach().cpu().contiguous().flatten()
        plain = plain.resolve_conj().resolve_neg()
        raw = plain.view(torch.uint8) if plain.numel() else plain
        form = (tuple(value.shape), tuple(value.stride()), str(value.dtype), str(value.device))
        return (*form, _digest(bytes(raw.tolist())))
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *(_value(item) for item in value)]
    if isinstance(value, dict):
        return {repr(key): _value(item) for key, item in value.items()}
    if value is None or isinstance(value, (bool, int, float, complex, str, bytes, torch.dtype)):
        return repr(value)
    raise Unkeepable


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
