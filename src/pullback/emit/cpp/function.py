"""The `torch::autograd::Function` of a subject, as text: forward, what it saves, backward."""

from __future__ import annotations

import keyword
import textwrap
from collections.abc import Iterator
from typing import Any

from torch import fx

from pullback.capture.joint import Capture, CaptureInput, CaptureOutput
from pullback.derive.recipe import Parts
from pullback.emit.cpp.body import Body, cpp_identifier, wrapped_statement
from pullback.emit.cpp.checks import checks_of
from pullback.emit.cpp.constants import constant_line
from pullback.emit.cpp.plain_text import (
    Plain,
    PlainArgument,
    check_of,
    condition_of,
    notes_of,
    used_in,
)
from pullback.emit.cpp.reach import Reach
from pullback.emit.cpp.signature import NO_AUTOCAST, CppFunction
from pullback.emit.cpp.values import DTYPES, no_cpp_form, quoted, symbolic_type
from pullback.emit.subject import EmitSubject
from pullback.graph.cost import base_of, is_view
from pullback.graph.values import held_value, is_smooth

GUARD = "at::AutoDispatchBelowADInplaceOrView guard;"


def write_function(
    subject: EmitSubject, parts: Parts, reach: Reach, plain: Plain, op: str
) -> CppFunction:
    """The Function of `subject`, with the graphs `parts` and the arguments `plain`."""
    return _Function(subject, parts, reach, plain, op).write()


