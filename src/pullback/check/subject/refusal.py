"""Whether what a function raises is a refusal that its author meant, or an accident.

An author who writes `raise NotImplementedError("no second derivative")` has decided, and says so.
A bare `assert`, an attribute that is not there, or an operator that meets two dtypes has decided
nothing: whoever calls the function gets an error that does not say what is wrong.
"""

from __future__ import annotations

import dis
from pathlib import Path

import torch

TORCH = str(Path(str(torch.__file__)).parent)
BARE = "assert "  # what pytest writes into an assertion that has no words of its own
# What Python raises where code was not written for what it got; PyTorch says why in other ways.
ACCIDENTS = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)


def is_meant(error: BaseException) -> bool:
    """Whether it was raised on purpose: by a `raise` or `assert` of the author's, with words."""
    if isinstance(error, NotImplementedError):
        return True
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    if step is None or not str(error).strip() or str(error).startswith(BARE):
        return False
    code = step.tb_frame.f_code
    is_raised = dis.opname[code.co_code[step.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")
    return is_raised and not code.co_filename.startswith(TORCH)


def is_accident(error: BaseException) -> bool:
    """Whether Python itself stopped at something that the code does not foresee."""
    return isinstance(error, (*ACCIDENTS, ValueError)) and not is_meant(error)
