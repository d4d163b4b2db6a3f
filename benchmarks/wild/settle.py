"""Settle findings by runs that the checker has no part in, and compare with the verdicts.

`python -m benchmarks.wild.settle` runs, for each verdict, the settlement it names, on the subject
at the finding's own inputs or at the example, and fails where the run says something else than the
verdict: what is *true* or *arguable* must be shown, what is *false* must not.

A settlement is a function of this module, or `module:function` of `evidence/`. Each gets the
subject and says whether what the finding claims is shown. `repro` runs the program that the finding
came with, which imports the package and PyTorch and nothing of ours.
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks.wild import verdicts
from benchmarks.wild.apart import apart
from benchmarks.wild.install import folder
from benchmarks.wild.results import Found, Result, read
from benchmarks.wild.run import LATEST
from benchmarks.wild.subject import Subject, every

SECONDS = 120.0


# ---- what a settlement can ask ----


def in_double(values: Any) -> Any:
    """The same values with every floating tensor in float64, as leaves."""

    def cast(leaf: Any) -> Any:
        if isinstance(leaf, torch.nn.Module):
            return leaf.double()
        if type(leaf) not in (Tensor, torch.nn.Parameter):
            return leaf
        if not (leaf.is_floating_point() or leaf.is_complex()):
            return leaf
        kind = torch.complex128 if leaf.is_complex() else torch.float64
        return leaf.detach().to(kind).requires_grad_(leaf.requires_grad)

    return tree_map(cast, values)


def call_of(subject: Subject) -> Callable[..., Any]:
    """The subject as something to call."""
    target = subject.load()
    return target.apply if isinstance(target, type) else target  # type: ignore[attr-defined, no-any-return]


def fails(check: Callable[..., bool], call: Callable[..., Any], inputs: Sequence[Any]) -> bool:
    """Whether a check of PyTorch's own rejects the call."""
    torch.manual_seed(0)
    try:
        check(call, tuple(inputs))
    except Exception:
        return True
    return False


# ---- settlements ----


def differences(subject: Subject) -> bool:
    """`torch.autograd.gradcheck` rejects the gradients at the example, in float64."""
    inputs = in_double(subject.inputs())
    return fails(torch.autograd.gradcheck, call_of(subject), inputs)


def second(subject: Subject) -> bool:
    """`torch.autograd.gradgradcheck` rejects the second derivatives at the example."""
    inputs = in_double(subject.inputs())
    return fails(torch.autograd.gradgradcheck, call_of(subject), inputs)


def gradients(
    subject: Subject, unpack: Callable[[int, Tensor], Tensor], packed: list[Tensor]
) -> list[Tensor]:
    """The gradients at the example, with every saved tensor seen as it is packed and unpacked."""
    torch.manual_seed(0)
    inputs = subject.inputs()
    leaves = [x for x in tree_leaves(inputs) if isinstance(x, Tensor) and x.requires_grad]

    def pack(tensor: Tensor) -> int:
        packed.append(tensor)
        return len(packed) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: unpack(i, packed[i])):
        out = call_of(subject)(*inputs)
        outs = [o for o in tree_leaves(out) if isinstance(o, Tensor) and o.requires_grad]
        found = torch.autograd.grad(
            outs, leaves, [torch.ones_like(o) for o in outs], allow_unused=True
        )
    return [torch.zeros(()) if g is None else g for g in found]


def unread(subject: Subject) -> bool:
    """There is a saved tensor that may come back as NaN, and the gradients are the same."""
    packed: list[Tensor] = []
    right = gradients(subject, lambda _, tensor: tensor, packed)
    for i, tensor in enumerate(list(packed)):
        if not tensor.is_floating_point():
            continue
        spoilt = gradients(
            subject, lambda k, t, i=i: torch.full_like(t, torch.nan) if k == i else t, []
        )
        if all(map(torch.equal, right, spoilt)):
            return True
    return False


def copied(subject: Subject) -> bool:
    """A saved tensor has the values of an input, in memory of its own."""
    packed: list[Tensor] = []
    gradients(subject, lambda _, tensor: tensor, packed)
    inputs = [x for x in tree_leaves(subject.inputs()) if isinstance(x, Tensor)]
    return any(
        torch.equal(saved, x) and not saved.requires_grad for saved in packed for x in inputs
    )


def _backward(subject: Subject, prepare: Callable[[Any], Any] = lambda inputs: inputs) -> Any:
    """The inputs, the leaves with a gradient, and the gradients as a function of nothing."""
    torch.manual_seed(0)
    inputs = prepare(subject.inputs())
    leaves = [x for x in tree_leaves(inputs) if isinstance(x, Tensor) and x.requires_grad]
    out = call_of(subject)(*inputs)
    outs = [o for o in tree_leaves(out) if isinstance(o, Tensor) and o.requires_grad]
    ones = [torch.ones_like(o) for o in outs]

    def backward() -> list[Tensor | None]:
        found = torch.autograd.grad(outs, leaves, ones, retain_graph=True, allow_unused=True)
        return list(found)

    return inputs, leaves, backward


