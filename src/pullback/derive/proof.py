"""Proof that a hand-written gradient is right, or numbers that show it is wrong.

The hand-written and the derived gradient are read as expressions of the elements of the inputs and
cotangents. First they are compared at many points with fifty digits: a difference is a witness.
Then they are compared as expressions: no difference anywhere is a proof.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from torch import Tensor
from torch.autograd.function import Function as TorchFunction

from pullback.derive.plain import program_of
from pullback.derive.regions import Open, compare
from pullback.derive.scalars import Scalar, coefficients, form_of, number
from pullback.derive.sides import Key, Sides, Unreadable, View, sides_of
from pullback.derive.trials import Trials

PROVED, REFUTED, UNKNOWN = "proved", "refuted", "unknown"
