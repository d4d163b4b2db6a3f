"""One file of Triton kernels: what is saved, the launches, the Function, the ops, the self-test.

The file reads as if it were written by hand: kernels with the user's names first, then the plain
Python that launches them, then a `torch.autograd.Function` around both. The same launches are
registered as ops (`torch.library.triton_op`), for those who trace or export.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx

from pullback.capture.decided import assumed, decided
from pullback.capture.fake import in_words
from pullback.derive.recipe import Parts
from pullback.derive.size_checks import InputCheck
from pullback.emit.python.module import snake
from pullback.emit.subject import EmitSubject
from pullback.emit.triton.self_test import KernelTest, kernel_test
from pullback.emit.triton.verify import interpreter_absence, require_same_kernels
from pullback.errors import CaptureError, KernelError
from pullback.graph.cost import expression_of
from pullback.graph.values import held_value
from pullback.triton_codegen.host import HostNames, PhaseText, phase_text
from pullback.triton_codegen.module import IMPORTS, common_texts, kernel_text
from pullback.triton_codegen.primitives import kernel_parts
from pullback.triton_codegen.relations import least_conditions
from pullback.triton_codegen.wrapping import wrapped_line
from pullback.triton_codegen.writer import KernelSource

WIDTH = 88


@dataclass(frozen=True)
class KernelFile:
    """What a file is made of: its graphs, its kernels, and the names of its functions."""

    subject: EmitSubject
    parts: Parts
    forward: PhaseText
    backward: PhaseText | None

    @property
    def phases(self) -> list[PhaseText]:
        """Forward, and backward where there is one."""
        return [self.forward, *([self.backward] if self.backward else [])]

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the tensors that it takes."""
        return self.forward.parameters

    @property
    def count(self) -> int:
        """How many values it returns."""
        return self.parts.joint.output_count

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs."""
        return self.forward.returned[: self.count]

    @property
    def saved(self) -> tuple[str, ...]:
        """The names of the tensors that are kept for backward."""
        end = self.count + len(self.parts.cut.saved)
        return self.forward.returned[self.count : end] if self.backward else ()

    @property
    def numbers(self) -> dict[str, str]:
        """The sizes that backward reads and no tensor has: their names there, and what they are."""
        end = self.count + len(self.parts.cut.saved)
        names = [self.parts.names.get(node, node.name) for node in self.parts.cut.numbers]
        return dict(zip(names, self.forward.returned[end:], strict=True)) if self.backward else {}


def emit_triton(subject: EmitSubject, *, is_verified: bool = True) -> dict[str, str]:
    """The file of a subject, by its name; compared with the program where Triton can run here."""
    file = f"{snake(subject.name)}.py"
    made = kernel_file(subject)
    absence = interpreter_absence()
    is_run = is_verified and absence is None
    text = module_text(made, kernel_test(subject, made.inputs), file, is_run=is_run)
    if is_run:
        require_same_kernels(subject, text)
    return {file: text}


def kernel_file(subject: EmitSubject) -> KernelFile:
    """The kernels of a subject; raises `KernelError` for what is in no kernel."""
    captured = subject.captured
    _require_plain(subject)
    parts = kernel_parts(
        captured, "auto" if isinstance(subject.save, str) else subject.save, subject.wanted
    )
    names = HostNames({node.name: text for node, text in parts.names.items()})
    names.given = frozenset(node.name for node in parts.names.given)
    stem = snake(subject.name)
    forward = phase_text(parts.forward, f"{stem}_forward", names)
    returned = {node.name for node in parts.joint.outputs if isinstance(node, fx.Node)}
    own = [n.name for n in parts.cut.saved if n.op != "placeholder" and n.name not in returned]
    has_backward = any(isinstance(g, fx.Node) for g in _returned(parts.backward))
    backward = None
    if has_backward:
        backward = phase_text(parts.backward, f"{stem}_backward", names, frozenset(own))
    return KernelFile(subject, parts, forward, backward)


def _returned(graph: fx.Graph) -> Sequence[object]:
    found: Sequence[object] = graph.output_node().args[0]  # type: ignore[assignment]
    return found


def _require_plain(subject: EmitSubject) -> None:
    """Raise unless a program is a function of its arguments alone that returns new tensors."""
    captured = subject.captured
    if captured.mutated:
        raise CaptureError(
            f"`{subject.name}` must not change an input in place to become kernels",
            fix="work on a clone, and return it",
        )
    held = [one.name for one in captured.inputs if one.kind != "argument"]
    if held:
        raise KernelError(
            f"`{subject.name}` must take its tensors as arguments to become kernels",
            got=f"{', '.join(f'`{name}`' for name in held)} from outside it",
            fix="make them parameters of the function",
        )
    if any(o.index is None for o in captured.outputs if o.returned) or not captured.outputs:
        raise KernelError(f"`{subject.name}` must return tensors alone to become kernels")


# ---- the text ----


def module_text(made: KernelFile, test: KernelTest, file: str, *, is_run: bool) -> str:
    """The whole file."""
    kernels = [
        kernel_text(source, _comment(source, phase))
        for phase in made.phases
        for source in phase.kernels
    ]
    launches = [phase.function(_launch_doc(made, phase)) for phase in made.phases]
    blocks = [
        f"{_docstring(made, is_run)}\n\n{IMPORTS}",
        *(text.rstrip() for text in common_texts(made.phases)),
        *kernels,
        *map(_with_made, launches, made.phases),
        _class(made),
        _ops(made),
        test.text(made, file),
    ]
    return "\n\n\n".join(blocks).rstrip() + "\n"


def _with_made(text: str, phase: PhaseText) -> str:
    """A launching function that returns what it has made."""
    lines = text.splitlines()
    start = max(i for i, line in enumerate(lines) if line.startswith("    return "))
    returned = ", ".join(phase.made)
    return "\n".join([*lines[:start], f"    return {returned}"])


def _docstring(made: KernelFile, is_run: bool) -> str:
    subject = made.subject
    said = subject.doc.replace("\\", "\\\\").replace('"""', "'''")
    first = f"`{subject.name}`: {said}" if said else f"`{subject.name}`."
    came = f"`{subject.captured.name.removesuffix('.apply')}`"
    lines = textwrap.wrap(first, WIDTH - 3)
    text = f"Written by pullback from {came}, and yours: it needs torch and triton, nothing else."
    lines += ["", *textwrap.wrap(text, WIDTH)]
    text = f"`{subject.name}.apply({', '.join(made.inputs)})` runs it. Run this file to test it"
    text += ", with --bench to measure it. Without a GPU, set TRITON_INTERPRET=1."
    lines += textwrap.wrap(text, WIDTH)
    if not is_run:
        lines += textwrap.wrap(
            "It has not been run where it was written: run its test first.", WIDTH
        )
    return '"""' + "\n".join(lines) + '\n"""'


