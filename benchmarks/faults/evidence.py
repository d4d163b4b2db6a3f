"""Ways to show that a fault is there: each returns `evidence(call, case)`, true when `call` has it.

The same evidence is tried on the case's reference, where it must be false; so none is empty.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import resource
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.checkpoint import checkpoint

from benchmarks.faults.case import Case

Call = Callable[..., Any]
Evidence = Callable[[Call, Case], bool]
Inputs = Callable[[], tuple[Any, ...]]
Cotangents = Callable[[Sequence[Tensor]], Sequence[Tensor]]

# ---- running a function ----


def tensors(tree: Any) -> list[Tensor]:
    """The tensors among nested values."""
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


def differentiable(outputs: Any) -> list[Tensor]:
    """The outputs that a cotangent can come back to."""
    return [output for output in tensors(outputs) if output.requires_grad]


def wanted(inputs: Sequence[Any]) -> list[Tensor]:
    """The inputs whose gradient is asked for."""
    return [value for value in tensors(inputs) if value.requires_grad]


def random_cotangents(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Standard normal cotangents of a fixed seed, dense."""
    generator = torch.Generator().manual_seed(1234)
    made = []
    for output in outputs:
        values = torch.randn(output.shape, generator=generator, dtype=torch.float64)
        if output.is_complex():
            other = torch.randn(output.shape, generator=generator, dtype=torch.float64)
            values = torch.complex(values, other)
        made.append(values.to(output.dtype))
    return made


def gradients(
    call: Call, inputs: Sequence[Any], cotangents: Cotangents = random_cotangents
) -> list[Tensor | None]:
    """The gradient of every input that requires one."""
    asked = wanted(inputs)
    outputs = differentiable(call(*inputs))
    if not outputs or not asked:
        return [None for _ in asked]
    given = cotangents(outputs)
    return list(torch.autograd.grad(outputs, asked, given, allow_unused=True))


def close(got: Tensor | None, want: Tensor | None, tolerance: float = 1e-4) -> bool:
    """Whether two gradients are the same; an absent one is zero."""
    if got is None or want is None:
        present = got if want is None else want
        return present is None or bool((present.detach() == 0).all())
    if got.shape != want.shape:
        return False
    kind = torch.complex128 if want.is_complex() or got.is_complex() else torch.float64
    got, want = got.detach().to(kind), want.detach().to(kind)
    finite = torch.isfinite(want)
    if not torch.equal(finite, torch.isfinite(got)):
        return False
    got, want = got[finite], want[finite]
    if not want.numel():
        return True
    error = (got - want).abs().max()
    return bool(error <= tolerance * want.abs().max().clamp(min=1e-12))


def same(got: Sequence[Any], want: Sequence[Any], tolerance: float = 1e-4) -> bool:
    """Whether two lists of gradients are the same."""
    pairs = zip(got, want, strict=False)
    return len(got) == len(want) and all(close(one, other, tolerance) for one, other in pairs)


# ---- wrong gradients ----


def differs(
    at: Inputs | None = None,
    cotangents: Cotangents = random_cotangents,
    *,
    tolerance: float = 1e-4,
    around: Callable[[], Any] | None = None,
) -> Evidence:
    """The gradients, or the outputs, at some inputs are not the reference's."""

    def evidence(call: Call, case: Case) -> bool:
        make = at or case.inputs
        expected = gradients(case.reference, make(), cotangents)  # type: ignore[arg-type]
        values = tensors(case.reference(*make()))  # type: ignore[misc]
        try:
            with around() if around else torch.enable_grad():
                got = gradients(call, make(), cotangents)
                outputs = tensors(call(*make()))
        except (Exception, SystemExit):
            return True
        return not same(got, expected, tolerance) or not same(outputs, values, tolerance)

    return evidence


def wrong_gradient(call: Call, case: Case) -> bool:
    """The gradients at the case's own inputs are not the reference's."""
    return differs()(call, case)