class _Function:
    """A Function while it is written."""

    def __init__(
        self, subject: EmitSubject, parts: Parts, reach: Reach, plain: Plain, op: str
    ) -> None:
        self.subject = subject
        self.captured: Capture = subject.captured
        self.parts = parts
        self.reach = reach
        self.plain = plain
        self.op = op
        self.outputs = returned_by(self.captured)
        pairs = zip(parts.joint.inputs, self.captured.inputs, strict=True)
        inputs = {node.name: one.name for node, one in pairs}
        taken = [one.name for one in plain.arguments]
        owner = subject.name
        self.forward = Body(parts.forward, parts.names, inputs, taken=taken, owner=owner)
        self.names = [self.forward.names[node] for node in self.forward.placeholders]
        # The places of the inputs that are parameters, in the order of these.
        self.given = [self._place(one) for one in plain.row if isinstance(one, CaptureInput)]
        self.tensors = [self.names[place] for place in self.given]
        self.parameters = [
            one.name if isinstance(one, PlainArgument) else self.names[self._place(one)]
            for one in plain.row
        ]
        flags = self._flags()
        self.backward = Body(
            parts.backward, parts.names, inputs, flags=flags, taken=taken, owner=owner
        )
        self.kept = used_in(parts.backward, plain.arguments)
        self.changes = {
            o.changes: o
            for o in self.captured.outputs
            if o.changes is not None and o.index is not None
        }
        self._require_changes()

    def _place(self, one: CaptureInput) -> int:
        return self.captured.inputs.index(one)

    def write(self) -> CppFunction:
        """The class."""
        name = self.subject.name
        head = [
            *self._comment(),
            f"struct {name} : public torch::autograd::Function<{name}> {{",
            "  // Compiled autograd may trace through backward.",
            "  static constexpr bool is_traceable = true;",
            "",
        ]
        lines = [*head, *_indented(self._forward(), 1), "", *_indented(self._backward(), 1), "};"]
        place = {position: self.parameters.index(self.names[position]) for position in self.given}
        aliases = tuple(None if o.changes is None else place[o.changes] for o in self.outputs)
        return CppFunction(
            subject=self.subject,
            reach=self.reach,
            name=name,
            op=self.op,
            parameters=tuple(self.parameters),
            tensors=tuple(self.tensors),
            plain=tuple(self.plain.arguments),
            cast=self._cast(),
            changed=frozenset(place[position] for position in self.changes),
            aliases=aliases,
            lines=tuple(lines),
            bodies=(self.forward, self.backward),
            spelled=self._spelled(),
        )

    def _spelled(self) -> dict[str, str]:
        """The user's names for parameters that are called otherwise in C++."""
        own = {self.names[place]: self.captured.inputs[place].name for place in self.given}
        own |= {one.name: one.own_name for one in self.plain.arguments}
        return {
            name: wish
            for name, wish in own.items()
            if wish != name and wish.isidentifier() and not keyword.iskeyword(wish)
        }

    def _cast(self) -> dict[str, str]:
        """The tensors that get another dtype under autocast, each with its dtype if it has one."""
        found = {}
        for place in self.given:
            value = self.parts.joint.inputs[place].meta["val"]
            if value.is_floating_point() and place not in self.changes:
                found[self.names[place]] = "" if self.reach.dtypes else DTYPES[value.dtype]
        return found

    def _comment(self) -> Iterator[str]:
        for paragraph in filter(None, (self.subject.doc, *notes_of(self.plain))):
            yield from (f"// {line}" for line in textwrap.wrap(paragraph, 92))
            yield "//"
        yield "// Saved for backward:"
        saved = (*self.parts.cut.saved, *self.parts.cut.numbers)
        held = [self.backward.names[node] for node in self.backward.placeholders]
        kept = [(name, self._why(node)) for name, node in zip(held, saved, strict=False)]
        kept += [(one.name, "an argument") for one in self.kept]
        width = max((len(name) for name, _ in kept), default=0)
        yield from (f"//   {name:<{width}}  {why}" for name, why in kept)
        if not kept:
            yield "//   nothing"

    def _why(self, node: fx.Node) -> str:
        if node in self.parts.cut.numbers:
            return "a number"
        if node in self.parts.joint.inputs:
            place = self.parts.joint.inputs.index(node)
            return "a copy of the input, which is changed" if place in self.changes else "an input"
        return "an output" if node in self.parts.joint.outputs else "computed in forward"

    # ---- forward ----

    def _forward(self) -> Iterator[str]:
        several = len(self.outputs) > 1
        kind = "variable_list" if several else "at::Tensor"
        changed = {self.names[place] for place in self.changes if place is not None}
        kinds = dict.fromkeys(changed, "at::Tensor")
        kinds |= {one.name: one.kind[1] for one in self.plain.arguments}
        takes = ["AutogradContext* ctx"]
        takes += [f"{kinds.get(name, 'const at::Tensor&')} {name}" for name in self.parameters]
        yield from wrapped_statement(f"static {kind} forward({', '.join(takes)}) {{", "")
        yield from _indented(self._forward_body(), 1)
        yield "}"

    def _forward_body(self) -> Iterator[str]:
        helpers = self.forward.writer.helpers
        for check in checks_of(self.subject, self.reach, self.names, helpers):
            yield from wrapped_statement(check, "")
        for argument in self.plain.arguments:
            if not argument.is_free:
                yield from wrapped_statement(check_of(self.subject.name, argument), "")
        for condition in self.plain.conditions:
            yield from wrapped_statement(condition_of(self.subject.name, condition), "")
        for one, name in zip(self.captured.inputs, self.names, strict=True):
            if not one.is_given:
                yield from wrapped_statement(constant_line(one, name, self.tensors), "")
        if self.changes:
            # What is written into an input must count as a change: outside of the guard.
            yield "std::optional<at::AutoDispatchBelowADInplaceOrView> guard(std::in_place);"
        else:
            yield GUARD
        yield from self.forward.lines()
        row, copies = self._kept()
        yield from copies
        results, made = self._results()
        yield from made
        if self.changes:
            yield "guard.reset();"
        for place, output in self.changes.items():
            assert output.index is not None
            value = self.forward.text(self.forward.returned[output.index])
            yield f"{self.names[place]}.copy_({value});"
        dirty = [self.names[o.changes] for o in self.outputs if o.changes is not None]
        if dirty:
            yield f"ctx->mark_dirty({{{', '.join(dirty)}}});"
        yield from self._silent(results)
        if row:
            yield from wrapped_statement(f"ctx->save_for_backward({{{', '.join(row)}}});", "")
        start = self.parts.joint.output_count + len(self.parts.cut.saved)
        for node, value in zip(self.parts.cut.numbers, self.forward.returned[start:], strict=True):
            text = (
                self.forward.writer.node(value).text if isinstance(value, fx.Node) else str(value)
            )
            key, kind = cpp_identifier(self.parts.names[node]), symbolic_type(held_value(node))
            yield f"ctx->saved_data[{quoted(key)}] = {kind}({text});"
        for argument in self.kept:
            yield f"ctx->saved_data[{quoted(argument.name)}] = {argument.name};"
        yield f"return {results[0]};" if len(results) == 1 else f"return {{{', '.join(results)}}};"

    def _silent(self, results: list[str]) -> Iterator[str]:
        """The lines that mark the outputs which have no history: some never, some in this call."""
        rows = list(zip(results, self.outputs, self.reach.sources, strict=True))
        silent = [name for name, o, _ in rows if not o.differentiable and o.changes is None]
        every = {place for place, one in enumerate(self.captured.inputs) if one.needs}
        partly = [
            (name, [f"!{self.names[place]}.requires_grad()" for place in sorted(sources)])
            for name, o, sources in rows
            if o.differentiable and o.changes is None and sources < every
        ]
        if not partly:
            if silent:
                yield f"ctx->mark_non_differentiable({{{', '.join(silent)}}});"
            return
        yield f"variable_list silent{{{', '.join(silent)}}};"
        for name, none in partly:
            yield from wrapped_statement(
                f"if ({' && '.join(none) or 'true'}) silent.push_back({name});", ""
            )
        yield "ctx->mark_non_differentiable(silent);"

    def _kept(self) -> tuple[list[str], list[str]]:
        """The names of the saved tensors, and the lines that copy those which are changed."""
        start = self.parts.joint.output_count
        row, lines = [], []
        changed = {
            self.parts.joint.inputs[place].name: place
            for place in self.changes
            if place is not None
        }
        new = {o.index: self.names[place] for place, o in self.changes.items() if place is not None}
        returned = self.forward.returned
        outputs = {
            returned[i]: name
            for i, name in new.items()
            if i is not None and isinstance(returned[i], fx.Node)
        }
        for node, value in zip(self.parts.cut.saved, returned[start:], strict=False):
            if node.name in changed:
                name = self.forward._unused(f"{self.names[changed[node.name]]}_before")
                lines.append(f"auto {name} = {self.names[changed[node.name]]}.clone();")
                row.append(name)
            else:
                row.append(outputs.get(value, self.forward.text(value)))
        return row, lines

    def _results(self) -> tuple[list[str], list[str]]:
        """The names of what is returned, and the lines that make it independent of all else.

        An op gives new tensors, or those that it is declared to change: where the program returns
        an input, or a view of something that lives on, the op returns a copy.
        """
        names: list[str] = []
        lines: list[str] = []
        returned = self.forward.returned
        kept = set(returned[self.parts.joint.output_count :])
        seen: set[Any] = set()
        for output in self.outputs:
            assert output.index is not None
            if output.changes is not None:
                names.append(self.names[output.changes])
                continue
            value = returned[output.index]
            base = base_of(value)
            text = self.forward.text(value)
            is_taken = base in seen or (is_view(value) and base in kept)
            if base.op == "placeholder" or is_taken:
                name = self.forward._unused(f"{text}_copy" if text.isidentifier() else "copy")
                lines.append(f"auto {name} = {text}.clone();  // an op must not return an alias")
                text = name
            seen.add(base)
            names.append(text)
        return names, lines

    def _require_changes(self) -> None:
        for place, output in self.changes.items():
            assert place is not None
            one = self.captured.inputs[place]
            if not one.is_given or (one.needs and not output.returned):
                raise no_cpp_form(
                    "an input that is changed in place and not returned", f"`{one.name}`"
                )

    # ---- backward ----

    def _flags(self) -> list[str]:
        """For each gradient, the name of what says whether it is asked for."""
        return [
            f"needs_{self.names[place]}"
            for place, one in enumerate(self.captured.inputs)
            if one.needs
        ]

    def _backward(self) -> Iterator[str]:
        yield "static variable_list backward(AutogradContext* ctx, variable_list cotangents) {"
        yield from _indented(self._backward_body(), 1)
        yield "}"

    def _backward_body(self) -> Iterator[str]:
        yield NO_AUTOCAST
        yield from self._unsupported()
        if not self.reach.is_twice:
            said = quoted(f"{self.op}: {self.reach.refusal}")
            yield from wrapped_statement(f"TORCH_CHECK(!at::GradMode::is_enabled(), {said});", "")
        # Before the guard: `checkpoint` runs forward again when a saved tensor is asked for.
        yield from self._given_to_backward()
        if self.reach.is_twice:
            yield "// Ops that nobody will differentiate need not pass through autograd."
            yield "std::optional<at::AutoDispatchBelowADInplaceOrView> guard;"
            yield "if (!at::GradMode::is_enabled()) guard.emplace();"
        else:
            yield GUARD
        needed = [place for place, one in enumerate(self.captured.inputs) if one.needs]
        used = {flag for places in self.backward.blocks for flag in places}
        everything = self.backward._everything()
        if len(everything) > 1:
            for flag, place in zip(self.backward.flags, needed, strict=True):
                if self.backward.flags.index(flag) in used | everything:
                    yield f"const bool {flag} = ctx->needs_input_grad({self.given.index(place)});"
        yield from self.backward.lines()
        yield from self._gradients(is_several=len(everything) > 1)

    def _unsupported(self) -> Iterator[str]:
        for place, one in enumerate(self.captured.inputs):
            node = self.parts.joint.inputs[place]
            if not one.is_given or one.needs or not is_smooth(node):
                continue
            said = f"{self.op}: {one.name} has no gradient"
            index = self.given.index(place)
            yield f"TORCH_CHECK(!ctx->needs_input_grad({index}), {quoted(said)});"

    def _given_to_backward(self) -> Iterator[str]:
        saved, numbers = self.parts.cut.saved, self.parts.cut.numbers
        placeholders = self.backward.placeholders
        if saved:
            yield "const auto saved = ctx->get_saved_variables();"
        for place, node in enumerate(placeholders[: len(saved)]):
            yield f"const auto& {self.backward.names[node]} = saved[{place}];"
        for node, source in zip(placeholders[len(saved) :], numbers, strict=False):
            key, kind = cpp_identifier(self.parts.names[source]), symbolic_type(held_value(source))
            get = f"to{kind.removeprefix('c10::')}()"
            yield f"const auto {self.backward.names[node]} = ctx->saved_data[{quoted(key)}].{get};"
        for argument in self.kept:
            get = f"ctx->saved_data[{quoted(argument.name)}].{argument.kind[2]}"
            yield f"const auto {argument.name} = {get};"
        smooth = [i for i, o in enumerate(self.outputs) if o.differentiable and o.used]
        for node, place in zip(placeholders[len(saved) + len(numbers) :], smooth, strict=True):
            if self._is_read(node):
                yield f"const auto& {self.backward.names[node]} = cotangents[{place}];"

    def _is_read(self, node: fx.Node) -> bool:
        return bool(node.users) or node in self.backward.returned

    def _gradients(self, *, is_several: bool) -> Iterator[str]:
        needing = [place for place, one in enumerate(self.captured.inputs) if one.needs]
        rows = zip(self.backward.returned, self.backward.flags, strict=True)
        pulled = dict(zip(needing, rows, strict=True))
        texts = []
        for one in self.plain.row:
            place = -1 if isinstance(one, PlainArgument) else self._place(one)
            value, flag = pulled.get(place, (None, ""))
            if value is None:
                texts.append("at::Tensor()")
                continue
            text = self.backward.text(value)
            if is_several and (value.op == "placeholder" or self._is_always(value)):
                text = f"{flag} ? {text} : at::Tensor()"
            texts.append(text)
        yield from wrapped_statement(f"return {{{', '.join(texts)}}};", "")

    def _is_always(self, value: fx.Node) -> bool:
        """Whether a gradient is computed even where it is not asked for."""
        return self.backward.needs[value] == self.backward._everything()


def returned_by(captured: Capture) -> list[CaptureOutput]:
    """The outputs of the op, which must be tensors."""
    for output in captured.outputs:
        if output.returned and output.kind != "tensor":
            got = "a size" if output.kind == "number" else repr(output.value)
            raise no_cpp_form("an output that is no tensor", f"`{captured.name}` returns {got}")
    return [output for output in captured.outputs if output.returned]


def _indented(lines: Iterator[str] | list[str], level: int) -> Iterator[str]:
    for line in lines:
        yield f"{'  ' * level}{line}" if line else line
