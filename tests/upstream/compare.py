"""What a program gives and its derivatives, and how far two such answers are apart.

The truth is PyTorch in eager mode on the same inputs. Two right ways to compute the same differ by
rounding alone, so the bounds are these, each relative to the largest number of the tensor at hand:

- double precision: 1e-9. Rounding is 2e-16; derivatives of sums, norms and solves of the sizes here
  lose some five digits of it, and a wrong formula is off by 1e-4 and more.
- single precision: 1e-4, rounding being 6e-8, with the same five digits lost for badly scaled
  second derivatives left out. Where two answers are further apart, both are compared with the same
  in double precision: what is at most ten times as far from it as eager mode is right.

NaN and infinity must stand in the same places.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

BOUND = {torch.float64: 1e-9, torch.float32: 1e-4}
ROOM = 10.0
"""How many times as far from the answer in double precision as eager mode one may be."""

LEAST = 1e-3
"""What counts as the largest number where all are nearer to zero: what is left of larger ones."""

Call = Callable[..., Any]


@dataclass
class Answer:
    """Tensors by what they are: `output 0`, `gradient of input 1`; and what is said of them."""

    tensors: dict[str, Tensor | None]
    facts: dict[str, Any]


# ---- derivatives ----


def random_like(x: Tensor, seed: int) -> Tensor:
    """Normal numbers of the shape and dtype of `x`."""
    generator = torch.Generator().manual_seed(seed)
    wide = torch.complex128 if x.is_complex() else torch.float64
    return torch.randn(x.shape, dtype=wide, generator=generator).to(x.dtype)


def run(call: Call, inputs: Sequence[Tensor]) -> tuple[list[Tensor], Answer]:
    """The tensors that a call returns, and what they are."""
    torch.manual_seed(0)
    returned = call(*inputs)
    leaves, spec = pytree.tree_flatten(returned)
    outputs = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    facts: dict[str, Any] = {
        "structure": _plain(spec),
        "values": [leaf for leaf in leaves if not isinstance(leaf, Tensor)],
        "requires_grad": [y.requires_grad for y in outputs],
    }
    return outputs, Answer({f"output {i}": y for i, y in enumerate(outputs)}, facts)


def _plain(spec: Any) -> str:
    """The structure of what is returned; a list is as good as a tuple."""
    return " ".join(str(spec).replace("list", "tuple").split())


def first(
    call: Call, inputs: Sequence[Tensor], layout: Callable[[Tensor], Tensor] | None = None
) -> Answer:
    """Outputs and gradients: for all cotangents together, and for the first and last alone.

    `layout` is that of the cotangents.
    """
    outputs, answer = run(call, inputs)
    linked = [y for y in outputs if y.requires_grad]
    wanted = [x for x in inputs if x.requires_grad]
    cotangents = [random_like(y, i) for i, y in enumerate(linked)]
    cotangents = [layout(c) for c in cotangents] if layout else cotangents
    choices = {"": range(len(linked))} if linked else {}
    if len(linked) > 1:
        choices |= {" from the first output alone": range(1)}
        choices |= {" from the last output alone": range(len(linked) - 1, len(linked))}
    for said, some in choices.items():
        found = torch.autograd.grad(
            [linked[i] for i in some],
            wanted,
            [cotangents[i] for i in some],
            retain_graph=True,
            allow_unused=True,
        )
        _add(answer, f"gradient{said} of input", inputs, wanted, found)
    return answer


def second(call: Call, inputs: Sequence[Tensor]) -> Answer:
    """Gradients of a random projection of the gradients, by the inputs and the cotangents."""
    outputs, answer = run(call, inputs)
    linked = [y for y in outputs if y.requires_grad]
    wanted = [x for x in inputs if x.requires_grad]
    cotangents = [random_like(y, i).requires_grad_() for i, y in enumerate(linked)]
    gradients = torch.autograd.grad(
        linked, wanted, cotangents, create_graph=True, allow_unused=True
    )
    found = [g for g in gradients if g is not None and g.requires_grad]
    if not found:
        return answer
    weights = [random_like(g, 100 + i) for i, g in enumerate(found)]
    asked = [*wanted, *cotangents]
    twice = torch.autograd.grad(found, asked, weights, allow_unused=True)
    _add(answer, "second gradient of input", inputs, wanted, twice[: len(wanted)])
    for i, g in enumerate(twice[len(wanted) :]):
        answer.tensors[f"second gradient of cotangent {i}"] = g
    return answer


def _add(
    answer: Answer, said: str, inputs: Sequence[Tensor], wanted: Sequence[Tensor], found: Any
) -> None:
    places = [i for i, x in enumerate(inputs) if any(x is one for one in wanted)]
    for place, gradient in zip(places, found, strict=True):
        answer.tensors[f"{said} {place}"] = gradient


def tangents(call: Call, inputs: Sequence[Tensor], push: Call | None = None) -> Answer:
    """Forward mode along a random direction, by `torch.func.jvp` or by `push`."""
    moving = [i for i, x in enumerate(inputs) if x.requires_grad]
    plain = [x.detach() for x in inputs]
    given = [random_like(plain[i], 200 + i) for i in moving]
    torch.manual_seed(0)
    if push is not None:
        row: list[Tensor | None] = [None] * len(plain)
        for place, tangent in zip(moving, given, strict=True):
            row[place] = tangent
        outputs, pushed = push(plain, row)
    else:

        def of_moving(*some: Tensor) -> Any:
            args = list(plain)
            for place, tensor in zip(moving, some, strict=True):
                args[place] = tensor
            return call(*args)

        primals = tuple(plain[i] for i in moving)
        outputs, pushed = torch.func.jvp(of_moving, primals, tuple(given))
    rows = {f"output {i}": y for i, y in enumerate(_tensors(outputs))}
    rows |= {f"tangent {i}": t for i, t in enumerate(_tensors(pushed))}
    return Answer(rows, {})


def batched(call: Call, inputs: Sequence[Tensor]) -> Answer:
    """What a call on a batch returns, its gradients included."""
    outputs, answer = run(call, inputs)
    linked = [y for y in outputs if y.requires_grad]
    wanted = [x for x in inputs if x.requires_grad]
    if linked:
        cotangents = [random_like(y, i) for i, y in enumerate(linked)]
        found = torch.autograd.grad(linked, wanted, cotangents, allow_unused=True)
        _add(answer, "gradient of input", inputs, wanted, found)
    answer.facts = {}
    return answer


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


# ---- how far apart ----


def difference(
    got: Answer,
    truth: Answer,
    precise: Callable[[], Answer] | None = None,
    known: Collection[str] = (),
) -> str:
    """In words, how two answers differ, or "" where they are equal but for rounding.

    `precise` is the truth in double precision, asked for only where a bound is passed; `known` are
    the tensors that are not compared.
    """
    for fact, expected in truth.facts.items():
        if not _alike(got.facts[fact], expected):
            return f"{fact} is {got.facts[fact]} instead of {expected}"
    if got.tensors.keys() != truth.tensors.keys():
        return f"has {sorted(got.tensors)} instead of {sorted(truth.tensors)}"
    for name, expected in truth.tensors.items():
        if name in known:
            continue
        said = _far(got.tensors[name], expected)
        if not said:
            continue
        if precise is not None and _is_near(got, truth, precise().tensors.get(name), name):
            continue
        return f"{name} {said}"
    return ""


def _alike(a: Any, b: Any) -> bool:
    return repr(a) == repr(b)


def _far(got: Tensor | None, expected: Tensor | None) -> str:
    """How a tensor differs, or ""; no gradient is as good as zeros."""
    if got is None or expected is None:
        other = expected if got is None else got
        is_zero = other is None or not bool((other.detach() != 0).any())
        return "" if is_zero else f"is {'None' if got is None else 'not None'}"
    a, b = got.detach(), expected.detach()
    if a.shape != b.shape or a.dtype != b.dtype:
        return f"is {a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}"
    if not b.numel():
        return ""
    if not (b.is_floating_point() or b.is_complex()):
        return "" if bool((a == b).all()) else "differs"
    if b.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    odd = ~(b.isfinite() & a.isfinite())
    if bool(odd.any()) and not torch.equal(a[odd].nan_to_num(9e9), b[odd].nan_to_num(9e9)):
        place = int(odd.flatten().nonzero()[0])
        return f"is {float(a.flatten()[place]):.6g} instead of {float(b.flatten()[place]):.6g}"
    a, b = a.masked_fill(odd, 0), b.masked_fill(odd, 0)
    error, scale = float((a - b).abs().max()), float(b.abs().max())
    bound = BOUND.get(b.dtype, 1e-2)
    if error <= bound * max(scale, LEAST):
        return ""
    return f"is off by {error:.3g}, the largest number being {scale:.3g}"


def _is_near(got: Answer, truth: Answer, precise: Tensor | None, name: str) -> bool:
    """Whether a number in single precision is about as good as that of eager mode."""
    a, b = got.tensors[name], truth.tensors[name]
    if a is None or b is None or precise is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    if precise.shape != a.shape:
        return False
    wide = [x.detach().to(precise.dtype) for x in (a, b)]
    mine, theirs = (float((x - precise.detach()).abs().max()) for x in wide)
    return mine <= ROOM * theirs
