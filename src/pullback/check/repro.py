"""A repro: a few lines that run without us, and fail.

Each form below writes a program; the first one that fails when it is tried here is the repro. A
wrong gradient is held against the slope of forward itself, so that nobody's word has to be taken;
where a slope is not sharp enough, against the number that the check found. A result that changes
with the layout or the dtype is held against the dense or the float64 one.
"""

from __future__ import annotations

import builtins
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.check.example import Example, can_differ
from pullback.check.finding import Finding
from pullback.check.inputs.layouts import LAYOUTS
from pullback.check.mismatch import Mismatch, index_of
from pullback.check.run import Run, cotangent_of, seeded
from pullback.check.spelling import LARGEST, UnspeakableError, imported, spelled

if TYPE_CHECKING:
    from pullback.check.subject import Subject

Form = Callable[["_Scene"], str]

GROUPS = ("gradient", "shape", "layout", "dtype", "domain", "contract")

_NAME = re.compile(r"gradient of `([^`]+)`")
_RAISED = re.compile(r"^[A-Za-z_.]*(?:Error|Exception|Warning|Interrupt)\b")
_OUTPUTS = re.compile(r"only (output \d+(?: and output \d+)*) of the outputs used")
_NEEDED = re.compile(r"when only ((?:`[^`]+`(?:, )?)+)")


def repro_of(subject: Subject, finding: Finding, example: Example | None) -> str:
    """The repro of a finding at `example`, or nothing where none of the forms fails."""
    if finding.rule.group not in GROUPS:
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _first(subject, finding, example)
    except Exception:  # the finding stands without a repro
        return ""


def _first(subject: Subject, finding: Finding, example: Example | None) -> str:
    head, call = imported(subject.target)
    where = subject.small_given if example is None else example
    for variant, codes in _spellable(where, is_free=finding.rule.group != "domain"):
        scene = _scene(subject, finding, variant, call, codes)
        if scene is None:
            continue
        for form in _forms(finding):
            body = _written(form, scene)
            if body and _fails(body, scene):
                return "\n".join(["import torch", *([head] if head else []), "", body])
    return ""


def _written(form: Form, scene: _Scene) -> str:
    try:
        return form(scene)
    except UnspeakableError:
        return ""


# ---- what a repro is made of ----


@dataclass(frozen=True, slots=True)
class _Scene:
    """A call to show: its arguments as code, its outputs, and what was found there."""

    subject: Subject
    finding: Finding
    example: Example
    run: Run
    call: str
    names: tuple[str, ...]
    needed: tuple[int, ...]
    used: tuple[int, ...]
    is_random: bool
    codes: dict[int, str]

    @property
    def name(self) -> str:
        """The input whose gradient is wrong; empty where none is named."""
        found = _NAME.search(self.finding.at)
        return found.group(1) if found else ""

    @property
    def position(self) -> int:
        """The place of that input."""
        return self.run.names.index(self.name)

    @property
    def arguments(self) -> str:
        """The arguments of the call, as code; clones where forward writes into them."""
        clone = ".clone()" if self.subject.writes_inputs else ""
        args = self.example.args
        first = [next(j for j in range(i + 1) if args[j] is args[i]) for i in range(len(args))]
        names = [self.names[j if isinstance(args[j], Tensor) else i] for i, j in enumerate(first)]
        pairs = zip(names, args, strict=True)
        return ", ".join(f"{name}{clone}" if can_differ(arg) else name for name, arg in pairs)

    def settings(self, *, leaves: bool = True) -> list[str]:
        """The lines that make the arguments."""
        lines = []
        for i, (name, arg) in enumerate(zip(self.names, self.example.args, strict=False)):
            twin = next((j for j in range(i) if self.example.args[j] is arg), None)
            needs = ".requires_grad_()" if leaves and i in self.needed else ""
            is_twin = twin is not None and isinstance(arg, Tensor)
            if is_twin:
                lines.append(f"{name} = {self.names[twin or 0]}")
                continue
            code = self.codes.get(i) or spelled(arg)
            lines.append(f"{name} = {code}{needs}")
        return lines

    def cotangents(self) -> list[Tensor]:
        """A cotangent for each output in use."""
        found = [cotangent_of(self.run.outputs[i], 1000 * i) for i in self.used]
        return [_short(c) for c in found if c is not None]

    def result(self) -> tuple[list[str], str]:
        """The lines that call, and the expression of the sum of outputs times cotangents."""
        seed = ["torch.manual_seed(0)"] if self.is_random else []
        if isinstance(self.run.result, Tensor):
            total = _product("out", "g", self.run.result)
            return [*seed, f"out = {self.call}({self.arguments})"], total
        lines = [f"outs = {self.call}({self.arguments})"]
        parts = [_product(f"outs[{i}]", f"g{i}", self.run.outputs[i]) for i in self.used]
        return [*seed, *lines], " + ".join(parts)

    def weights(self) -> list[str]:
        """The lines that make the cotangents."""
        is_one = isinstance(self.run.result, Tensor)
        pairs = zip(self.used, self.cotangents(), strict=True)
        return [f"{'g' if is_one else f'g{i}'} = {_spelled(c)}" for i, c in pairs]