def wrong_against_double(at: Inputs, *, tolerance: float, ratio: float = 4.0) -> Evidence:
    """The error against float64 is above a tolerance, and above `ratio` times the reference's."""

    def evidence(call: Call, case: Case) -> bool:
        inputs = at()
        precise = tree_map(
            lambda leaf: (
                leaf.detach().double().requires_grad_(leaf.requires_grad)
                if isinstance(leaf, Tensor) and leaf.is_floating_point()
                else leaf
            ),
            inputs,
        )

        def given(outputs: Sequence[Tensor]) -> list[Tensor]:
            ones = [torch.ones_like(output) for output in outputs]
            return [one * 0.75 for one in ones]

        expected = gradients(case.reference, precise, given)  # type: ignore[arg-type]
        eager = gradients(case.reference, at(), given)  # type: ignore[arg-type]
        got = gradients(call, inputs, given)

        def error(values: Sequence[Tensor | None]) -> float:
            worst = 0.0
            for value, want in zip(values, expected, strict=True):
                if want is None:
                    continue
                have = torch.zeros_like(want) if value is None else value.double()
                if not torch.isfinite(have).all():
                    return float("inf")
                worst = max(worst, float((have - want).abs().max() / want.abs().max()))
            return worst

        return error(got) > max(tolerance, ratio * error(eager))

    return evidence


def nonlinear(scale: float = 100.0) -> Evidence:
    """Scaling the cotangent does not scale the gradients."""

    def evidence(call: Call, case: Case) -> bool:
        def scaled(outputs: Sequence[Tensor]) -> list[Tensor]:
            return [cotangent * scale for cotangent in random_cotangents(outputs)]

        one = gradients(call, case.inputs())
        many = gradients(call, case.inputs(), scaled)
        return not same(many, [None if grad is None else grad * scale for grad in one])

    return evidence


# ---- layouts of cotangents ----