def _differ(one: Sequence[Tensor | None], other: Sequence[Tensor | None]) -> bool:
    return any(
        (a is None) != (b is None) or (a is not None and not torch.allclose(a, b))
        for a, b in zip(one, other, strict=True)
    )


def cut(subject: Subject) -> bool:
    """The gradient depends on an input, and has no way back to it for a second derivative."""
    torch.manual_seed(0)
    found = []
    for factor in (1.0, 2.0):
        inputs = subject.inputs()
        leaves = [x for x in tree_leaves(inputs) if isinstance(x, Tensor) and x.requires_grad]
        with torch.no_grad():
            for x in leaves:
                x.mul_(factor)
        out = call_of(subject)(*inputs)
        outs = [o for o in tree_leaves(out) if isinstance(o, Tensor) and o.requires_grad]
        ones = [torch.ones_like(o) for o in outs]
        found.append(torch.autograd.grad(outs, leaves, ones, create_graph=True))
    return _differ(*found) and not any(g.requires_grad for g in found[0])


def frozen(subject: Subject) -> bool:
    """With the gradient of one input alone asked for, backward fails or gives another."""
    _, leaves, backward = _backward(subject)
    right = backward()
    for keep in range(len(leaves)):

        def prepare(inputs: Any, keep: int = keep) -> Any:
            found = [x for x in tree_leaves(inputs) if isinstance(x, Tensor) and x.requires_grad]
            for k, x in enumerate(found):
                x.requires_grad_(k == keep)
            return inputs

        try:
            _, _, alone = _backward(subject, prepare)
            if _differ(alone(), right[keep : keep + 1]):
                return True
        except Exception:
            return True
    return False


def edited(subject: Subject) -> bool:
    """A tensor that is changed in place before backward changes the gradients, without an error."""
    _, _, backward = _backward(subject)
    right = backward()
    inputs, _, _ = _backward(subject)
    for k, x in enumerate(tree_leaves(inputs)):
        if not isinstance(x, Tensor):
            continue
        changed, _, backward = _backward(subject)
        with torch.no_grad():
            tensor = tree_leaves(changed)[k]
            tensor.logical_not_() if tensor.dtype == torch.bool else tensor.mul_(2)
        try:
            if _differ(backward(), right):
                return True
        except Exception:
            continue
    return False


def output_edited(subject: Subject) -> bool:
    """An output that is changed in place before backward changes the gradients, silently."""
    found = []
    for factor in (1.0, 2.0):
        torch.manual_seed(0)
        inputs = subject.inputs()
        leaves = [x for x in tree_leaves(inputs) if isinstance(x, Tensor) and x.requires_grad]
        out = call_of(subject)(*inputs)
        with torch.no_grad():
            out.mul_(factor)
        found.append(torch.autograd.grad(out.sum(), leaves, allow_unused=True))
    return _differ(*found)


def twice(subject: Subject) -> bool:
    """A second backward over one graph fails, or gives other gradients."""
    _, _, backward = _backward(subject)
    first = [None if g is None else g.clone() for g in backward()]
    try:
        return _differ(first, backward())
    except Exception:
        return True


def drawn(subject: Subject) -> bool:
    """Backward with the generator in other states gives other gradients."""
    _, _, backward = _backward(subject)
    found = []
    for seed in range(20):
        torch.manual_seed(seed)
        found.append([None if g is None else g.clone() for g in backward()])
    return any(_differ(found[0], other) for other in found[1:])


def autocast(subject: Subject) -> bool:
    """Backward works after an ordinary forward, and raises after one under autocast."""
    _backward(subject)[2]()
    try:
        with torch.autocast("cpu", torch.bfloat16):
            backward = _backward(subject)[2]
    except Exception:
        return False
    try:
        backward()
    except Exception:
        return True
    return False


def repaired(subject: Subject) -> bool:
    """What backward returns has another shape or dtype than its input, before PyTorch mends it."""
    seen: list[Any] = []
    plain = subject.load()

    def backward(ctx: Any, *grads: Any) -> Any:
        seen.append(plain.backward(ctx, *grads))
        return seen[-1]

    watched = type(plain.__name__, (plain,), {"backward": staticmethod(backward)})
    inputs = subject.inputs()
    out = watched.apply(*inputs)
    out.sum().backward()
    pairs = zip(inputs, seen[0], strict=False)
    return any(
        isinstance(g, Tensor) and (g.shape != x.shape or g.dtype != x.dtype) for x, g in pairs
    )