def _comment(source: KernelSource, phase: PhaseText) -> list[str]:
    """What one program of a kernel does."""
    kernel = source.kernel
    if kernel.is_final and kernel.source is not None:
        where = "COLS columns" if kernel.cols else "all"
        return textwrap.wrap(
            f"Adds up what the programs of `{kernel.source.name}` wrote, {where} per program, "
            "always in the same order.",
            84,
        )
    said = {
        "row": "Each program computes one row, which it holds whole.",
        "blocks": "Each program computes one row, BLOCK columns at a time.",
        "tile": "Each program computes a tile of ROWS rows and COLS columns.",
    }[kernel.form]
    if kernel.form == "tile" and kernel.has_reductions:
        said = "Each program computes ROWS rows, which it holds whole."
    if not kernel.rows:
        said = "Each program computes COLS elements."
    if kernel.is_looped:
        unit = "rows, one" if kernel.form == "row" else "rows, ROWS"
        said = f"Each program goes over several {unit} at a time, and keeps its sums in registers."
    return textwrap.wrap(said, 84)


def _launch_doc(made: KernelFile, phase: PhaseText) -> str:
    if phase is made.forward:
        own = [n for n in made.saved if n in phase.made and n not in made.outputs]
        kept = f", and what backward reads: {', '.join(own)}" if own else ""
        return f"The output{'s' if made.count > 1 else ''}{kept}."
    return f"The gradient{'s' if len(phase.made) > 1 else ''}, from what forward kept."


def _class(made: KernelFile) -> str:
    subject, inputs = made.subject, ", ".join(made.inputs)
    saved = dict.fromkeys(made.saved)
    lines = [f"class {subject.name}(torch.autograd.Function):", f'    """{_class_doc(made)}"""', ""]
    lines += ["    @staticmethod", f"    def forward(ctx, {inputs}):"]
    lines += [f"        {line}" for line in _checks(made)]
    got = ", ".join(made.forward.made)
    lines.append(f"        {got} = {made.forward.name}({inputs})")
    if saved:
        lines.append(f"        ctx.save_for_backward({', '.join(saved)})")
    if made.numbers:
        lines.append(f"        ctx.sizes = ({', '.join(made.numbers.values())},)")
    silent = _silent(made)
    if silent:
        lines.append(f"        ctx.mark_non_differentiable({', '.join(silent)})")
    lines.append(f"        return {', '.join(made.outputs)}")
    if made.backward is None:
        return "\n".join(lines)
    cotangents = _cotangents(made)
    lines += ["", "    @staticmethod", "    @torch.autograd.function.once_differentiable"]
    lines.append(f"    def backward(ctx, {', '.join(cotangents)}):")
    if saved:
        comma = "," if len(saved) == 1 else ""
        lines.append(f"        {', '.join(saved)}{comma} = ctx.saved_tensors")
    if made.numbers:
        lines.append(f"        ({', '.join(made.numbers)},) = ctx.sizes")
    call = f"{made.backward.name}({', '.join(made.backward.parameters)})"
    found = ", ".join(made.backward.made)
    lines += [f"        {found} = {call}", f"        return {', '.join(_gradients(made))}"]
    return "\n".join(part for line in lines for part in wrapped_line(line))


