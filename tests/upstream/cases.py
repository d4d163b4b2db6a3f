"""Cases from the OpInfo database of the installed torch: an op, its sample inputs, as a program.

OpInfo is what PyTorch tests its own ops with: each entry has a callable, the dtypes that it can be
differentiated in, and sample inputs. A case is one sample as a program of tensors alone: everything
else in it (numbers, dims, strings) stands in the program as a constant, as it would in a user's
function. `output_process_fn_grad` and `gradcheck_wrapper` belong to the program: without them the
gradients of ops such as `svd` have no one answer.
"""

import functools
import itertools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils import _pytree as pytree

DTYPES = {"float64": torch.float64, "float32": torch.float32, "complex128": torch.complex128}

SAMPLES = {"float64": 2, "float32": 1, "complex128": 1}
"""How many samples of an op are run: other dtypes take the same ways through most of the code."""

LOOKED_AT = 60
"""How many samples of an op are looked at: some ops have hundreds that differ in numbers alone."""

LARGEST = 20_000
"""Elements of a sample beyond which it is left out: nothing is wrong at a large size alone."""


@dataclass(frozen=True)
class Case:
    """A program, and the tensors to call it with; `needs` says which of them require grad."""

    program: Callable[..., Any]
    tensors: tuple[Tensor, ...]
    needs: tuple[bool, ...]
    op: str = ""

    def __str__(self) -> str:
        kinds = [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in self.tensors]
        return f"{self.program.__name__}({', '.join(kinds)})"


# ---- ops ----


def name_of(op: OpInfo) -> str:
    """The name of an entry, by which a test is chosen: `linalg.norm.subgradients_at_zero`."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


@functools.cache
def ops() -> dict[str, OpInfo]:
    """Every op that can be differentiated in double precision on a CPU, by its name."""
    return {
        name_of(op): op
        for op in op_db
        if op.supports_autograd and torch.float64 in op.supported_backward_dtypes("cpu")
    }


def dtypes_of(op: OpInfo) -> list[str]:
    """The dtypes of the suite that an op can be differentiated in."""
    known = op.supported_backward_dtypes("cpu")
    return [name for name, dtype in DTYPES.items() if dtype in known]


# ---- samples ----


def cases_of(op: OpInfo, dtype: str, limit: int) -> list[Case]:
    """Up to `limit` cases of an op, whose samples are of different kinds as far as there are such.

    The samples of each kind (ranks, empty tensors, names of keywords) are much alike; of all kinds
    there are, those at even distances are taken, and always the first.
    """
    first_of_kind: dict[Any, Any] = {}
    for sample in samples_of(op, DTYPES[dtype]):
        first_of_kind.setdefault(kind_of(sample), sample)
    chosen = list(first_of_kind.values())
    places = {round(i * (len(chosen) - 1) / max(limit - 1, 1)) for i in range(limit)}
    return [case_of(op, chosen[i], op.get_op()) for i in sorted(places)] if chosen else []


def samples_of(op: OpInfo, dtype: torch.dtype) -> Iterator[Any]:
    """Samples that are small and have something to differentiate, the same at each call."""
    torch.manual_seed(0)
    random.seed(0)
    numpy.random.seed(0)
    for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=True), LOOKED_AT):
        tensors = tensors_of(sample)
        if sum(t.numel() for t in tensors) > LARGEST or not any(t.requires_grad for t in tensors):
            continue
        if all(t.layout is torch.strided for t in tensors):
            yield sample


def tensors_of(sample: Any) -> list[Tensor]:
    """The tensors of a sample, in the order of its arguments."""
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def kind_of(sample: Any) -> Any:
    """What two samples that are much alike have in common."""
    leaves = pytree.tree_leaves((sample.input, sample.args))
    kinds = [(leaf.ndim, 0 in leaf.shape) if isinstance(leaf, Tensor) else 0 for leaf in leaves]
    return tuple(kinds), tuple(sorted(sample.kwargs))


def case_of(op: OpInfo, sample: Any, call: Callable[..., Any]) -> Case:
    """A sample as a program of its tensors, which calls `call` in the place of the op."""
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = tuple(leaves[i].detach() for i in places)
    needs = tuple(leaves[i].requires_grad for i in places)
    constants = [None if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    wrapper, process = op.gradcheck_wrapper, sample.output_process_fn_grad

    def program(*tensors: Tensor) -> Any:
        row = list(constants)
        for place, tensor in zip(places, tensors, strict=True):
            row[place] = tensor
        given, args, kwargs = pytree.tree_unflatten(row, spec)
        return process(wrapper(call, given, *args, **kwargs))

    program.__name__ = re.sub(r"\W", "_", name_of(op))
    return Case(program, tensors, needs, name_of(op))


def variants_of(op: OpInfo, dtype: str) -> dict[str, Case]:
    """The first sample through the method and the change in place of an op, where it has them.

    What is changed is an intermediate: a program leaves its inputs as they are.
    """
    sample = next(samples_of(op, DTYPES[dtype]), None)
    if sample is None or not isinstance(sample.input, Tensor):
        return {}
    found = {}
    if op.get_method() is not None:
        found["method"] = case_of(op, sample, op.get_method())
    change = op.get_inplace()
    if change is not None:

        def changed(given: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            copy = given.clone()
            change(copy, *args, **kwargs)
            return copy

        found["in place"] = case_of(op, sample, changed)
    return found
