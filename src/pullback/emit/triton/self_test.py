"""The end of a file of kernels: its test with recorded numbers, and its benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pullback.derive.source import loaded
from pullback.emit.python.self_test import SUMS, SelfTest
from pullback.emit.subject import EmitSubject
from pullback.graph.values import held_value
from pullback.judge.comparison import aside
from pullback.judge.tensor_specs import TensorSpec

if TYPE_CHECKING:
    from pullback.emit.triton.module import KernelFile

TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 4e-2}

_REQUIRE = '''\
def require(tensor, name, dtype, shape):
    """Raise unless a tensor is of the dtype and shape that the kernels are written for."""
    if tensor.dtype != dtype or tuple(tensor.shape) != tuple(shape):
        got = f"{tensor.dtype} {tuple(tensor.shape)}"
        raise ValueError(f"`{name}` must be {dtype} {tuple(shape)}, got {got}")
'''

_TEXT = '''\
# ---- self-test: `python {file}`, benchmark: `python {file} --bench` ----


{inputs}

RECORDED = {{
{rows}
}}
"""What `{program}` gave for these inputs when this was written: weighted sums."""


def few(y):
    """A tensor in few numbers: weighted sums of it."""
    flat = y.detach().double().flatten()
    weights = 1 + torch.arange(flat.numel(), device=y.device) % 7
    padded = torch.nn.functional.pad(flat * weights, (0, -flat.numel() % {sums}))
    return padded.reshape({sums}, -1).sum(1)


def same(got, what):
    """Raise, and name `what` it is, unless a tensor is as recorded but for rounding."""
    expected = torch.tensor(RECORDED[what], dtype=torch.float64, device=got.device)
    allowed = {tolerance} * few(got.abs()) + 1e-6
    if not bool(((few(got) - expected).abs() <= allowed).all()):
        raise AssertionError(f"{{what}} is not as recorded: {{few(got).tolist()}}")


def cotangent(y, i):
    """What is pulled back from output `i`: other numbers for each of its elements."""
    row = torch.arange(y.numel(), dtype=torch.float64, device=y.device)
    return ((0.25 * i + 0.7548776662 * row) % 1 - 0.25).reshape(y.shape).to(y.dtype)


def run(given, cotangents=None):
    """Outputs and gradients, by what they are."""
    given = [x.detach().requires_grad_(x.requires_grad) for x in given]
    outputs = {name}.apply(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    found = {{f"output {{i}}": y for i, y in enumerate(outputs)}}
    wanted = {{n: x for n, x in zip({names}, given) if x.requires_grad}}
    live = [y for y in outputs if y.requires_grad]
    if cotangents is None:
        cotangents = [cotangent(y, i) for i, y in enumerate(live)]
    pulled = torch.autograd.grad(live, list(wanted.values()), cotangents)
    return {{**found, **{{f"the gradient of `{{n}}`": g for n, g in zip(wanted, pulled)}}}}


def self_test(device):
    """Raise unless outputs and gradients are as recorded, and the same twice over."""
    given = [x.detach().to(device).requires_grad_(x.requires_grad) for x in inputs()]
    for (what, got), again in zip(run(given).items(), run(given).values()):
        same(got, what)
        same_twice = torch.equal(got, again) or bool(got.isnan().any())
        assert same_twice, f"{{what}} differs from run to run"


def bench(device):
    """Time of forward and backward, and how that compares with moving the bytes once."""
    given = [x.detach().to(device) for x in inputs()]
    times = max(1, 2**26 // max(x.numel() for x in given))
    for place, (x, like) in enumerate(zip(given, inputs())):
        longer = x.repeat(*(times if d == GROWS[place] else 1 for d in range(x.dim())))
        given[place] = longer.requires_grad_(like.requires_grad)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda y: saved.append(y) or y, lambda y: y):
        found = run(given)
    live = [y for y in found.values() if y.requires_grad]
    cotangents = [cotangent(y, i) for i, y in enumerate(live)]
    moved = sum(x.nbytes for x in (*given, *found.values(), *saved, *cotangents))
    del saved, found, live
    taken = triton.testing.do_bench(lambda: run(given, cotangents), return_mode="median")
    block = torch.empty(2**29, dtype=torch.uint8, device=device)
    copied = triton.testing.do_bench(lambda: block.clone(), return_mode="median")
    speed = 2 * block.numel() / copied
    times = taken * speed / moved
    print(f"{name}: {{taken:.3f}} ms, {{times:.2f}} times the time to move its bytes")


GROWS = {grows}
"""The dimension of each input that a benchmark makes longer."""


if __name__ == "__main__":
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu" and not INTERPRETED:
        raise SystemExit("{name} needs a GPU, or TRITON_INTERPRET=1")
    self_test(device)
    print("{name}: outputs and gradients are right")
    if "--bench" in sys.argv:
        bench(device)
'''


@dataclass(frozen=True)
class KernelTest:
    """The test of a file of kernels: its inputs, and what the program gave for them."""

    inputs: SelfTest
    recorded: Mapping[str, Tensor]

    def text(self, made: KernelFile, file: str) -> str:
        """The end of the file."""
        test = self.inputs
        rows = [f'    "{what}": {_listed(few_of(y))},' for what, y in self.recorded.items()]
        tolerance = max(TOLERANCES.get(like.dtype, 0.0) for like in test.specs)
        return f"{_REQUIRE}\n\n" + _TEXT.format(
            file=file,
            inputs=test.inputs(),
            rows="\n".join(rows),
            program=test.program,
            sums=SUMS,
            tolerance=tolerance,
            name=made.subject.name,
            names=repr(test.names),
            grows=_grows(made),
        )


def kernel_test(subject: EmitSubject, names: tuple[str, ...]) -> KernelTest:
    """Inputs like the examples, in their own dtypes, and what the program gives for them."""
    flags = subject.wanted or tuple(one.needs for one in subject.captured.inputs)
    needs = tuple(
        one.needs and (place >= len(flags) or flags[place])
        for place, one in enumerate(subject.captured.inputs)
    )
    specs = tuple(replace(like, device="cpu") for like in _smaller(subject))
    program = subject.captured.name.removesuffix(".apply")
    test = SelfTest(program, names, needs, specs, program=program, is_double=False)
    space = loaded(f"import torch\n\n\n{test.inputs()}")
    device = subject.specs[0].device if subject.specs else "cpu"
    given = [x.detach().to(device).requires_grad_(x.requires_grad) for x in space["inputs"]()]
    return KernelTest(test, _recorded(subject, test, given))


def _recorded(subject: EmitSubject, test: SelfTest, given: list[Tensor]) -> dict[str, Tensor]:
    """Outputs and gradients of the program, in double precision where it runs so: kernels of half
    types round less than the program does."""
    wide = [x.detach().double() if x.is_floating_point() else x for x in given]
    wide = [x.requires_grad_(need) for x, need in zip(wide, test.needs, strict=True)]
    with aside():
        try:
            return _results(subject, test, wide)
        except Exception:  # any: a program that names its dtypes
            return _results(subject, test, given)


def _results(subject: EmitSubject, test: SelfTest, given: list[Tensor]) -> dict[str, Tensor]:
    outputs = subject.call(*subject.captured.fill(given))
    outputs = list(outputs) if isinstance(outputs, tuple | list) else [outputs]
    live = [y for y in outputs if y.requires_grad]
    names = [name for name, need in zip(test.names, test.needs, strict=True) if need]
    wanted = [x for x in given if x.requires_grad]
    cotangents = [_cotangent(y, i) for i, y in enumerate(live)]
    pulled: tuple[Tensor, ...] = ()
    if live and wanted:
        pulled = torch.autograd.grad(live, wanted, cotangents, materialize_grads=True)
    found = {f"output {i}": y.detach() for i, y in enumerate(outputs)}
    return {**found, **{f"the gradient of `{n}`": g for n, g in zip(names, pulled, strict=False)}}


def _cotangent(y: Tensor, i: int) -> Tensor:
    """As `cotangent` in the text."""
    row = torch.arange(y.numel(), dtype=torch.float64, device=y.device)
    return ((0.25 * i + 0.7548776662 * row) % 1 - 0.25).reshape(y.shape).to(y.dtype)


LARGE, SIZE = 1 << 16, 64
"""Examples of more elements than that are tested smaller: free sizes are halved down to `SIZE`."""


def _smaller(subject: EmitSubject) -> tuple[TensorSpec, ...]:
    """What the examples are like, at sizes at which a test takes no time.

    Where there are integers, which may be indices, only the sizes that they have themselves change.
    """
    if sum(like.numel for like in subject.specs) <= LARGE:
        return subject.specs
    values = [held_value(node) for node in subject.captured.joint.inputs]
    integers = [v for v in values if not v.is_floating_point()]
    free = {str(s) for v in integers or values for s in v.shape if _is_symbol(s)}
    found = []
    for like, value in zip(subject.specs, values, strict=True):
        pairs = zip(like.shape, value.shape, strict=True)
        shape = tuple(_halved(n) if str(s) in free else n for n, s in pairs)
        is_same = shape == like.shape
        found.append(like if is_same else replace(like, shape=shape, values=None, sample=None))
    return tuple(found)


def _is_symbol(size: object) -> bool:
    return isinstance(size, torch.SymInt) and bool(size.node.expr.is_symbol)


def _halved(size: int) -> int:
    while size > SIZE and size % 2 == 0:
        size //= 2
    return size


def few_of(y: Tensor) -> Tensor:
    """As `few` in the text."""
    flat = y.detach().double().cpu().flatten()
    weights = 1 + torch.arange(flat.numel()) % 7
    padded = torch.nn.functional.pad(flat * weights, (0, -flat.numel() % SUMS))
    return padded.reshape(SUMS, -1).sum(1)


def _listed(values: Tensor) -> str:
    return "[" + ", ".join(f"{float(v):.6g}" for v in values) + "]"


def _grows(made: KernelFile) -> tuple[int | None, ...]:
    """For each input the dimension that has the first free size of the largest input."""
    values = [held_value(node) for node in made.parts.joint.inputs]
    largest = max(zip(values, made.subject.specs, strict=True), key=lambda pair: pair[1].numel)[0]
    free = next((str(s) for s in largest.shape if isinstance(s, torch.SymInt)), None)
    return tuple(next((d for d, s in enumerate(v.shape) if str(s) == free), None) for v in values)
