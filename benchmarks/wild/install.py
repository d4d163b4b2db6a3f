"""Install the packages of the corpus into a folder of their own, once.

The folder is `build/wild/` of the repository, or `$PULLBACK_WILD`. What is there already, in the
pinned version, is left alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.wild.packages import DEPENDENCIES, PACKAGES, Package

ROOT = Path(__file__).parents[2]
RECORD = "installed.json"


def folder() -> Path:
    """Where the packages are."""
    return Path(os.environ.get("PULLBACK_WILD") or ROOT / "build" / "wild")


def install(packages: Sequence[Package] = (*DEPENDENCIES, *PACKAGES)) -> Path:
    """Install what is missing; the folder, to be put at the end of `sys.path`."""
    into = folder()
    into.mkdir(parents=True, exist_ok=True)
    record = into / RECORD
    done = json.loads(record.read_text()) if record.exists() else {}
    for package in packages:
        if done.get(package.name) == package.sha256:
            continue
        fetch(package, into)
        done[package.name] = package.sha256
        record.write_text(json.dumps(done, indent=1, sort_keys=True))
    for package in packages:
        strip(package, into)
    return into


def fetch(package: Package, into: Path) -> None:
    """Install one package without its dependencies, if its hash is the pinned one."""
    print(f"installing {package.name} {package.version}", flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(package.requirement + "\n")
        file.flush()
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
        command += ["--disable-pip-version-check", "--require-hashes", "--target", str(into)]
        done = subprocess.run([*command, "-r", file.name], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(
            f"{package.name} {package.version} could not be installed\n{done.stderr[-2000:]}"
        )


def strip(package: Package, into: Path) -> None:
    """Empty what `bare` names, in the installed copy."""
    for name in package.bare:
        file = into.joinpath(*name.split(".")) / "__init__.py"
        if not file.parent.is_dir():
            raise SystemExit(f"{package.name}: `bare` names {name}, which is no package in it")
        if not file.exists() or file.read_text():
            file.write_text("")


if __name__ == "__main__":
    print(install())