def _class_doc(made: KernelFile) -> str:
    kept = [name for name in dict.fromkeys(made.saved) if name not in made.inputs]
    listed = ", ".join(f"`{name}`" for name in kept) or "nothing besides inputs"
    came = made.subject.captured.name.removesuffix(".apply")
    return f"`{came}` in Triton; {listed} kept for backward."


def _silent(made: KernelFile) -> list[str]:
    pairs = zip(made.outputs, made.subject.captured.outputs, strict=False)
    return [name for name, one in pairs if not one.differentiable]


def _cotangents(made: KernelFile) -> list[str]:
    """The parameters of backward: one for each output."""
    assert made.backward is not None
    kept = (*made.saved, *made.numbers)
    known = iter([n for n in made.backward.parameters if n not in kept])
    found = []
    for place, one in enumerate(o for o in made.subject.captured.outputs if o.returned):
        found.append(next(known, f"_{place}") if one.differentiable else f"_{place}")
    return found


def _gradients(made: KernelFile) -> list[str]:
    """What backward returns: one for each input."""
    assert made.backward is not None
    found = iter(made.backward.returned)
    return [next(found) if one.needs else "None" for one in made.subject.captured.inputs]


def _checks(made: KernelFile) -> list[str]:
    """The lines that refuse tensors which the kernels would read past their end.

    A size that others determine is asked for with the shape that it is in, all else by itself.
    """
    joint, captured = made.parts.joint, made.subject.captured
    rows = [*zip(made.inputs, map(held_value, joint.inputs), made.forward.shapes, strict=True)]
    of_kernels = [one for phase in made.phases for one in phase.conditions]
    conditions = {*of_kernels, *decided(captured), *assumed(captured)}
    ordered = sorted(conditions, key=str)
    sizes: dict[Any, str] = {}
    symbols: dict[Any, str] = {}
    solved: dict[Any, Any] = {}
    for name, value, keys in rows:
        for dim, (size, key) in enumerate(zip(value.shape, keys, strict=True)):
            symbol = expression_of(size)
            if not getattr(symbol, "is_Symbol", False) or symbol in symbols:
                continue
            solution = None if key in sizes else _solution(symbol, ordered, symbols.keys())
            if solution is not None:
                solved[symbol] = solution
            symbols[symbol] = sizes.setdefault(key, f"{name}.shape[{dim}]")
    lines: list[str] = []
    later: list[str] = []
    for place, (name, value, _) in enumerate(rows):
        expressions = map(expression_of, value.shape)
        texts = [_text(solved.get(one, one), symbols) for one in expressions]
        listed = ", ".join(texts) + ("," if len(texts) == 1 else "")
        line = f'require({name}, "{name}", {value.dtype}, ({listed}))'
        is_later = any(f"{other}.shape" in listed for other in made.inputs[place + 1 :])
        (later if is_later else lines).append(line)
    of_sizes = (one for one in ordered if one.free_symbols <= symbols.keys())  # not of strides
    left = least_conditions(one.xreplace(solved) for one in of_sizes)
    found = dict.fromkeys(in_words(one, symbols) for one in left)
    checks = [InputCheck(text) for text in found if text != "True"]
    return [*lines, *later, *(line for check in checks for line in check.lines(made.subject.name))]


def _text(size: Any, symbols: Mapping[Any, str]) -> str:
    return in_words(size, symbols) if getattr(size, "free_symbols", None) else str(size)


def _solution(symbol: Any, conditions: Sequence[Any], known: Collection[Any]) -> Any:
    """What a size must be by a condition that determines it from known ones; None without."""
    for condition in conditions:
        if getattr(condition, "rel_op", "") == "==" and symbol in condition.args:
            (other,) = [side for side in condition.args if side != symbol]
            if other.free_symbols <= known:
                return other
    return None


def _ops(made: KernelFile) -> str:
    """The launches as ops, with their gradient."""
    stem = snake(made.subject.name)
    texts = []
    for phase, word in zip(made.phases, ("forward", "backward"), strict=False):
        kinds = ["int" if name in made.numbers else "torch.Tensor" for name in phase.parameters]
        pairs = zip(phase.parameters, kinds, strict=True)
        typed = ", ".join(f"{name}: {kind}" for name, kind in pairs)
        kinds = ["torch.Tensor"] * len(phase.made)
        kind = kinds[0] if len(kinds) == 1 else f"tuple[{', '.join(kinds)}]"
        lines = [f'@torch.library.triton_op("{stem}::{word}", mutates_args=())']
        lines.append(f"def {word}_op({typed}) -> {kind}:")
        lines.append(f'    """`{phase.name}` as an op."""')
        lines.append(f"    return {phase.name}({', '.join([*phase.parameters, 'traced'])})")
        texts.append("\n".join(part for line in lines for part in wrapped_line(line)))
    return "\n\n\n".join(texts)