def _product(output: str, cotangent: str, value: Tensor) -> str:
    """The real number whose gradient is the pull of a cotangent."""
    if value.is_complex():
        return f"({output} * {cotangent}.conj()).sum().real"
    return f"({output} * {cotangent}).sum()"


def _scene(
    subject: Subject, finding: Finding, example: Example, call: str, codes: dict[int, str]
) -> _Scene | None:
    needed = tuple(sorted(example.needs))
    chosen = _NEEDED.search(finding.at)
    if chosen:
        wanted = re.findall(r"`([^`]+)`", chosen.group(1))
        needed = tuple(i for i in needed if subject.names[i] in wanted)
    run = subject.run(example, needs=needed)
    if not isinstance(run.result, (Tensor, tuple, list)):
        return None
    if not isinstance(run.result, Tensor) and any(not isinstance(o, Tensor) for o in run.result):
        return None
    used = run.live
    told = _OUTPUTS.search(finding.at)
    if told:
        used = tuple(int(i) for i in re.findall(r"\d+", told.group(1)))
    names = tuple(_identifier(name, i) for i, name in enumerate(subject.names))
    is_random = _is_random(subject, example)
    return _Scene(subject, finding, example, run, call, names, needed, used, is_random, codes)


def _identifier(name: str, position: int) -> str:
    """A name for an argument that nothing else in a repro has."""
    taken = ("g", "out", "outs", "loss", "step", "slope", "got", "expected", "torch", "sys")
    is_free = name.isidentifier() and name not in taken and not hasattr(builtins, name)
    return name if is_free else f"arg{position}"


def _is_random(subject: Subject, example: Example) -> bool:
    found = []
    for seed in (1, 2):
        with torch.no_grad(), seeded(seed):
            out = subject.target.call(*example.fresh(needs=frozenset()))
        found.append(out)
    first, second = (o if isinstance(o, Tensor) else o[0] for o in found)
    return first.shape != second.shape or not torch.equal(first, second)


def _short(cotangent: Tensor) -> Tensor:
    """The cotangent, or one that can be spelled where it is large."""
    if cotangent.numel() <= LARGEST or cotangent.is_complex():
        return cotangent
    return _ramp(cotangent)


def _ramp(like: Tensor) -> Tensor:
    steps = torch.arange(like.numel(), device=like.device) % 7 - 3.25
    return steps.reshape(like.shape).to(like.dtype)


def _spelled(cotangent: Tensor) -> str:
    if cotangent.numel() <= LARGEST:
        return spelled(cotangent)
    kind = "" if cotangent.dtype == torch.float32 else f".to({cotangent.dtype})"
    shape = tuple(cotangent.shape)
    return f"(torch.arange({cotangent.numel()}) % 7 - 3.25).reshape({shape}){kind}"


def _spellable(example: Example, *, is_free: bool) -> Iterator[tuple[Example, dict[int, str]]]:
    """The example with short numbers where its values do not matter, then as it is.

    With it comes the code of each large argument, which is drawn.
    """
    large = [i for i in example.differentiable if example.args[i].numel() > LARGEST]
    if is_free:
        seen: dict[int, Tensor] = {}
        yield example.map(lambda t: seen.setdefault(id(t), _rounded(t)), example.label), {}
    yield example, {}
    codes = {i: _drawing(example.args[i], seed) for seed, i in enumerate(large)}
    for i, code in codes.items():
        example = example.put(i, eval(code, {"torch": torch}), example.label)
    if codes:
        yield example, codes


def _drawing(tensor: Tensor, seed: int) -> str:
    """The code of a tensor like this one, of random numbers."""
    generator = f"torch.Generator().manual_seed({seed})"
    return f"torch.randn({tuple(tensor.shape)}, dtype={tensor.dtype}, generator={generator})"


