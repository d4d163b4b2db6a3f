"""What a repro is made of: a call to show, with its arguments and cotangents as code."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.check.findings.facts import About, Cotangent, Input, Output, Thing
from pullback.check.findings.finding import Finding
from pullback.check.target.spelling import LARGEST, UnspeakableError, spelled
from pullback.function.isolation import seeded
from pullback.judge.example import Example, can_differ
from pullback.judge.run import ForwardRefusedError, Run, cotangent_of

if TYPE_CHECKING:
    from pullback.check.subject.subject import Subject

DRAWS = 2  # of cotangents: what is wrong for one may be right for another
DRAWN = ("gradient",)  # groups whose rules try more than one
SEEDS = 4  # so many draws of a large argument are tried

# Names that repros give to things of their own.
TAKEN = """
    g h u v t k out other earlier loss step slope got expected torch sys pull push call first found
    before given total whole weights gradients wanted refs seen node kept held results copy parts
    hidden tensor returned work rows barrier pool limit left right old
"""


@dataclass(frozen=True, slots=True)
class ReproContext:
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
    draw: int = 0  # of the cotangents

    # ---- what the finding is about ----

    @property
    def about(self) -> About:
        """The facts of the finding."""
        return self.finding.about

    @property
    def name(self) -> str:
        """The input whose gradient is wrong; empty where none is named."""
        return self.about.name

    @property
    def position(self) -> int:
        """The place of that input."""
        return self.run.names.index(self.name)

    @property
    def raised(self) -> str:
        """What the call raises, as a comment on the line that does; empty where nothing."""
        return f"  # {self.about.raised}" if self.about.raised is not None else ""

    @property
    def entry(self) -> str:
        """The entry that the finding names, as an index in code."""
        return index_code(self.about.index)

    def code_of(self, thing: Thing) -> str:
        """The expression of an input, an output or a cotangent; empty for anything else."""
        if isinstance(thing, Input) and thing.name in self.run.names:
            return self.names[self.run.names.index(thing.name)]
        if isinstance(thing, Output):
            return self.output(thing.number)
        if isinstance(thing, Cotangent):
            return "g" if self.is_one else f"g[{self.used.index(thing.number)}]"
        return ""

    # ---- arguments ----

    @property
    def arguments(self) -> list[str]:
        """Each argument of the call, as code; clones where forward writes into them."""
        clone = ".clone()" if self.subject.writes_inputs else ""
        args = self.example.args
        first = [next(j for j in range(i + 1) if args[j] is args[i]) for i in range(len(args))]
        names = [self.names[j if isinstance(args[j], Tensor) else i] for i, j in enumerate(first)]
        pairs = zip(names, args, strict=True)
        return [f"{name}{clone}" if can_differ(arg) else name for name, arg in pairs]

    def settings(self, *, leaves: bool = True) -> list[str]:
        """The lines that make the arguments."""
        lines = []
        for i, (name, arg) in enumerate(zip(self.names, self.example.args, strict=False)):
            first = next((j for j in range(i) if self.example.args[j] is arg), None)
            needs = ".requires_grad_()" if leaves and i in self.needed else ""
            if first is not None and isinstance(arg, Tensor):
                lines.append(f"{name} = {self.names[first]}")
                continue
            code = self.codes.get(i) or spelled(arg)
            lines.append(
                f"{name} = ({code}){needs}" if " * " in code else f"{name} = {code}{needs}"
            )
        return lines

    @property
    def floats(self) -> list[str]:
        """The names of the arguments that can have a gradient."""
        args = zip(self.names, self.example.args, strict=False)
        return [name for name, arg in args if can_differ(arg)]

    @property
    def leaves(self) -> list[str]:
        """The names of the arguments whose gradients are taken, each tensor once."""
        args = self.example.args
        return [self.names[i] for i in self.needed if not any(args[j] is args[i] for j in range(i))]

    # ---- outputs ----

    @property
    def is_one(self) -> bool:
        """Whether the call returns one tensor."""
        return isinstance(self.run.result, Tensor)

    def output(self, number: int, out: str = "out") -> str:
        """The expression of the `number`-th tensor among the outputs."""
        if self.is_one:
            return out
        places = [i for i, value in enumerate(self.run.result) if isinstance(value, Tensor)]
        return f"{out}[{places[number]}]"

    def outputs(self, out: str = "out") -> str:
        """The expression of the outputs in use: one, or a list."""
        return out if self.is_one else f"[{', '.join(self.output(i, out) for i in self.used)}]"

    def done(self, out: str = "out", arguments: list[str] | None = None) -> list[str]:
        """The lines that call."""
        given = self.arguments if arguments is None else arguments
        seed = ["torch.manual_seed(0)"] if self.is_random else []
        return [*seed, f"{out} = {self.call}({', '.join(given)})"]

    # ---- cotangents ----

    def cotangents(self, draw: int = 0) -> list[Tensor]:
        """A cotangent for each output in use."""
        found = [cotangent_of(self.run.outputs[i], 1000 * i + self.draw + draw) for i in self.used]
        return [_short(c) for c in found if c is not None]

    def weights(self, name: str = "g", draw: int = 0) -> list[str]:
        """The line that makes the cotangents: one, or a list."""
        return [f"{name} = {self.joined(cotangent_code(c) for c in self.cotangents(draw))}"]

    def joined(self, codes: Any) -> str:
        """The code of one cotangent, or of the list of several."""
        codes = list(codes)
        return codes[0] if self.is_one else f"[{', '.join(codes)}]"

    def each(self, code: str, *names: str) -> str:
        """An expression of cotangents, written with the names of lists of them."""
        if self.is_one:
            return code
        pairs = f"zip({', '.join(names)})" if len(names) > 1 else names[0]
        return f"[{code} for {', '.join(names)} in {pairs}]"

    @property
    def total(self) -> str:
        """The expression of the sum of outputs times cotangents."""
        if self.is_one:
            return _product("out", "g", self.run.result)
        pairs = enumerate(self.used)
        parts = [_product(self.output(i), f"g[{k}]", self.run.outputs[i]) for k, i in pairs]
        return " + ".join(parts)

    def pull(self, out: str = "out", g: str = "g", options: str = "") -> str:
        """The expression of the gradients of a call."""
        leaves = ", ".join(self.leaves)
        more = f", {options}" if options else ""
        ends = f"[{leaves}], {g}, materialize_grads=True{more}"
        return f"torch.autograd.grad({self.outputs(out)}, {ends})"

    def pulling(self) -> list[str]:
        """The lines that define `pull`: the gradients of a fresh call, by its cotangents."""
        body = indented([*self.done(), f"return {self.pull()}"])
        return ["", "def pull(g):", *body, ""]


Retell = Callable[[Finding, dict[str, Any]], Finding]


@dataclass(frozen=True, slots=True)
class Repro:
    """A program that fails, and how its finding is reported once it has.

    `retell` is given the finding and the names that the program made; None leaves it as it is.
    With `is_loud` any error is the failure: which one comes is chance.
    """

    text: str
    retell: Retell | None = None
    is_loud: bool = False


# Writes a program, or nothing. Where it is text alone, what the program calls `got` and `expected`
# goes into the finding.
Form = Callable[[ReproContext], Repro | str]

COMPARED = '    assert torch.allclose(got, expected, 1e-3, 1e-5), f"{got=}, {expected=}"'


def text_of(*parts: Sequence[str] | str) -> str:
    """The lines of a repro as one text."""
    lines: list[str] = []
    for part in parts:
        lines += [part] if isinstance(part, str) else part
    return "\n".join(lines)


def indented(lines: Sequence[str]) -> list[str]:
    """Lines of a body."""
    return [f"    {line}" for line in lines]


def compared(got: str, expected: str) -> list[str]:
    """The lines that compare two rows of tensors."""
    return [f"for got, expected in zip({got}, {expected}):", COMPARED]


def index_code(index: tuple[int, ...] | None) -> str:
    """An index in code; nothing where there is none, or no dimension."""
    return f"[{', '.join(map(str, index))}]" if index else ""


def _product(output: str, cotangent: str, value: Tensor) -> str:
    """The real number whose gradient is the pull of a cotangent."""
    if value.is_complex():
        return f"({output} * {cotangent}.conj()).sum().real"
    return f"({output} * {cotangent}).sum()"


# ---- where a context comes from ----


def contexts(
    subject: Subject, finding: Finding, example: Example, call: str
) -> Iterator[ReproContext]:
    """What shows a finding: with short numbers where values do not matter, then as it is."""
    others: list[ReproContext] = []
    for variant, codes in _spellable(example, is_free=finding.rule.group != "domain"):
        found = _context_of(subject, finding, variant, call, codes)
        if found is not None:
            yield found
            others += [replace(found, draw=draw) for draw in range(1, DRAWS)]
    if finding.rule.group in DRAWN:
        yield from others


def context_at(context: ReproContext, example: Example) -> ReproContext:
    """The same context at other arguments."""
    run = context.subject.run(example, needs=context.needed)
    return replace(context, example=example, run=run, codes={})


def _context_of(
    subject: Subject, finding: Finding, example: Example, call: str, codes: dict[int, str]
) -> ReproContext | None:
    needed, about = tuple(sorted(example.needs)), finding.about
    if about.needed is not None:
        needed = tuple(i for i in needed if subject.names[i] in about.needed)
    try:
        run = subject.run(example, needs=needed)
    except ForwardRefusedError:  # which is what there is to show
        run = replace(subject.run(subject.given), example=example, result=(), names=subject.names)
    if not isinstance(run.result, Tensor):
        if not isinstance(run.result, (tuple, list)):
            return None
        if sum(isinstance(value, Tensor) for value in run.result) != len(run.outputs):
            return None  # a tensor lies deeper
    used = run.live if about.used is None else about.used
    names = tuple(_identifier(name, i) for i, name in enumerate(subject.names))
    is_random = _is_random(subject, example)
    return ReproContext(subject, finding, example, run, call, names, needed, used, is_random, codes)


def _identifier(name: str, position: int) -> str:
    """A name for an argument that nothing else in a repro has."""
    is_free = name not in TAKEN.split() and not hasattr(builtins, name)
    return name if name.isidentifier() and is_free else f"arg{position}"


def _is_random(subject: Subject, example: Example) -> bool:
    """Whether another seed gives another result; not where that cannot be seen."""
    found = []
    for seed in (1, 2):
        try:
            with torch.no_grad(), seeded(seed):
                out = subject.target.call(*example.fresh(needs=frozenset()))
        except Exception:  # it fails without grad, which is for a rule to say
            return False
        found.append(out)
    first, second = (o if isinstance(o, Tensor) else o[0] for o in found)
    return first.shape != second.shape or not torch.equal(first, second)


def _spellable(example: Example, *, is_free: bool) -> Iterator[tuple[Example, dict[int, str]]]:
    """The example with short numbers, shorter where its values do not matter; then as it is.

    With it comes the code of each large argument, which is drawn.
    """
    large = [i for i in example.differentiable if example.args[i].numel() > LARGEST]
    seen: dict[int, Tensor] = {}
    short = rounded if is_free else shortened
    yield example.map(lambda t: seen.setdefault(id(t), short(t)), example.label), {}
    yield example, {}
    for seed in range(SEEDS) if large else ():
        wide = "" if seed < SEEDS - 1 else "4 * "  # at last, numbers that are rare otherwise
        codes = {i: wide + _drawing(example.args[i], 10 * seed + i) for i in large}
        drawn = example
        for i, code in codes.items():
            drawn = drawn.put(i, eval(code, {"torch": torch}), example.label)
        yield drawn, codes


def _drawing(tensor: Tensor, seed: int) -> str:
    """The code of a tensor like this one, in its layout, of random numbers."""
    rest = f"dtype={tensor.dtype}, generator=torch.Generator().manual_seed({seed})"
    is_positive = not tensor.is_complex() and bool((tensor > 0).all())
    kind, more = ("rand", " + 0.5") if is_positive else ("randn", "")
    if tensor.is_contiguous() and not tensor.storage_offset():
        drawn = f"torch.{kind}({tuple(tensor.shape)}, {rest}){more}"
        return f"({drawn})" if more else drawn
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    memory = f"(torch.{kind}({size}, {rest}){more})"
    return f"{memory}.as_strided({_place(tensor)})"


def _place(tensor: Tensor) -> str:
    where = f", {tensor.storage_offset()}" if tensor.storage_offset() else ""
    return f"{tuple(tensor.shape)}, {tuple(tensor.stride())}{where}"


def shortened(tensor: Tensor) -> Tensor:
    """Values of three digits each: what is equal, zero, large or small stays so."""
    if not can_differ(tensor) or tensor.is_complex() or not tensor.numel():
        return tensor
    wide = tensor.detach().double()
    places = 10.0 ** (2 - wide.abs().log10().floor())
    made = torch.where(torch.isfinite(places) & torch.isfinite(wide), (wide * places).round(), wide)
    made = torch.where(torch.isfinite(places) & torch.isfinite(wide), made / places, wide)
    return tensor.detach().clone(memory_format=torch.preserve_format).copy_(made)


def rounded(tensor: Tensor) -> Tensor:
    """Values of two decimals, in the same layout; itself where it has none to round."""
    if not can_differ(tensor) or tensor.is_complex() or not bool(torch.isfinite(tensor).all()):
        return tensor
    copy = tensor.detach().clone(memory_format=torch.preserve_format)
    return copy.copy_((copy.double() * 100).round() / 100)


# ---- cotangents as code ----


def _short(cotangent: Tensor) -> Tensor:
    """The cotangent, or one that can be spelled where it is large."""
    if cotangent.numel() <= LARGEST or cotangent.is_complex():
        return cotangent
    steps = torch.arange(cotangent.numel(), device=cotangent.device) % 7 - 3.25
    return steps.reshape(cotangent.shape).to(cotangent.dtype)


def cotangent_code(cotangent: Tensor) -> str:
    """The code of a cotangent, as `_short` gives it."""
    if cotangent.numel() <= LARGEST:
        return spelled(cotangent)
    kind = "" if cotangent.dtype == torch.float32 else f".to({cotangent.dtype})"
    shape = tuple(cotangent.shape)
    return f"(torch.arange({cotangent.numel()}) % 7 - 3.25).reshape({shape}){kind}"


def laid_code(cotangent: Tensor) -> str:
    """The code of a cotangent in its layout, of other numbers where it is large."""
    try:
        return spelled(cotangent)
    except UnspeakableError:
        if cotangent.is_conj() or cotangent.is_neg() or cotangent.is_complex():
            raise
    size = cotangent.untyped_storage().nbytes() // cotangent.element_size()
    memory = f"(torch.arange({size}) % 7 - 3.25).to({cotangent.dtype})"
    return f"{memory}.as_strided({_place(cotangent)})"
