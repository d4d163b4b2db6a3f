"""A program as one Function that every transform of `torch.func` and forward mode can use.

A hand-written Function without `setup_context`, `jvp` or a batching rule keeps the transform that
needs it out of the whole program. A *lifted* program lets every transform in: its backward and its
jvp are programs themselves, which run it with recording on (`second.py`), and are lifted in turn;
in a batch the samples run one after the other. So every nest of transforms is right, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, get_interpreter_stack
from torch.autograd.function import Function as TorchFunction

from pullback.capture.trees import flatten, unflatten
from pullback.derive.second import pull_again, push
from pullback.errors import BatchError, CaptureError
from pullback.function.gradients import is_differentiable
from pullback.function.isolation import TorchState
from pullback.function.plain import is_derived
from pullback.function.signature import has_setup_context
from pullback.function.slots import new_class, no_jvp, no_vmap, storage_key

Row = Callable[[Sequence[Tensor]], Sequence[Any]]


def is_kept_out(functions: Collection[Any], *, tangents: bool) -> bool:
    """Whether one of `functions` lacks what the transforms around this call need of it.

    `tangents` says whether the call is made in forward mode.
    """
    kinds = {each.key() for each in get_interpreter_stack() or ()}
    pushes = tangents or TransformType.Jvp in kinds
    return any(
        not is_derived(cls)
        and (
            (bool(kinds) and not has_setup_context(cls))
            or (pushes and cls.jvp is no_jvp)
            or (TransformType.Vmap in kinds and not _has_batching(cls))
        )
        for cls in functions
    )


def _has_batching(cls: Any) -> bool:
    return bool(cls.generate_vmap_rule) or cls.vmap is not no_vmap


def run_lifted(
    program: Callable[..., Any], args: Sequence[Any], closures: Sequence[Tensor] = ()
) -> Any:
    """`program(*args)`, as a lifted program of the tensors in `args`.

    `closures` are the tensors from outside the program that get gradients as well.
    """
    leaves, spec = flatten(tuple(args))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    out_specs: list[Any] = []

    def on_row(row: Sequence[Tensor]) -> Sequence[Any]:
        rest = iter(row)
        filled = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        returned, out_spec = flatten(program(*unflatten(filled, spec)))
        out_specs[:] = [out_spec]
        return returned

    by_place = dict(enumerate(closures, len(tensors)))
    outputs = _Lifted(on_row, by_place).apply([*tensors, *closures])
    return unflatten(outputs, out_specs[0])


class _Lifted:
    """A program on a row of tensors, lifted; and what its last run said of its outputs.

    `closures` has the tensors from outside the program, by their places in the row: the program
    reaches them by itself.
    """

    def __init__(self, program: Row, closures: dict[int, Tensor]) -> None:
        self.program = program
        self.closures = closures
        self.plain: list[Any] = []  # outputs that are no tensors; None for one that is
        self.is_tensor: list[bool] = []
        self.is_linked: list[bool] = []  # of each tensor: whether it carries gradients
        space = {
            "forward": staticmethod(self._forward),
            "setup_context": staticmethod(self._setup_context),
            "backward": staticmethod(self._backward),
            "jvp": staticmethod(self._jvp),
            "vmap": staticmethod(self._vmap),
        }
        self.function: Any = new_class("Lifted", TorchFunction, space)

    def apply(self, row: Sequence[Tensor]) -> list[Any]:
        """The outputs of the program, tensors and other values."""
        tensors = iter(self.function.apply(*row))
        pairs = zip(self.is_tensor, self.plain, strict=True)
        return [next(tensors) if is_tensor else plain for is_tensor, plain in pairs]

    # ---- the methods of the Function; under no transform that is not above it ----

    def _forward(self, *row: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(is_differentiable(x)) for x in row]
            given = [self.closures.get(i, leaf) for i, leaf in enumerate(leaves)]
            outputs = self.program(given)
        self.is_tensor = [isinstance(y, Tensor) for y in outputs]
        self.plain = [None if isinstance(y, Tensor) else y for y in outputs]
        tensors = [y for y in outputs if isinstance(y, Tensor)]
        self.is_linked = [y.requires_grad for y in tensors]
        _require_known(tensors, given)
        return tuple(_apart(y, row) for y in tensors)

    def _setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)
        pairs = zip(output, self.is_linked, strict=True)
        ctx.mark_non_differentiable(*(y for y, is_linked in pairs if not is_linked))

    def _backward(self, ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        row, needs = ctx.saved_tensors, tuple(ctx.needs_input_grad)
        given = [c is not None for c in cotangents]
        pull = _pull(self._tensors, len(row), given, needs, self.closures)
        lifted = _Lifted(pull, self.closures)
        pulled = iter(lifted.apply([*row, *(c for c in cotangents if c is not None)]))
        return tuple(next(pulled) if needed else None for needed in needs)

    def _jvp(self, ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        row = ctx.saved_tensors
        moving = [tangent is not None for tangent in tangents]
        lifted = _Lifted(_push(self._tensors, len(row), moving), self.closures)
        pushed = lifted.apply([*row, *(t for t in tangents if t is not None)])
        pairs = zip(pushed, self.is_linked, strict=True)
        return tuple(tangent if is_linked else None for tangent, is_linked in pairs)

    def _vmap(self, info: Any, in_dims: tuple[Any, ...], *row: Tensor) -> Any:
        if info.batch_size == 0:
            raise BatchError("the batch must hold a sample to be run one by one", got="size 0")
        samples, draws = [], TorchState()
        for i in range(info.batch_size):
            if info.randomness == "same":
                draws.restore()
            sample = [
                x if dim is None else x.select(dim, i) for x, dim in zip(row, in_dims, strict=True)
            ]
            samples.append(self.function.apply(*sample))
            if info.randomness == "error" and not draws.is_now():
                raise BatchError(
                    "a program that draws random numbers must be batched with `randomness`",
                    expected='vmap(..., randomness="different"), or "same"',
                    got='"error", which is the default',
                )
        columns = zip(*samples, strict=True)
        stacked = tuple(torch.stack(column) for column in columns)
        return stacked, (0,) * len(stacked)

    def _tensors(self, row: Sequence[Tensor]) -> list[Tensor]:
        return [y for y in self.program(row) if isinstance(y, Tensor)]


def _pull(
    program: Row,
    count: int,
    given: Sequence[bool],
    needs: Sequence[bool],
    closures: Collection[int],
) -> Row:
    """The backward of `program`: a row of inputs and then of cotangents gives gradients."""

    def pull(row: Sequence[Tensor]) -> list[Any]:
        rest = iter(row[count:])
        cotangents = [next(rest) if is_given else None for is_given in given]
        pulled = pull_again(program, row[:count], cotangents, closures=closures, wanted=needs)
        return [g for g, needed in zip(pulled, needs, strict=True) if needed]

    return pull


def _push(program: Row, count: int, moving: Sequence[bool]) -> Row:
    """The jvp of `program`: a row of inputs and then of tangents gives tangents of outputs."""

    def forward(row: Sequence[Tensor]) -> list[Any]:
        rest = iter(row[count:])
        tangents = [next(rest) if moves else None for moves in moving]
        outputs = program(row[:count])
        pushed = push(program, row[:count], tangents)
        return [
            torch.zeros_like(y) if tangent is None else tangent
            for y, tangent in zip(outputs, pushed, strict=True)
        ]

    return forward


def _require_known(outputs: Sequence[Tensor], row: Sequence[Tensor]) -> None:
    """Raise if gradients would flow to a tensor that is not in the row, and be lost."""
    known = {x.grad_fn for x in row if x.grad_fn is not None}
    leaves = {id(x) for x in row}
    left, seen = [y.grad_fn for y in outputs if y.requires_grad], set(known)
    while left:
        maker: Any = left.pop()
        if maker is None or maker in seen:
            continue
        seen.add(maker)
        leaf = getattr(maker, "variable", None)
        if leaf is not None and id(leaf) not in leaves:
            raise CaptureError(
                "a derived program with Functions that a transform does not know must use the "
                "tensors from outside it that it used in its examples",
                got=f"another one, of shape {list(leaf.shape)}",
                fix="pass it as an argument",
            )
        left += [before for before, _ in maker.next_functions]


def _apart(output: Tensor, row: Sequence[Tensor]) -> Tensor:
    """`output` without history, in memory of its own."""
    memory = {storage_key(x) for x in row}
    bare = output.detach()
    return bare.clone() if storage_key(bare) in memory else bare
