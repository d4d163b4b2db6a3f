"""The captured graph against the program that it came from, on inputs that neither has seen.

Capture sees ops, not values: a global that changes, a counter, or a random state of the program's
own escape it. So the graph is run beside the program before anyone uses it: on new values, on
other sizes where sizes are symbols, and once more in double precision, where rounding hides less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx

from pullback.capture.fake import is_dense, numbers_of
from pullback.capture.indices import is_index
from pullback.capture.joint import Capture, capture
from pullback.capture.layouts import in_memory_order, in_order_of, strided_copy
from pullback.capture.modes import autocast_off
from pullback.capture.seeds import like_given, moved_a_little, normal
from pullback.capture.trees import flatten, kept, unflatten
from pullback.errors import CaptureError, DifferingCaptureError
from pullback.function.isolation import seeded
from pullback.judge.closeness import (
    HalfTheDigits,
    coarsest_rounding,
    equal_tensors,
    unequal,
    value_difference,
    value_text,
)
from pullback.judge.example import can_differ, wide_of
from pullback.judge.trial_sizes import elements_of, shapes_around_integers

LARGE = 1 << 16  # elements from which on small tensors are compared instead, but for once


@dataclass(frozen=True, slots=True)
class JointRun:
    """What came of one run: of the program, or of its graph."""

    outputs: list[Any]
    gradients: list[Tensor | None]


def run_joint(
    captured: Capture, tensors: Sequence[Tensor], cotangents: Sequence[Tensor]
) -> JointRun:
    """Run the joint graph on tensors as arguments, with the cotangents of its used outputs.

    The outputs are those of `captured.outputs` that are part of the graph, in its order; the
    gradients those of the inputs that need one.
    """
    row = [tensor.detach() for tensor in captured.row(tensors)]
    laid = [
        in_memory_order(cotangent, numbers_of(node.meta["val"].stride()))
        for cotangent, node in zip(cotangents, captured.joint.cotangents, strict=True)
    ]
    module = fx.GraphModule({}, captured.joint.graph)
    with torch.no_grad(), autocast_off():
        returned = module(*row, *laid)
    count = captured.joint.output_count
    return JointRun(list(returned[:count]), list(returned[count:]))


# ---- verify ----


def verify(captured: Capture, program: Callable[..., Any], examples: Sequence[Any]) -> None:
    """Raise `DifferingCaptureError` unless the graph computes what `program` computes.

    The program is called several times, under a random state of the check's own. Inputs are drawn
    from `examples`, but for integers, which stay what they are; a draw on which the program itself
    raises is left out. Large examples are used once as large as they are, where the graph serves
    smaller ones, or where there are integers that may point into them. Functions that were not
    traced may trust their arguments, so they get the examples alone.
    """
    leaves, _ = flatten(tuple(examples))
    own = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    _require_values(captured.name, own)
    check = _Check(captured, program)
    if captured.opaque:
        check.compare(own, 1, must_run=True)
        return
    if not check.compare([moved_a_little(t, 1) for t in own], 1):
        check.compare(own, 1, must_run=True)
    others = list(_other_shapes(captured, own))
    least = min([_shapes(own), *others], key=elements_of)
    if elements_of(least) * 2 > elements_of(_shapes(own)):  # nothing much smaller
        least = _shapes(own)
    is_once = elements_of(least) > LARGE and any(map(is_index, own))
    for seed, shapes in enumerate(others if is_once else [least, *others], 2):
        check.compare([_drawn(t, s, seed) for t, s in zip(own, shapes, strict=True)], seed)
    if not is_once and not check.is_exact:
        _verify_in_double(captured, program, leaves, least)


def _verify_in_double(
    captured: Capture,
    program: Callable[..., Any],
    leaves: Sequence[Any],
    shapes: Sequence[Sequence[int]],
) -> None:
    """Capture and compare once more in double precision, where rounding hides less.

    What was equal to the last bit hides nothing.
    """
    doubled = [_doubled(leaf) for leaf in leaves]
    tensors = [leaf for leaf in doubled if isinstance(leaf, Tensor)]
    if all(a is b for a, b in zip(doubled, leaves, strict=True)):
        return
    arguments = [i for i in captured.inputs if i.position is not None]
    differentiable = [output.used for output in captured.outputs if output.differentiable]
    try:
        again = capture(
            program,
            unflatten(doubled, captured.in_spec),
            needs=[i.needs for i in arguments],
            used=differentiable,
            dynamic=captured.stage.dynamic,
        )
    except Exception:
        return  # what runs in single precision only is no fault of the graph
    if _shapes(tensors) != list(shapes):
        given = [_drawn(t, s, 1) for t, s in zip(tensors, shapes, strict=True)]
    else:
        given = [moved_a_little(t, 1) for t in tensors]
    _Check(again, program).compare(given, 1)


def _shapes(tensors: Sequence[Tensor]) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in tensors]


class _Check:
    """The comparison of one graph with its program."""

    def __init__(self, captured: Capture, program: Callable[..., Any]) -> None:
        self.captured = captured
        self.program = program
        self.shapes = ""
        self.is_exact = True
        self.tensors: Sequence[Tensor] = ()
        self.eps = coarsest_rounding(captured.joint.graph)

    def compare(self, tensors: Sequence[Tensor], seed: int, *, must_run: bool = False) -> bool:
        """Compare both on `tensors`; False when the program cannot run on them.

        With `must_run`, what the program raises then is raised.
        """
        if not self.captured.serves(tensors):
            return False
        self.shapes = ", ".join(str(list(t.shape)) for t in tensors)
        self.tensors = tensors
        with _unchanged(self.captured), seeded(seed):
            try:
                expected, cotangents = self._run_program(tensors, seed)
            except DifferingCaptureError:
                raise
            except Exception:  # the program's own refusal of these inputs
                if must_run:
                    raise
                return False
        with seeded(seed):
            got = run_joint(self.captured, list(map(strided_copy, tensors)), cotangents)
        self._require_same(expected, got)
        return True

    def _run_program(self, tensors: Sequence[Tensor], seed: int) -> tuple[JointRun, list[Tensor]]:
        returned, own, given = self._call(tensors)
        leaves = self._leaves(returned, given)
        self._require_same_kinds(leaves)
        self._require_only_known_changes(tensors, given)
        return self._differentiated(leaves, own, seed)

    def _call(self, tensors: Sequence[Tensor]) -> tuple[Any, list[Tensor], list[Tensor]]:
        """Call the program: what it returns, the leaves, and what it was given of them."""
        pairs = list(zip(tensors, self.captured.inputs, strict=False))
        own = [strided_copy(tensor).requires_grad_(i.needs) for tensor, i in pairs]
        with torch.enable_grad():
            given = [
                leaf if i.free or not i.needs else _no_leaf(leaf)
                for leaf, (_, i) in zip(own, pairs, strict=True)
            ]
            return self.program(*self.captured.fill(given)), own, given

    def _leaves(self, returned: Any, given: Sequence[Tensor]) -> list[Any]:
        """What the program gave: the leaves it returned, then the inputs that it changed."""
        leaves, spec = flatten(returned)
        if spec != self.captured.out_spec:
            raise self._fault("what is returned", f"{spec}", f"{self.captured.out_spec}")
        row = self.captured.row(given)
        changed = [o for o in self.captured.outputs if not o.returned]
        return leaves + [row[o.changes] for o in changed if o.changes is not None]

    def _differentiated(
        self, leaves: list[Any], own: Sequence[Tensor], seed: int
    ) -> tuple[JointRun, list[Tensor]]:
        pairs = list(zip(leaves, self.captured.outputs, strict=True))
        used = [leaf for leaf, output in pairs if output.used]
        cotangents = [normal(leaf, seed + 100 * k) for k, leaf in enumerate(used)]
        row = self.captured.row(own)
        wanted = [t for t, i in zip(row, self.captured.inputs, strict=True) if i.needs]
        gradients: Sequence[Tensor | None] = [None] * len(wanted)
        if used and wanted:
            with autocast_off():
                gradients = torch.autograd.grad(used, wanted, cotangents, allow_unused=True)
        return JointRun([kept(leaf) for leaf in leaves], list(gradients)), cotangents

    # ---- what must be the same ----

    def _require_only_known_changes(
        self, before: Sequence[Tensor], after: Sequence[Tensor]
    ) -> None:
        known = {place for place, _ in self.captured.mutated}
        for place, (old, new) in enumerate(zip(before, after, strict=True)):
            if place in known or equal_tensors(old, new):
                continue
            if bool(unequal(old.detach(), new.detach()).any()):
                name = self.captured.inputs[place].name
                raise self._fault(f"`{name}`", "changed in place", "unchanged")

    def _require_same_kinds(self, leaves: Sequence[Any]) -> None:
        for place, (leaf, output) in enumerate(zip(leaves, self.captured.outputs, strict=True)):
            if isinstance(leaf, Tensor) and leaf.requires_grad != output.differentiable:
                raise self._fault(
                    self._where(place),
                    f"requires_grad is {leaf.requires_grad}",
                    f"requires_grad is {output.differentiable}",
                )

    def _require_same(self, expected: JointRun, got: JointRun) -> None:
        for place, output in enumerate(self.captured.outputs):
            graphs = output.value if output.index is None else got.outputs[output.index]
            self._require_equal(self._where(place), expected.outputs[place], graphs)
        names = [i.name for i in self.captured.inputs if i.needs]
        for name, wanted, gradient in zip(names, expected.gradients, got.gradients, strict=True):
            self._require_equal(f"gradient of `{name}`", wanted, gradient)

    def _where(self, place: int) -> str:
        output = self.captured.outputs[place]
        if output.returned or output.changes is None:
            return f"output {place}"
        return f"`{self.captured.inputs[output.changes].name}`, which is changed"

    def _require_equal(self, where: str, expected: Any, got: Any) -> None:
        if isinstance(expected, Tensor) != isinstance(got, Tensor):
            raise self._fault(where, value_text(expected), value_text(got))
        if isinstance(expected, Tensor) and not equal_tensors(expected, got):
            self.is_exact = False
        allowed = HalfTheDigits(is_strict=True, eps=self.eps)
        found = value_difference(where, got, expected, allowed)
        if found is not None:
            place = f", index {found.at}" if found.at else ""
            some = f"; {found.count} of {found.size} elements differ" if found.at else ""
            raise self._fault(f"{where}{place}", found.expected, f"{found.got}{some}")

    def _fault(self, where: str, expected: str, got: str) -> DifferingCaptureError:
        name = self.captured.name
        return DifferingCaptureError(
            f"the graph of `{name}` must compute what `{name}` computes",
            at=f"{where}, for inputs of shape {self.shapes}",
            expected=f"{expected}, from `{name}`",
            got=f"{got}, from its graph",
            fix=self._fix(name),
        )

    def _fix(self, name: str) -> str:
        if not all(bool(t.isfinite().all()) for t in self.tensors if t.is_floating_point()):
            return (
                "give an example of finite numbers: at NaN and infinity, ops that mean the same "
                "give different results"
            )
        return (
            f"look for what `{name}` uses besides its tensors: (1) a global or attribute that "
            "changes; (2) a random state of its own (`manual_seed`); (3) a value read outside "
            "PyTorch"
        )


# ---- inputs ----


def _drawn(tensor: Tensor, shape: Sequence[int], seed: int) -> Tensor:
    """A tensor of some shape, its elements drawn from those of `tensor` and moved a little."""
    return moved_a_little(in_order_of(tensor, like_given(tensor, shape, seed)), seed)


def _doubled(leaf: Any) -> Any:
    if not can_differ(leaf) or wide_of(leaf).dtype == leaf.dtype:
        return leaf
    with torch.enable_grad():
        wide = wide_of(leaf).requires_grad_(leaf.requires_grad)
        return wide if leaf.is_leaf else wide.clone()


def _require_values(name: str, tensors: Sequence[Tensor]) -> None:
    if any(tensor.is_meta for tensor in tensors):
        raise CaptureError(
            f"`{name}` must be captured with tensors that have values, to be compared with its "
            "graph",
            got="a tensor on the meta device",
            fix="pass tensors on the device where it will run",
        )


def _other_shapes(captured: Capture, own: Sequence[Tensor]) -> Iterator[list[tuple[int, ...]]]:
    """Up to two rows of other shapes that the graph serves; smaller ones, if the own are large.

    Integers keep their shape, and nothing becomes smaller that they may point into.
    """
    ways: list[Callable[[int], int]] = [lambda n: n + 1, lambda n: 2 * n, lambda n: 3 * n]
    if elements_of(_shapes(own)) > LARGE:
        ways = [lambda n: _fewer(n, 1), lambda n: _fewer(n, 2), _few_of_many, lambda n: n + 1]
        ways = ways[-1:] if any(map(is_index, own)) else ways
    found = 0
    for grow in ways:
        shapes = shapes_around_integers(captured, own, grow)
        if found == 2 or shapes == _shapes(own):
            continue
        drawn = [in_order_of(t, t.new_empty(s)) for t, s in zip(own, shapes, strict=True)]
        if captured.serves(drawn):
            found += 1
            yield shapes


def _fewer(size: int, times: int) -> int:
    """A small size for a large one that is divisible by the same small numbers."""
    return size if size < 24 * (times + 1) else 24 * times + size % 24


def _few_of_many(size: int) -> int:
    """A small size for a very large one: those of moderate size may be tied to each other."""
    return size if size < 1024 else _fewer(size, 3)


def _no_leaf(leaf: Tensor) -> Tensor:
    """`leaf` as a tensor that is none: a clone, or a view where that would lie otherwise."""
    is_alike = is_dense(leaf) and not leaf.storage_offset()
    return leaf.clone() if is_alike else leaf.view_as(leaf)


@contextmanager
def _unchanged(captured: Capture) -> Iterator[None]:
    """Put back what the program changes in tensors from outside it."""
    tensors = [captured.inputs[place].tensor for place, _ in captured.mutated]
    before = [(t, t.detach().clone()) for t in tensors if t is not None]
    try:
        yield
    finally:
        for tensor, values in before:
            tensor.detach().copy_(values)