def _rounded(tensor: Tensor) -> Tensor:
    """Values of two decimals, in the same layout."""
    if not can_differ(tensor) or tensor.is_complex() or not bool(torch.isfinite(tensor).all()):
        return tensor
    copy = tensor.detach().clone(memory_format=torch.preserve_format)
    return copy.copy_((copy.double() * 100).round() / 100)


# ---- forms ----


def _forms(finding: Finding) -> Sequence[Form]:
    if _RAISED.match(finding.got):
        return (_raises, _raises_for_layout)
    if finding.rule.name == "cotangent-layout":
        return (_cotangent_layout,)
    if finding.rule.group == "layout":
        return (_input_layout,)
    if finding.rule.group == "dtype":
        return (_precision, _number)
    return (_slope, _number)


def _raises(scene: _Scene) -> str:
    """Forward and backward: what it raises is the failure."""
    lines, total = scene.result()
    last = f"({total}).backward()  # {scene.finding.got}"
    return "\n".join([*scene.settings(), *scene.weights(), *lines, last])


def _slope(scene: _Scene) -> str:
    """The gradient against the slope of forward, in float64."""
    mismatch = _mismatch(scene)
    if mismatch is None or mismatch.index is None:
        return ""
    if scene.example.args[mismatch.position].dtype != torch.float64:
        return ""
    name = scene.names[mismatch.position]
    at = _index(mismatch.index)
    lines, total = scene.result()
    body = [
        *scene.settings(),
        *scene.weights(),
        "",
        f"def loss({name}):",
        *(f"    {line}" for line in lines),
        f"    return {total}",
        "",
        f"loss({name}).backward()",
        f"got = 0.0 if {name}.grad is None else {name}.grad{at}",
        f"step = torch.zeros_like({name})",
        f"step{at or '[()]'} = 1e-6",
        f"slope = (loss({name} + step) - loss({name} - step)) / 2e-6",
        'assert abs(got - slope) <= 1e-4 * abs(slope) + 1e-5, f"{got=}, {slope=}"',
    ]
    text = "\n".join(body)
    found = _executed(text, scene)[1].get("slope")
    return text if _is_near(found, mismatch.expected) else ""


def _number(scene: _Scene) -> str:
    """The gradient against the number that it must be."""
    mismatch = _mismatch(scene)
    if mismatch is None:
        return ""
    index = mismatch.index if mismatch.index is not None else _worst(mismatch.want)
    name, at = scene.names[mismatch.position], _index(index)
    expected = mismatch.want[index].item() if mismatch.index is None else mismatch.expected
    lines, total = scene.result()
    size = max(abs(expected), 1e-6)
    limit = size * (1e-2 if scene.example.args[mismatch.position].dtype != torch.float64 else 1e-4)
    return "\n".join(
        [
            *scene.settings(),
            *scene.weights(),
            *lines,
            f"({total}).backward()",
            f"got = 0.0 if {name}.grad is None else {name}.grad{at}",
            f"expected = {expected:.6g}  # forward, differentiated",
            f'assert abs(got - expected) <= {limit:.1e}, f"{{got=}}, {{expected=}}"',
        ]
    )


def _precision(scene: _Scene) -> str:
    """The gradient in a low dtype against that in float64, at the same values."""
    if not scene.name:
        return ""
    floats = _floats(scene)
    which = [scene.names[i] for i in scene.needed].index(scene.names[scene.position])
    eps = torch.finfo(scene.example.args[scene.position].dtype).eps
    body = [
        *_gradients(scene),
        f"got = gradients({', '.join(floats)})[{which}].double()",
        f"expected = gradients({', '.join(f'{name}.double()' for name in floats)})[{which}]",
        f"limit = {20 * eps:.2g} * expected.abs().max()  # 20 roundings",
        'assert (got - expected).abs().max() <= limit, f"{got=}, {expected=}"',
    ]
    return "\n".join(body)


def _input_layout(scene: _Scene) -> str:
    """Results for the laid-out inputs against those for dense ones."""
    floats = _floats(scene)
    values = dict(zip(scene.names, scene.example.args, strict=False))
    dense = [
        name
        if values[name].is_contiguous() and not values[name].storage_offset()
        else f"{name}.clone(memory_format=torch.contiguous_format)"
        for name in floats
    ]
    if dense == floats:
        return ""
    body = [
        *_gradients(scene, with_outputs=True),
        f"wanted = gradients({', '.join(dense)})",
        f"for got, expected in zip(gradients({', '.join(floats)}), wanted):",
        '    assert torch.allclose(got, expected, 1e-3, 1e-5), f"{got=}, {expected=}"',
    ]
    return "\n".join(body)