def transposed(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Cotangents with the strides of a transposed tensor."""
    made = []
    for cotangent in random_cotangents(outputs):
        order = list(range(cotangent.dim()))[::-1]
        made.append(cotangent.permute(order).contiguous().permute(order))
    return made


def sliced(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Cotangents that are every other column of a wider tensor, as after `torch.cat`."""
    made = []
    for cotangent in random_cotangents(outputs):
        wide = torch.full((*cotangent.shape, 2), 7.0, dtype=cotangent.dtype)
        wide[..., 1] = cotangent
        made.append(wide[..., 1])
    return made


def offset(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Dense cotangents that start in the middle of their storage."""
    made = []
    for cotangent in random_cotangents(outputs):
        flat = torch.full((cotangent.numel() + 3,), 7.0, dtype=cotangent.dtype)
        flat[3:] = cotangent.flatten()
        made.append(flat[3:].view(cotangent.shape))
    return made


def expanded(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Cotangents of stride 0, as `sum().backward()` sends."""
    return [torch.tensor(1.5, dtype=output.dtype).expand(output.shape) for output in outputs]


def channels_last(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Cotangents in the channels-last memory format."""
    made = random_cotangents(outputs)
    return [item.contiguous(memory_format=torch.channels_last) for item in made]


def scaled_by(factor: float) -> Cotangents:
    """Random cotangents times a factor."""
    return lambda outputs: [cotangent * factor for cotangent in random_cotangents(outputs)]


def ones(outputs: Sequence[Tensor]) -> list[Tensor]:
    """Cotangents of ones, dense."""
    return [torch.ones_like(output) for output in outputs]


def only(index: int) -> Evidence:
    """The gradients are wrong, or fail, when one output alone is used."""

    def evidence(call: Call, case: Case) -> bool:
        def use(function: Call) -> list[Tensor | None]:
            inputs = case.inputs()
            output = tensors(function(*inputs))[index]
            cotangent = random_cotangents([output])
            return list(torch.autograd.grad([output], wanted(inputs), cotangent, allow_unused=True))

        expected = use(case.reference)  # type: ignore[arg-type]
        try:
            return not same(use(call), expected)
        except Exception:
            return True

    return evidence


# ---- mutation and aliasing ----


def mutates_inputs(at: Inputs | None = None) -> Evidence:
    """A forward and a backward leave an input other than it was."""

    def evidence(call: Call, case: Case) -> bool:
        inputs = (at or case.inputs)()
        before = [value.detach().clone() for value in tensors(inputs)]
        outputs = differentiable(call(*inputs))
        if outputs:
            torch.autograd.backward(outputs, random_cotangents(outputs))
        after = tensors(inputs)
        return not all(map(torch.equal, [item.detach() for item in after], before))

    return evidence


def mutates_cotangents(cotangents: Cotangents = random_cotangents) -> Evidence:
    """A backward leaves a cotangent other than it was."""

    def evidence(call: Call, case: Case) -> bool:
        inputs = case.inputs()
        outputs = differentiable(call(*inputs))
        given = list(cotangents(outputs))
        before = [cotangent.clone() for cotangent in given]
        torch.autograd.grad(outputs, wanted(inputs), given, allow_unused=True)
        return not all(map(torch.equal, given, before))

    return evidence


def mutates_outputs(call: Call, case: Case) -> bool:
    """A backward leaves an output other than it was."""
    inputs = case.inputs()
    outputs = differentiable(call(*inputs))
    before = [output.detach().clone() for output in outputs]
    torch.autograd.grad(outputs, wanted(inputs), random_cotangents(outputs), allow_unused=True)
    return not all(map(torch.equal, [output.detach() for output in outputs], before))


def touches_grad_field(call: Call, case: Case) -> bool:
    """The `.grad` field of an input is not what was there plus the gradient."""
    expected = gradients(case.reference, case.inputs())  # type: ignore[arg-type]
    inputs = case.inputs()
    for value in wanted(inputs):
        value.grad = torch.ones_like(value)
    outputs = differentiable(call(*inputs))
    torch.autograd.backward(outputs, random_cotangents(outputs))
    fields = [value.grad for value in wanted(inputs)]
    return not same(fields, [1 + (0 if grad is None else grad) for grad in expected])


def aliases_input(call: Call, case: Case) -> bool:
    """An output shares memory with an input, or forbids what can be done to a fresh tensor."""
    inputs = [item.detach().clone() if isinstance(item, Tensor) else item for item in case.inputs()]
    outputs = tensors(call(*inputs))
    memory = {value.untyped_storage().data_ptr() for value in tensors(inputs)}
    if any(output.untyped_storage().data_ptr() in memory for output in outputs):
        return True
    return refuses_edit(call, case)


def aliases_output(call: Call, case: Case) -> bool:
    """Two outputs share memory."""
    outputs = tensors(call(*case.inputs()))
    memory = [output.untyped_storage().data_ptr() for output in outputs]
    return len(set(memory)) < len(memory)


def refuses_edit(call: Call, case: Case) -> bool:
    """An output cannot be edited in place, although the reference's can."""
    try:
        for output in differentiable(call(*case.inputs())):
            output.mul_(2)
    except RuntimeError:
        return True
    return False


def wrong_after_edit(edit: Callable[[Sequence[Any], Sequence[Tensor]], None]) -> Evidence:
    """Editing something between forward and backward gives a wrong gradient and no error."""

    def evidence(call: Call, case: Case) -> bool:
        expected = gradients(case.reference, case.inputs())  # type: ignore[arg-type]
        inputs = case.inputs()
        outputs = differentiable(call(*inputs))
        with torch.no_grad():
            edit(inputs, outputs)
        try:
            got = torch.autograd.grad(
                outputs, wanted(inputs), random_cotangents(outputs), allow_unused=True
            )
        except RuntimeError as error:
            return "modified by an inplace operation" not in str(error)
        return not same(list(got), expected)

    return evidence


def aliased_gradients(call: Call, case: Case) -> bool:
    """Two gradients, or a gradient and a saved tensor, are one piece of memory."""
    inputs = case.inputs()
    outputs = differentiable(call(*inputs))
    given = random_cotangents(outputs)
    got = torch.autograd.grad(outputs, wanted(inputs), given, allow_unused=True)
    memory = [item.untyped_storage().data_ptr() for item in got if item is not None]
    others = {item.untyped_storage().data_ptr() for item in [*tensors(inputs), *outputs]}
    return len(set(memory)) < len(memory) or bool(others & set(memory))


def marked_dirty_but_fresh(call: Call, case: Case) -> bool:
    """An input's version moves although its values do not."""
    inputs = [value.clone() if isinstance(value, Tensor) else value for value in case.inputs()]
    before = [(value._version, value.detach().clone()) for value in tensors(inputs)]
    try:
        call(*inputs)
    except RuntimeError:
        return True
    pairs = zip(tensors(inputs), before, strict=True)
    return any(
        value._version != version and torch.equal(value.detach(), old)
        for value, (version, old) in pairs
    )


# ---- what backward returns ----


def raw_gradients(call: Call, inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The node of the first output, and what its backward returns before the engine repairs it."""
    outputs = differentiable(call(*inputs))
    node = outputs[0].grad_fn
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return node, []
    returned = node.apply(*random_cotangents(outputs))
    return node, list(returned) if isinstance(returned, tuple) else [returned]


def needs_repair(at: Inputs | None = None) -> Evidence:
    """Backward returns a gradient of another shape or dtype than its input's."""

    def evidence(call: Call, case: Case) -> bool:
        inputs = (at or case.inputs)()
        node, returned = raw_gradients(call, inputs)
        if not isinstance(node, torch.autograd.function.BackwardCFunction):
            return False
        pairs = zip(returned, node.next_functions, strict=True)
        for gradient, (target, _) in pairs:
            variable = getattr(target, "variable", None)
            if gradient is None or variable is None:
                continue
            if gradient.shape != variable.shape or gradient.dtype != variable.dtype:
                return True
        return False

    return evidence


def fails(at: Inputs | None = None, around: Callable[[], Any] | None = None) -> Evidence:
    """Forward or backward raises where the reference does not."""

    def evidence(call: Call, case: Case) -> bool:
        gradients(case.reference, (at or case.inputs)())  # type: ignore[arg-type]
        try:
            with around() if around else torch.enable_grad():
                gradients(call, (at or case.inputs)())
        except (Exception, SystemExit):
            return True
        return False

    return evidence


def accepts(at: Inputs) -> Evidence:
    """Input that the reference refuses goes through."""

    def evidence(call: Call, case: Case) -> bool:
        try:
            gradients(call, at())
        except Exception:
            return False
        return True

    return evidence


def needs_grad_but_cannot(index: int) -> Evidence:
    """An output that no gradient can come from says that it requires grad."""

    def evidence(call: Call, case: Case) -> bool:
        return bool(tensors(call(*case.inputs()))[index].requires_grad)

    return evidence


def does_not_require_grad(index: int = 0) -> Evidence:
    """An output that depends on the inputs says that it needs no gradient."""

    def evidence(call: Call, case: Case) -> bool:
        return not tensors(call(*case.inputs()))[index].requires_grad

    return evidence


# ---- saved tensors and memory ----


@contextmanager
def hooked(packed: list[Any], unpacked: list[Any]) -> Iterator[None]:
    """Record what is saved in forward and what is read again."""

    def pack(value: Tensor) -> tuple[int, Tensor]:
        packed.append(value)
        return len(packed) - 1, value

    def unpack(item: tuple[int, Tensor]) -> Tensor:
        unpacked.append(item[0])
        return item[1]

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield


def saves_unread(call: Call, case: Case) -> bool:
    """A saved tensor has no influence: poisoning it changes no gradient."""
    counts: list[Any] = []
    with hooked(counts, []):
        call(*case.inputs())
    expected = gradients(call, case.inputs())
    for spared in range(len(counts)):
        seen: list[int] = []

        def pack(value: Tensor, seen: list[int] = seen, spared: int = spared) -> Tensor:
            seen.append(1)
            return torch.full_like(value, 3) if len(seen) - 1 == spared else value

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
            try:
                got = gradients(call, case.inputs())
            except Exception:
                continue
        if same(got, expected, 1e-9):
            return True
    return False


def bytes_saved(call: Call, inputs: Sequence[Any]) -> int:
    """Bytes kept for backward that are not an input's or an output's."""
    packed: list[Tensor] = []
    with hooked(packed, []):
        outputs = call(*inputs)
    known = {item.untyped_storage().data_ptr() for item in [*tensors(inputs), *tensors(outputs)]}
    sizes = {item.untyped_storage().data_ptr(): item.untyped_storage().nbytes() for item in packed}
    return sum(size for place, size in sizes.items() if place not in known)


def saves_more_than(count: int) -> Evidence:
    """More bytes than `count` are kept for backward beside the inputs and outputs."""

    def evidence(call: Call, case: Case) -> bool:
        return bytes_saved(call, case.inputs()) > count

    return evidence


def leaks(after_backward: bool = True) -> Evidence:
    """The node outlives its outputs when nobody collects garbage."""

    def evidence(call: Call, case: Case) -> bool:
        gc.disable()
        try:
            inputs = case.inputs()
            # A fresh copy: an output that is also an input would be held by the caller.
            copies = [item.clone() if isinstance(item, Tensor) else item for item in inputs]
            outputs = differentiable(call(*copies))
            watched = [weakref.ref(output) for output in outputs]
            watched += [weakref.ref(item) for item in tensors(copies)]
            if after_backward:
                torch.autograd.grad(
                    outputs, wanted(inputs), random_cotangents(outputs), allow_unused=True
                )
            del outputs, copies
            return any(item() is not None for item in watched)
        finally:
            gc.enable()

    return evidence


def keeps_after_backward(call: Call, case: Case) -> bool:
    """Tensors live on after backward, while the output is still there."""
    inputs = case.inputs()
    copies = [item.clone() if isinstance(item, Tensor) else item for item in inputs]
    outputs = differentiable(call(*copies))
    torch.autograd.grad(outputs, wanted(inputs), random_cotangents(outputs), allow_unused=True)
    watched = [weakref.ref(item) for item in tensors(copies)]
    del copies
    return any(item() is not None for item in watched)


def hides_from_hooks(call: Call, case: Case) -> bool:
    """Tensors that backward reads do not pass the saved-tensor hooks."""
    packed: list[Any] = []
    with hooked(packed, []):
        call(*case.inputs())
    return not packed


def wrong_twice(call: Call, case: Case) -> bool:
    """A second backward through the same graph gives something else, or fails."""
    inputs = case.inputs()
    outputs = differentiable(call(*inputs))
    given = random_cotangents(outputs)
    first = torch.autograd.grad(
        outputs, wanted(inputs), given, retain_graph=True, allow_unused=True
    )
    kept = [None if grad is None else grad.clone() for grad in first]
    try:
        again = torch.autograd.grad(outputs, wanted(inputs), given, allow_unused=True)
    except Exception:
        return True
    return not same(list(again), kept)


# ---- state, order, threads, random numbers ----


def wrong_when_interleaved(other: Inputs | None = None) -> Evidence:
    """A second forward between forward and backward changes the gradient."""

    def evidence(call: Call, case: Case) -> bool:
        expected = gradients(case.reference, case.inputs())  # type: ignore[arg-type]
        inputs = case.inputs()
        outputs = differentiable(call(*inputs))
        call(*(other() if other else shifted(case.inputs())))
        try:
            got = torch.autograd.grad(
                outputs, wanted(inputs), random_cotangents(outputs), allow_unused=True
            )
        except Exception:
            return True
        return not same(list(got), expected)

    return evidence


def shifted(inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Other inputs of the same shapes."""
    return tuple(
        (item.detach() * 0.5 + 0.3).requires_grad_(item.requires_grad)
        if isinstance(item, Tensor) and (item.is_floating_point() or item.is_complex())
        else item
        for item in inputs
    )


def wrong_on_repeat(times: int = 3) -> Evidence:
    """The same call again, on the same inputs, gives another gradient."""

    def evidence(call: Call, case: Case) -> bool:
        expected = gradients(case.reference, case.inputs())  # type: ignore[arg-type]
        return not all(same(gradients(call, case.inputs()), expected) for _ in range(times))

    return evidence


def wrong_in_thread(call: Call, case: Case) -> bool:
    """A backward that runs in another thread than its forward is wrong or fails."""
    expected = gradients(case.reference, case.inputs())  # type: ignore[arg-type]
    inputs = case.inputs()
    outputs = differentiable(call(*inputs))
    found: list[bool] = []

    def work() -> None:
        try:
            got = torch.autograd.grad(
                outputs, wanted(inputs), random_cotangents(outputs), allow_unused=True
            )
            found.append(not same(list(got), expected))
        except Exception:
            found.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return found[0]


def wrong_from_threads(call: Call, case: Case) -> bool:
    """Another thread that makes a whole call in between, before any one op, changes the gradients.

    Every place is tried in turn, so the answer does not hang on how the system runs the threads.
    """
    expected = gradients(case.reference, case.inputs())  # type: ignore[arg-type]

    def meanwhile() -> None:
        gradients(call, shifted(case.inputs()))

    for place in range(1000):
        with _Interrupted(place, meanwhile) as mode:
            got = gradients(call, case.inputs())
        if not same(got, expected):
            return True
        if mode.ops <= place:  # the call has no op there: all places were tried
            return False
    raise AssertionError("a call of more than 1,000 ops")


class _Interrupted(TorchDispatchMode):
    """Before the op at one place, something else runs to its end in another thread."""

    def __init__(self, place: int, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self.ops = 0
        self._place = place
        self._meanwhile = meanwhile

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if self.ops == self._place:
            thread = threading.Thread(target=self._meanwhile)
            thread.start()
            thread.join()
        self.ops += 1
        return func(*args, **kwargs or {})


def draws_in_backward(call: Call, case: Case) -> bool:
    """Backward moves the global generator."""
    torch.manual_seed(0)
    inputs = case.inputs()
    outputs = differentiable(call(*inputs))
    before = torch.get_rng_state()
    torch.autograd.grad(outputs, wanted(inputs), random_cotangents(outputs), allow_unused=True)
    return not torch.equal(before, torch.get_rng_state())


def varies(call: Call, case: Case) -> bool:
    """Backward through one graph gives different gradients from time to time."""
    inputs = case.inputs()
    outputs = differentiable(call(*inputs))
    given = random_cotangents(outputs)
    seen = [
        torch.autograd.grad(outputs, wanted(inputs), given, retain_graph=True, allow_unused=True)
        for _ in range(8)
    ]
    return not all(same(list(item), list(seen[0]), 1e-9) for item in seen)


def wrong_under_checkpoint(call: Call, case: Case) -> bool:
    """Under checkpoint, which runs forward again, the gradient is not that of the output."""

    def run(function: Call) -> tuple[list[Tensor], list[Tensor | None]]:
        torch.manual_seed(0)
        inputs = case.inputs()
        outputs = differentiable(function(*inputs))
        values = [output.detach().clone() for output in outputs]
        given = random_cotangents(outputs)
        return values, list(torch.autograd.grad(outputs, wanted(inputs), given, allow_unused=True))

    plain = run(call)
    try:
        again = run(lambda *inputs: checkpoint(call, *inputs, use_reentrant=False))
    except Exception:
        return True
    if not same(plain[0], again[0], 1e-6):
        return True
    return not same(plain[1], again[1])


def random_state_moves_gradient(call: Call, case: Case) -> bool:
    """With one seed for the forward, the gradient depends on what is drawn before backward."""

    def run(extra: int) -> list[Tensor | None]:
        torch.manual_seed(0)
        inputs = case.inputs()
        outputs = differentiable(call(*inputs))
        torch.rand(extra)
        given = random_cotangents(outputs)
        return list(torch.autograd.grad(outputs, wanted(inputs), given, allow_unused=True))

    return not same(run(0), run(5))


# ---- second order ----


def second_order(call: Call, inputs: Sequence[Any]) -> list[Tensor | None]:
    """Gradients, with respect to inputs and cotangents, of a fixed sum of the gradients."""
    outputs = differentiable(call(*inputs))
    given = [cotangent.requires_grad_() for cotangent in random_cotangents(outputs)]
    leaves = [*wanted(inputs), *given]
    first = torch.autograd.grad(
        outputs, wanted(inputs), given, create_graph=True, allow_unused=True
    )
    useful = [grad for grad in first if grad is not None and grad.requires_grad]
    if not useful:
        return [None for _ in leaves]
    again = random_cotangents(useful)
    return list(torch.autograd.grad(useful, leaves, again, allow_unused=True))


def second_differs(at: Inputs | None = None) -> Evidence:
    """The second derivative is not the reference's; a refusal is no wrong derivative."""

    def evidence(call: Call, case: Case) -> bool:
        make = at or case.inputs
        expected = second_order(case.reference, make())  # type: ignore[arg-type]
        try:
            return not same(second_order(call, make()), expected)
        except Exception as error:
            return "once_differentiable" not in str(error)

    return evidence


# ---- transforms ----


def jvp_differs(at: Inputs | None = None, scale: float = 1.0) -> Evidence:
    """The forward-mode derivative is not the reference's."""

    def evidence(call: Call, case: Case) -> bool:
        inputs = tuple(
            item.detach() if isinstance(item, Tensor) else item for item in (at or case.inputs)()
        )
        places = [
            place
            for place, item in enumerate(inputs)
            if isinstance(item, Tensor) and (item.is_floating_point() or item.is_complex())
        ]
        points = tuple(inputs[place] for place in places)
        tangents = tuple(item * scale for item in random_cotangents(points))

        def run(function: Call) -> list[Tensor]:
            def of_points(*values: Tensor) -> Any:
                full = list(inputs)
                for place, value in zip(places, values, strict=True):
                    full[place] = value
                return function(*full)

            return tensors(torch.func.jvp(of_points, points, tangents)[1])

        expected = run(case.reference)  # type: ignore[arg-type]
        try:
            return not same(run(call), expected)
        except Exception:
            return True

    return evidence


def vmap_differs(
    batches: Inputs, in_dims: Any = 0, *, gradient: bool = False, **options: Any
) -> Evidence:
    """Under `torch.vmap` the outputs, or the gradients, are not those of a loop."""

    def evidence(call: Call, case: Case) -> bool:
        def run(function: Call) -> list[Tensor]:
            inputs = batches()
            outputs = torch.vmap(function, in_dims=in_dims, **options)(*inputs)
            if gradient:
                made = differentiable(outputs)
                given = random_cotangents(made)
                return list(torch.autograd.grad(made, wanted(inputs), given))
            return tensors(outputs)

        expected = run(case.reference)  # type: ignore[arg-type]
        try:
            return not same(run(call), expected)
        except Exception:
            return True

    return evidence


def compile_differs(
    at: Inputs | None = None, *, then: Inputs | None = None, dynamic: bool | None = None
) -> Evidence:
    """Under `torch.compile` the gradients are not eager's, at once or at a second call."""

    def evidence(call: Call, case: Case) -> bool:
        torch.compiler.reset()
        try:
            compiled = torch.compile(
                lambda *inputs: call(*inputs), backend="aot_eager", dynamic=dynamic
            )
            for make in [at or case.inputs, then or at or case.inputs]:
                expected = gradients(case.reference, make())  # type: ignore[arg-type]
                values = tensors(case.reference(*make()))  # type: ignore[misc]
                got = gradients(compiled, make())
                if not same(got, expected) or not same(tensors(compiled(*make())), values):
                    return True
        except Exception:
            return True
        finally:
            torch.compiler.reset()
        return False

    return evidence


def breaks_graph(call: Call, case: Case) -> bool:
    """`torch.compile(fullgraph=True)` does not accept the function."""
    torch.compiler.reset()
    try:
        compiled = torch.compile(lambda *inputs: call(*inputs), backend="aot_eager", fullgraph=True)
        gradients(compiled, case.inputs())
    except Exception:
        return True
    finally:
        torch.compiler.reset()
    return False


def autocast_differs(tolerance: float = 0.05, at: Inputs | None = None) -> Evidence:
    """Under bfloat16 autocast the gradients fail, change dtype, or are far from float32's."""

    def evidence(call: Call, case: Case) -> bool:
        make = at or case.inputs
        expected = gradients(case.reference, make())  # type: ignore[arg-type]
        inputs = make()
        try:
            with torch.autocast("cpu", torch.bfloat16):
                outputs = differentiable(call(*inputs))
            given = random_cotangents(outputs)
            got = torch.autograd.grad(outputs, wanted(inputs), given, allow_unused=True)
        except Exception:
            return True
        return not same(list(got), expected, tolerance)

    return evidence


class Boxed(Tensor):
    """A wrapper subclass: a tensor without memory of its own that holds another."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Boxed:
        made = Tensor._make_wrapper_subclass(
            cls, inner.shape, strides=inner.stride(), dtype=inner.dtype, device=inner.device
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Boxed({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        def open_box(leaf: Any) -> Any:
            return leaf.inner if isinstance(leaf, Boxed) else leaf

        def close_box(leaf: Any) -> Any:
            return Boxed(leaf) if isinstance(leaf, Tensor) else leaf

        result = function(*tree_map(open_box, args), **tree_map(open_box, kwargs or {}))
        return tree_map(close_box, result)


def wrong_for_subclass(call: Call, case: Case) -> bool:
    """A wrapper subclass as input is refused, or the gradient is not one."""

    def run(function: Call) -> list[Tensor | None]:
        inputs = tuple(
            Boxed(item.detach()).requires_grad_(item.requires_grad)
            if isinstance(item, Tensor)
            else item
            for item in case.inputs()
        )
        outputs = differentiable(function(*inputs))
        given = [Boxed(item) for item in random_cotangents([out.inner for out in outputs])]  # type: ignore[attr-defined]
        got = torch.autograd.grad(outputs, wanted(inputs), given, allow_unused=True)
        return [None if item is None else item.inner for item in got]  # type: ignore[attr-defined]

    expected = run(case.reference)  # type: ignore[arg-type]
    try:
        return not same(run(call), expected)
    except Exception:
        return True


def wrong_when_refilled(index: int) -> Evidence:
    """An input whose storage is poisoned after forward and refilled elsewhere is read stale."""

    def evidence(call: Call, case: Case) -> bool:
        expected = gradients(case.reference, case.inputs())  # type: ignore[arg-type]
        inputs = case.inputs()
        outputs = differentiable(call(*inputs))
        values = inputs[index].detach().clone()
        old = inputs[index].data
        inputs[index].data = values
        old.fill_(torch.nan)
        try:
            got = torch.autograd.grad(
                outputs, wanted(inputs), random_cotangents(outputs), allow_unused=True
            )
        except Exception:
            return True
        return not same(list(got), expected)

    return evidence


def wrong_without_grad(mode: Callable[[], Any] = torch.no_grad) -> Evidence:
    """Under `no_grad` or inference mode forward fails, or gives something else."""

    def evidence(call: Call, case: Case) -> bool:
        expected = tensors(case.reference(*case.inputs()))  # type: ignore[misc]
        try:
            with mode():
                got = tensors(call(*case.inputs()))
        except Exception:
            return True
        return not same(got, expected)

    return evidence


# ---- memory that nobody wrote ----


@contextmanager
def poisoned() -> Iterator[None]:
    """Fresh memory is NaN instead of whatever was there."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


def reads_unwritten(at: Inputs | None = None) -> Evidence:
    """With fresh memory poisoned, gradients or outputs change."""
    return differs(at, around=poisoned)


# ---- cost ----


class Work(TorchDispatchMode):
    """Counts the numbers that operators write, and the operators."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0
        self.operators = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        self.operators += 1
        self.numbers += sum(item.numel() for item in tensors(result))
        return result


def work_of(call: Call, inputs: Sequence[Any]) -> tuple[Work, Work]:
    """The work of forward and of backward."""
    forward, backward = Work(), Work()
    with forward:
        outputs = differentiable(call(*inputs))
    given = random_cotangents(outputs)
    with backward:
        torch.autograd.grad(outputs, wanted(inputs), given, allow_unused=True)
    return forward, backward


def works_for_nobody(frozen: int) -> Evidence:
    """Freezing an input saves no work in backward."""

    def evidence(call: Call, case: Case) -> bool:
        everything = case.inputs()
        less = list(case.inputs())
        less[frozen] = less[frozen].detach()
        whole, part = work_of(call, everything)[1], work_of(call, less)[1]
        return part.numbers >= whole.numbers

    return evidence


def grows_faster(small: Inputs, large: Inputs, factor: float = 2.5) -> Evidence:
    """From small to large inputs the work of backward grows more than forward's."""

    def evidence(call: Call, case: Case) -> bool:
        (forward, backward), (wide, long) = work_of(call, small()), work_of(call, large())
        numbers = long.numbers / backward.numbers > factor * wide.numbers / forward.numbers
        operators = (
            long.operators / backward.operators > factor * wide.operators / forward.operators
        )
        return numbers or operators

    return evidence


# ---- processes that die ----


def dies(at: Inputs, cotangents: Cotangents = random_cotangents, seconds: float = 20.0) -> Evidence:
    """In a process of its own, with four gigabytes, the gradients are never computed."""

    def evidence(call: Call, case: Case) -> bool:
        child = os.fork()
        if child == 0:
            _limit_memory(2**32)
            # Whatever happens here, the child ends here: it is a copy of the caller.
            try:
                faulthandler.disable()
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
                gradients(call, at(), cotangents)
                os._exit(0)
            finally:
                os._exit(1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return status != 0
            time.sleep(0.01)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        return True

    return evidence


def _limit_memory(count: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + count
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def hangs(at: Inputs, seconds: float = 1.0) -> Evidence:
    """Backward is still running after some seconds."""

    def evidence(call: Call, case: Case) -> bool:
        def stop(*_: Any) -> None:
            raise TimeoutError

        before = signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            gradients(call, at())
        except TimeoutError:
            return True
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        return False

    return evidence


def either(*several: Evidence) -> Evidence:
    """Any of several."""
    return lambda call, case: any(evidence(call, case) for evidence in several)
