"""The reference that a hand-written backward is compared with.

Forward itself determines the gradient. Its body is run in float64 as plain PyTorch, so that
autograd differentiates it; whatever comes out is held against differences of the real forward,
which have an error estimate of their own. So neither a forward that autograd cannot look into (a
kernel, NumPy, `detach`) nor a kink is reported as a defect of the backward.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pullback.capture.patch import watching
from pullback.function.isolation import seeded
from pullback.function.modes import DispatchMode
from pullback.function.plain import plain_program
from pullback.judge import progress
from pullback.judge.differences import UNKNOWN, Estimate, central, one_sided
from pullback.judge.example import Example, can_differ, dense_of, mapped, tensors_in
from pullback.judge.run import pulled_gradients, used_outputs
from pullback.judge.tape import has_native_node, replayed
from pullback.judge.trail import is_followed

STEP = 1e-2  # the first of the steps that `differences` makes smaller
FINEST = torch.finfo(torch.float64).eps


class PrecisionWatcher(DispatchMode):
    """Notes the coarsest floating dtype that went into each tensor of a program."""

    def __init__(self) -> None:
        super().__init__()
        self.coarsest = FINEST
        self._known: dict[int, tuple[Tensor, float]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        given = tensors_in([*args, *(kwargs or {}).values()])
        before = max((self._of(t) or FINEST for t in given), default=FINEST)
        for tensor in tensors_in(result):
            if tensor.numel() > 0 and tensor.layout == torch.strided:
                own = torch.finfo(tensor.dtype).eps if can_differ(tensor) else FINEST
                # By storage, so that what is written into a view is known of the whole.
                eps = max(own, before, self._of(tensor) or FINEST)
                self._known[tensor.untyped_storage().data_ptr()] = (tensor, eps)
                self.coarsest = max(self.coarsest, own)
        return result

    def of(self, outputs: Sequence[Tensor]) -> float:
        """The rounding error of the coarsest dtype that went into the outputs.

        That of all tensors, where an output was made by no op that is seen. A tensor that is only
        converted to be saved does not count.
        """
        found = [self._of(output) for output in outputs if output.numel() > 0]
        known = [eps for eps in found if eps is not None]
        return max(known, default=FINEST) if len(known) == len(found) else self.coarsest

    def _of(self, tensor: Tensor) -> float | None:
        if tensor.layout != torch.strided:
            return None
        known = self._known.get(tensor.untyped_storage().data_ptr())
        return None if known is None else known[1]


class Reference:
    """The gradients that forward implies, for any arguments and cotangents.

    Arguments:
        call: What is judged, as users call it.
        plain: The same without its hand-written backward, where that is known: the forward of a
            Function. Any other callable is run, and the Functions it calls are replaced.
        is_op: Whether it is an op of the dispatcher, which PyTorch sees by its schema.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        plain: Callable[..., Any] | None = None,
        *,
        is_op: bool = False,
    ) -> None:
        self.call, self.plain = call, plain
        self.noise = FINEST
        self._is_op = is_op
        self._has_looked = False
        self._is_native = False  # whether it calls a C++ Function, which autograd cannot look into
        self._lost: dict[int, bool] = {}
        self._asks_graph = False  # whether forward raises where no argument requires grad

    # ---- autograd over forward as plain PyTorch ----

    def program(self, *args: Any) -> Any:
        """What the target computes, without any hand-written backward."""
        if self.plain is not None:
            return self.plain(*args)
        if not self._is_native:
            with watching(_as_plain):
                result = self.call(*args)
            self._is_native = has_native_node(tensors_in(result))
            if not self._is_native:
                return result
        return replayed(self.call, args)

    def gradients(
        self, example: Example, cotangents: Sequence[Tensor | None], wanted: Sequence[int]
    ) -> dict[int, Tensor | None] | None:
        """The gradient of each wanted argument by position; None where autograd has none.

        The example is used as it is: make it float64 first.
        """
        try:
            return self.derived(example, cotangents, wanted) or None
        except Exception:  # what autograd refuses has no reference
            return None

    def derived(
        self, example: Example, cotangents: Sequence[Tensor | None], wanted: Sequence[int]
    ) -> dict[int, Tensor | None]:
        """The same; empty where no gradient flows, and errors are raised."""
        args = example.fresh(needs=frozenset(wanted))
        leaves: dict[int, Tensor] = {i: args[i] for i in wanted}
        passed = tuple(_cloned(arg) for arg in args)
        with torch.enable_grad(), warnings.catch_warnings(), seeded(example.seed):
            warnings.simplefilter("ignore")
            with self._looking() as look:
                outputs = tensors_in(self.program(*passed))
                if look is not None:
                    self.noise = max(self.noise, look.of(outputs))
            used = [(o, c.to(o.dtype)) for o, c in used_outputs(outputs, cotangents)]
            found = pulled_gradients(used, list(leaves.values()))
        return {i: dense_of(g) for i, g in zip(leaves, found, strict=True)} if used else {}

    def loses(self, example: Example, position: int) -> bool:
        """Whether a callable, which is its own reference, takes an argument out of PyTorch."""
        if self.plain is not None or self._is_op:
            return False
        if position not in self._lost:
            args = example.fresh(needs=frozenset())
            try:
                self._lost[position] = not is_followed(self.call, args, position)
            except Exception:  # it cannot be followed: nothing is known to be lost
                self._lost[position] = False
        return self._lost[position]

    @contextmanager
    def _looking(self) -> Iterator[PrecisionWatcher | None]:
        """The first time, watch in which precision forward computes."""
        if self._has_looked:
            yield None
            return
        self._has_looked = True
        look = PrecisionWatcher()
        try:
            with look:
                yield look
        except Exception:
            self.noise = max(self.noise, look.coarsest)
            raise

    # ---- differences of forward as it is ----

    def curve(
        self,
        example: Example,
        cotangents: Sequence[Tensor | None],
        direction: dict[int, Tensor],
    ) -> Callable[[float], float]:
        """`t -> <cotangents, forward(x + t direction)>`, a real number."""

        steps = {i: along.to(example.args[i].detach()) for i, along in direction.items()}
        owners: dict[int, Any] = {}

        def value(t: float) -> float:
            moved = list(example.args)
            for i, along in steps.items():
                moved[i] = moved[i].detach() + t * along
            progress.current.begin(example.size)
            outputs = self._forward(replace(example, args=tuple(moved)), owners)
            total = 0.0
            for output, cotangent in zip(outputs, cotangents, strict=True):
                if cotangent is not None:
                    total += float(real_inner_product(cotangent, output))
            return total

        return value

    def _forward(self, example: Example, owners: dict[int, Any]) -> list[Tensor]:
        """The outputs of forward; with a graph where it raises without one, and not with it."""
        try:
            return self._outputs(example, owners, has_graph=self._asks_graph)
        except Exception:
            if self._asks_graph or not example.needs:
                raise
            outputs = self._outputs(example, owners, has_graph=True)
            self._asks_graph = True
            return outputs

    def _outputs(
        self, example: Example, owners: dict[int, Any], *, has_graph: bool
    ) -> list[Tensor]:
        args = example.fresh(needs=example.needs if has_graph else frozenset(), owners=owners)
        grad_mode = torch.set_grad_enabled(has_graph)
        with grad_mode, warnings.catch_warnings(), seeded(example.seed):
            warnings.simplefilter("ignore")
            return tensors_in(self.call(*args))

    def slope(
        self,
        example: Example,
        cotangents: Sequence[Tensor | None],
        direction: dict[int, Tensor],
        step: float = STEP,
    ) -> Estimate:
        """The derivative of `curve` at 0, with its error."""
        try:
            return central(self.curve(example, cotangents, direction), step, self.noise_of(example))
        except Exception:  # a step leaves what forward serves
            return UNKNOWN

    def sides(
        self,
        example: Example,
        cotangents: Sequence[Tensor | None],
        direction: dict[int, Tensor],
        step: float = STEP,
    ) -> tuple[Estimate, Estimate]:
        """The derivatives of `curve` at 0 from the left and from the right."""
        curve = self.curve(example, cotangents, direction)
        noise = self.noise_of(example)
        try:
            return one_sided(curve, step, noise, -1), one_sided(curve, step, noise, 1)
        except Exception:  # a step leaves what forward serves
            return UNKNOWN, UNKNOWN

    def noise_of(self, example: Example) -> float:
        """The relative rounding error of what forward gives for `example`."""
        coarse = [torch.finfo(example.args[i].dtype).eps for i in example.differentiable]
        return float(max([self.noise, *coarse]))


def real_inner_product(cotangent: Tensor, other: Tensor) -> Tensor:
    """`Re <cotangent, other>` in float64: what PyTorch means by a gradient, also for complex."""
    wide = torch.complex128 if cotangent.is_complex() or other.is_complex() else torch.float64
    one, two = (tensor.detach().to(device="cpu", dtype=wide) for tensor in (cotangent, other))
    return (one.conj() * two).sum().real


def _as_plain(
    cls: Any, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run the forward of a Function that a program calls, without its backward."""
    return call(*args, **kwargs) if kwargs else plain_program(cls)(*args)


def _cloned(arg: Any) -> Any:
    return mapped(arg, lambda t: t.clone() if t.requires_grad else t)