def _floats(scene: _Scene) -> list[str]:
    """The names of the arguments that can have a gradient."""
    args = zip(scene.names, scene.example.args, strict=False)
    return [name for name, arg in args if can_differ(arg)]


def _gradients(scene: _Scene, *, with_outputs: bool = False) -> list[str]:
    """The lines that define `gradients`, a function of the arguments that can have one."""
    lines, total = scene.result()
    needed = [scene.names[i] for i in scene.needed]
    returned = [f"{name}.grad" for name in needed]
    if with_outputs:
        is_one = isinstance(scene.run.result, Tensor)
        returned = [*(["out"] if is_one else [f"outs[{i}]" for i in scene.used]), *returned]
    return [
        *scene.settings(leaves=False),
        *scene.weights(),
        "",
        f"def gradients({', '.join(_floats(scene))}):",
        *(f"    {name} = {name}.detach().requires_grad_()" for name in needed),
        *(f"    {line}" for line in lines),
        f"    ({total}).backward()",
        f"    return [{', '.join(returned)}]",
        "",
    ]


def _cotangent_layout(scene: _Scene) -> str:
    """Gradients for a laid-out cotangent against those for a dense one."""
    return _with_cotangent(scene, is_raise=False)


def _raises_for_layout(scene: _Scene) -> str:
    if scene.finding.rule.name != "cotangent-layout":
        return ""
    return _with_cotangent(scene, is_raise=True)


def _with_cotangent(scene: _Scene, *, is_raise: bool) -> str:
    found = [label for label in LAYOUTS if f"cotangent {label}" in scene.finding.inputs]
    if not found or not isinstance(scene.run.result, Tensor):
        return ""
    laid = LAYOUTS[max(found, key=len)](scene.cotangents()[0])
    if laid is None:
        return ""
    lines, _ = scene.result()
    leaves = ", ".join(scene.names[i] for i in scene.needed)
    dense = "g.clone(memory_format=torch.contiguous_format)"
    pull = f"torch.autograd.grad(out, [{leaves}], "
    body = [*scene.settings(), f"g = {spelled(laid)}", *lines]
    if is_raise:
        body += [f"{pull}{dense}, retain_graph=True)", f"{pull}g)  # {scene.finding.got}"]
        return "\n".join(body)
    body += [
        f"wanted = {pull}{dense}, retain_graph=True)",
        f"for got, expected in zip({pull}g), wanted):",
        '    assert torch.allclose(got, expected, 1e-3, 1e-5), f"{got=}, {expected=}"',
    ]
    return "\n".join(body)


# ---- parts ----


def _mismatch(scene: _Scene) -> Mismatch | None:
    """What is wrong with the gradient that the finding names, for the cotangents of the scene."""
    run = scene.subject.run(scene.example, needs=scene.needed)
    given: list[Tensor | None] = [None] * len(run.outputs)
    for i, cotangent in zip(scene.used, scene.cotangents(), strict=True):
        given[i] = cotangent
    found = scene.subject.mismatches(run, given, run.pull(given))
    return next((m for m in found if m.name == scene.name), None)


def _index(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def _worst(tensor: Tensor) -> tuple[int, ...]:
    return index_of(int(tensor.abs().argmax()), tensor.shape)


def _is_near(found: Any, expected: complex | float | None) -> bool:
    if not isinstance(found, Tensor) or expected is None:
        return False
    apart = abs(found.item() - expected)
    return bool(apart <= 1e-5 * abs(expected) + 1e-6)


def _fails(body: str, scene: _Scene) -> bool:
    """Whether the program fails, by its assertion or as the finding says."""
    error = _executed(body, scene)[0]
    if isinstance(error, AssertionError):
        return True
    return error is not None and type(error).__name__ == scene.finding.got.partition(":")[0]


def _executed(body: str, scene: _Scene) -> tuple[Exception | None, dict[str, Any]]:
    """What the body of a repro raises here, and the names that it made."""
    head = scene.call.removesuffix(".apply")
    target = scene.subject.target
    space: dict[str, Any] = {"torch": torch}
    if not head.startswith("torch."):
        space[head] = target.function if target.is_function else target.thing
    try:
        with seeded():
            exec(compile(body, "<repro>", "exec"), space)
    except Exception as error:
        return error, space
    return None, space
