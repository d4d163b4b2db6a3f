"""`pullback`, and `python -m pullback`: the commands, from `_pullback_cli`, which loads nothing."""

from __future__ import annotations

from _pullback_cli import app as app
from _pullback_cli import main as main