def needless(subject: Subject) -> bool:
    """With one input's gradient asked for, backward also computes that of another."""
    seen: list[Any] = []
    plain = subject.load()

    def backward(ctx: Any, *grads: Any) -> Any:
        seen.append((ctx.needs_input_grad, plain.backward(ctx, *grads)))
        return seen[-1][1]

    watched = type(plain.__name__, (plain,), {"backward": staticmethod(backward)})
    count = sum(isinstance(x, Tensor) and x.requires_grad for x in subject.inputs())
    for keep in range(count):
        inputs = subject.inputs()
        leaves = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
        for k, x in enumerate(leaves):
            x.requires_grad_(k == keep)
        watched.apply(*inputs).sum().backward()
    return any(
        isinstance(g, Tensor) and not asked
        for needs, found in seen
        for asked, g in zip(needs, found, strict=False)
    )


def moved(subject: Subject) -> bool:
    """PyTorch's generator is in another state after backward than before it."""
    _, _, backward = _backward(subject)
    before = torch.get_rng_state()
    backward()
    return not torch.equal(before, torch.get_rng_state())


def kept(subject: Subject) -> bool:
    """Tensors stay on ctx after backward, where PyTorch frees what was saved."""
    out = call_of(subject)(*subject.inputs())
    outs = [o for o in tree_leaves(out) if isinstance(o, Tensor) and o.grad_fn is not None]
    torch.autograd.backward([o.sum() for o in outs])
    attributes = vars(outs[0].grad_fn)
    return any(isinstance(leaf, Tensor) for leaf in tree_leaves(dict(attributes)))


def mutated(subject: Subject) -> bool:
    """An input is not what it was before forward."""
    inputs = subject.inputs()
    tensors = [x for x in tree_leaves(inputs) if isinstance(x, Tensor)]
    before = [x.detach().clone() for x in tensors]
    # Under no_grad a leaf may be changed in place, as a tensor of a network could be.
    with torch.no_grad():
        call_of(subject)(*inputs)
    return not all(map(torch.equal, before, tensors))


def program(text: str, packages: Path) -> bool:
    """Whether a finding's own program ends in an error that is about what it says."""
    if not text:
        return False
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(text)
        file.flush()
        done = subprocess.run(
            [sys.executable, file.name],
            capture_output=True,
            text=True,
            cwd=packages.parent.parent,
            env={**os.environ, "PYTHONPATH": str(packages)},
            timeout=SECONDS,
        )
    return done.returncode != 0 and "ModuleNotFoundError" not in done.stderr


def settlement(name: str) -> Callable[[Subject], bool]:
    """The function that a verdict or a defect names."""
    module, _, function = name.rpartition(":")
    place = f"benchmarks.wild.evidence.{module}" if module else __name__
    return getattr(importlib.import_module(place), function)  # type: ignore[no-any-return]


def shown(verdict: verdicts.Verdict, subject: Subject, found: Found, packages: Path) -> bool:
    """Whether the settlement of a verdict shows what the finding says; in this process."""
    if verdict.settled == "repro":
        return program(found.repro, packages)
    return bool(settlement(verdict.settled)(subject))


def undefended(patterns: Sequence[str] = (), tell: Callable[[str], None] = print) -> list[str]:
    """Each known defect that its own evidence does not show."""
    subjects = {subject.id: subject for subject in every()}
    lines = []
    for defect in verdicts.defects():
        if patterns and not any(fnmatch.fnmatch(defect.subject, f"*{p}*") for p in patterns):
            continue
        answer, error = apart(
            lambda d=defect: bool(settlement(d.settled)(subjects[d.subject])),
            path=folder(),
            seconds=SECONDS,
        )
        line = f"{defect.subject}: {defect.what}: {error or answer}"
        tell(f"{'ok ' if answer else 'NO '} {line}")
        lines += [] if answer else [line]
    return lines


def disagreements(
    results: Sequence[Result], patterns: Sequence[str] = (), tell: Callable[[str], None] = print
) -> list[str]:
    """Each verdict that its own settlement does not bear out."""
    subjects = {subject.id: subject for subject in every()}
    known, packages = verdicts.read(), folder()
    lines = []
    for result in results:
        if patterns and not any(fnmatch.fnmatch(result.subject, f"*{p}*") for p in patterns):
            continue
        for found in {found.rule + found.place: found for found in result.found}.values():
            verdict = known.get(verdicts.key(result, found))
            if verdict is None:
                continue
            subject = subjects[result.subject]
            answer, error = apart(
                lambda v=verdict, s=subject, f=found: shown(v, s, f, packages),
                path=packages,
                seconds=SECONDS,
            )
            right = not error and answer == (verdict.verdict != "false")
            said = error or ("shown" if answer else "not shown")
            line = f"{verdict.subject} {verdict.rule}: {verdict.verdict}, {verdict.settled}: {said}"
            tell(f"{'ok ' if right else 'NO '} {line}")
            lines += [] if right else [line]
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wild.settle", description=__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN")
    parser.add_argument("--json", type=Path, default=LATEST, help="the results to settle")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    lines = [*undefended(options.only), *disagreements(read(options.json), options.only)]
    print(f"{len(lines)} are not borne out" if lines else "every defect and verdict is borne out")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
