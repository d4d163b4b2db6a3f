"""A wrong gradient across ranks as a program of its own, which torchrun runs.

It needs PyTorch and the user's module. It moves one input along one direction, on the ranks that
hold it, and compares the slope of the loss with what backward gives. The ranks run it before it is
shown: one that does not fail there is none.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from pullback.check.findings.facts import Gradient, Output
from pullback.check.ranks.blocks import Blocks, block_of
from pullback.check.ranks.commands import MeshLayout, ProgramCommand, Ran, Values
from pullback.check.ranks.consistency import Judged, Rows, held, replicated_of, shared_of
from pullback.check.ranks.joint import Joint, JointPoint, Shared
from pullback.check.target.spelling import LARGEST, UnspeakableError, imported, spelled
from pullback.judge.example import can_differ

STEP = 1e-3
# The names that the program gives to things of its own.
TAKEN = (
    "along at dist expected first g got groups is_right leaf loss mesh out part rank spread step"
    " sys torch total"
)
SAME = 1e-9  # of a number that two runs of the program give

SPREAD = """from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

mesh = {mesh}

def spread(whole, placements):
    there = DTensor.from_local(whole, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return there.redistribute(placements=placements).detach()
"""
BEGIN = """if not dist.is_initialized():
    dist.init_process_group("gloo")
rank = dist.get_rank()"""


@dataclass(frozen=True, slots=True)
class RankProgram:
    """A program that has failed, and the numbers that it gave."""

    text: str
    expected: float
    got: float


def program_of(joint: Joint, judged: Judged, rows: Rows, rank: int) -> RankProgram | None:
    """The program that shows a wrong gradient on a rank; None where none does."""
    if not joint.is_exact:
        return None
    try:
        body = _body(joint, judged, rows, rank)
        ran = _ran(joint, body, rank)
    except Exception:  # the finding stands without a program
        return None
    if ran is None:
        return None
    return RankProgram(_whole(joint, f"; with {judged.assignment}", body), ran.expected, ran.got)


def program_of_parts(joint: Joint, what: Output | Gradient, rank: int) -> str:
    """The program that shows that a rank's part of a DTensor is not that of rank 0; else empty."""
    try:
        body = _body_of_parts(joint, what, rank)
        return "" if _ran(joint, body, rank) is None else _whole(joint, "", body)
    except Exception:  # as above
        return ""


def _whole(joint: Joint, more: str, body: str) -> str:
    """The whole program: how to run it, what it imports, and what the ranks have run."""
    head, _ = imported(joint.target)
    lines = ["import torch", "import torch.distributed as dist", *head.splitlines()]
    begin = f"# torchrun --nproc-per-node {joint.size} repro.py{more}"
    return "\n".join([begin, *lines, "", BEGIN, body])


def _ran(joint: Joint, body: str, rank: int) -> Ran | None:
    """What the program gave on a rank where it fails, the same at two seeds."""
    _, call = imported(joint.target)
    name = call.removesuffix(".apply")
    several: list[Ran] = []
    for program in (ProgramCommand(body, name, seed) for seed in (1, 2)):
        replies = [reply.value for reply in joint.ask(partial(_same, program))]
        if [number for number, ran in enumerate(replies) if ran.has_failed] != [rank]:
            return None
        several.append(replies[rank])
    one, two = several
    is_same = abs(one.expected - two.expected) <= SAME * max(1.0, abs(one.expected))
    return one if is_same else None


def _same(program: ProgramCommand, rank: int) -> ProgramCommand:
    return program


# ---- the text ----


def _body(joint: Joint, judged: Judged, rows: Rows, rank: int) -> str:
    position = joint.names.index(rows.name)
    key = replicated_of(joint, judged.assignment)
    point = joint.point(key)
    slopes = joint.slopes(key)
    mover = rank if (rank, position) in slopes else min(r for r, p in slopes if p == position)
    directions = slopes[mover, position].directions
    draw, row = divmod(int(rows.wrong[rank].int().argmax()), len(directions))
    shared, ranks = shared_of(joint, judged.assignment), range(joint.size)
    drawn, _ = joint.pulled(key, draw, shared)
    placed = rows.placed
    block = block_of(held(joint, placed), rank)
    movers = block if placed.is_replicated else (mover,)
    names = [_identifier(name, i) for i, name in enumerate(joint.names)]
    moved = names[position]
    _, call = imported(joint.target)
    done = f"out = {call}({', '.join(names)})"
    used = [o for o, cotangent in enumerate(drawn[rank]) if cotangent is not None]
    outs = [_output(joint, number) for number in used]
    weights = ["g" if len(used) == 1 else f"g[{k}]" for k in range(len(used))]
    along = directions[row].to(point[rank][position].dtype)
    layout = joint.argument(rank, position).layout
    whole = ".full_tensor()" * (layout is not None)
    gradient = f"torch.autograd.grad({_several(outs)}, {moved}, g, materialize_grads=True)[0]"
    gradient += whole
    reach = "" if not placed.has_shares else f"group={_group(joint, block)}"
    summed = [f"dist.all_reduce(got{', ' * bool(reach)}{reach})"] if placed.has_shares else []
    leaves = [names[p] for p in joint.positions]
    return "\n".join(
        [
            *_groups(joint),
            *_mesh(joint),
            *_arguments(joint, point, key, names),
            f"g = {_by_rank([_several(_cotangents(drawn, shared, used, r)) for r in ranks])}",
            "",
            f"def loss({moved}):  # of all ranks: the sum of the outputs, each times its cotangent",
            f"    {done}",
            f"    total = {_total(joint, judged, drawn, used, outs, weights)}",
            "    dist.all_reduce(total)",
            "    return total",
            "",
            f"along = {_tensor(along, 1)}  # how `{moved}` moves",
            f"step = {_laid(f'{STEP} * along * (rank in {_ranks(movers)})', layout)}",
            f"expected = (loss({moved} + step) - loss({moved} - step)) / {2 * STEP}",
            f"for leaf in [{', '.join(leaves)}]:",
            "    leaf.requires_grad_()",
            done,
            f"got = {_product(gradient, 'along', along)}",
            *summed,
            "is_right = torch.allclose(got, expected, 1e-3, 1e-5)",
            f'assert is_right or rank != {rank}, f"{{got=}}, {{expected=}}"',
        ]
    )


def _body_of_parts(joint: Joint, what: Output | Gradient, rank: int) -> str:
    """One call, of which a part that is said to be the same on all ranks is compared."""
    key = frozenset(joint.positions)
    names = [_identifier(name, i) for i, name in enumerate(joint.names)]
    _, call = imported(joint.target)
    lines = [f"out = {call}({', '.join(names)})"]
    if isinstance(what, Gradient):
        used = [number for number in range(joint.outputs) if joint.live[number]]
        loss = " + ".join(f"{_output(joint, number)}.square().sum()" for number in used)
        name = names[joint.names.index(what.name)]
        part = f"torch.autograd.grad({loss}, {name})[0]"
    else:
        part = "out" if joint.outputs == 1 else f"out[{what.number}]"
    return "\n".join(
        [
            *_groups(joint),
            *_mesh(joint),
            *_arguments(joint, joint.point(key), key, names),
            f"for leaf in [{', '.join(names[p] for p in joint.positions)}]:",
            "    leaf.requires_grad_()",
            *lines,
            f"part = {part}.to_local().detach().flatten()  # said to be one on all ranks",
            "first = part.clone()",
            "dist.broadcast(first, 0)",
            "at = (part - first).abs().argmax()",
            "expected, got = first[at], part[at]",
            "is_right = torch.allclose(got, expected, 1e-3, 1e-5)",
            f'assert is_right or rank != {rank}, f"{{got=}}, {{expected=}}"',
        ]
    )


def _seed(number: int, rank: int, blocks: Blocks) -> int:
    """A seed for the numbers of a rank: one for the ranks of a block."""
    return 100 * number + (block_of(blocks, rank)[0] if blocks else rank)


def _arguments(
    joint: Joint, point: JointPoint, key: frozenset[int], names: Sequence[str]
) -> list[str]:
    """The lines that make the arguments of each rank."""
    lines = []
    for position, name in enumerate(names):
        given = [one.args[position] for one in joint.given]
        if any(argument.ranks for argument in given):
            lines.append(f"{name} = {_group_by_rank([argument.ranks for argument in given])}")
            continue
        if position in joint.positions:
            blocks = joint.held_by(position) if position in key else ()
            codes = [
                _tensor(values[position], _seed(position, rank, blocks))
                for rank, values in enumerate(point)
            ]
        elif all(argument.is_told for argument in given):
            plain = [a.plain if a.value is None else a.value for a in given]
            is_wide = joint.is_double and all(map(can_differ, plain))
            codes = [spelled(p.double() if is_wide else p) for p in plain]
        else:
            raise UnspeakableError(given[0].words)
        lines.append(f"{name} = {_laid(_by_rank(codes), given[0].layout)}")
    return lines


def _laid(code: str, layout: MeshLayout | None) -> str:
    """The code of a tensor, of which a DTensor is made where the argument is one."""
    return code if layout is None else f"spread({code}, {layout.placements})"


def _mesh(joint: Joint) -> list[str]:
    """The lines that make the mesh of DTensors; raises where there are several, or none is told."""
    spread = [a for one in joint.given for a in one.args if a.is_global]
    if not spread:
        return []
    meshes = {None if a.layout is None else a.layout.mesh for a in spread}
    mesh = meshes.pop()
    if mesh is None or meshes:
        raise UnspeakableError(spread[0].words)
    return [SPREAD.format(mesh=mesh)]


def _output(joint: Joint, number: int) -> str:
    """An output in the program: all of it where it is a DTensor."""
    code = "out" if joint.outputs == 1 else f"out[{number}]"
    return f"{code}.full_tensor()" if joint.first[0].value.spread[number] else code


def _total(
    joint: Joint,
    judged: Judged,
    drawn: Sequence[Values],
    used: Sequence[int],
    outs: Sequence[str],
    weights: Sequence[str],
) -> str:
    """The expression of what a rank adds to the loss: a value that all hold counts once."""
    terms = []
    for number, out, weight in zip(used, outs, weights, strict=True):
        placed = judged.assignment.outputs[number]
        cotangent = drawn[0][number]
        assert cotangent is not None
        term = _product(out, weight, cotangent)
        if placed.is_replicated:
            firsts = [block[0] for block in held(joint, placed)]
            term += f" * (rank in {_ranks(firsts)})"
        terms.append(term)
    return " + ".join(terms)


def _cotangents(
    drawn: Sequence[Values], shared: Shared, used: Sequence[int], rank: int
) -> list[str]:
    pairs = [(number, drawn[rank][number]) for number in used]
    return [
        _tensor(value, 1000 + _seed(number, rank, shared[number]))
        for number, value in pairs
        if value is not None
    ]


def _product(one: str, two: str, like: Tensor) -> str:
    """The real number that a value and its cotangent make."""
    return f"({one} * {two}.conj()).sum().real" if like.is_complex() else f"({one} * {two}).sum()"


def _several(codes: Sequence[str]) -> str:
    return codes[0] if len(codes) == 1 else f"[{', '.join(codes)}]"


def _by_rank(codes: Sequence[str]) -> str:
    """The expression of what differs between the ranks, or does not."""
    if len(set(codes)) == 1:
        return codes[0]
    lines = "".join(f"    {code},\n" for code in codes)
    return f"[\n{lines}][rank]"


def _tensor(value: Tensor, seed: int) -> str:
    """The code of a tensor: with two decimals, or, where it is large, random numbers."""
    value = value.detach().contiguous()
    if value.numel() <= LARGEST:
        return spelled(value if value.is_complex() else (value * 100).round() / 100)
    if not can_differ(value):
        return spelled(value)
    is_positive = not value.is_complex() and bool((value > 0).all())
    kind, more = ("rand", " + 0.5") if is_positive else ("randn", "")
    drawn = f"generator=torch.Generator().manual_seed({seed})"
    return f"torch.{kind}({tuple(value.shape)}, dtype={value.dtype}, {drawn}){more}"


def _ranks(ranks: Sequence[int]) -> str:
    return f"({', '.join(map(str, ranks))}{',' * (len(ranks) == 1)})"


# ---- groups ----


def _groups(joint: Joint) -> list[str]:
    """The line that makes the groups that are arguments, or that shares are summed in."""
    found = {a.ranks for one in joint.given for a in one.args if a.ranks}
    found |= set(joint.blocks) if len(joint.blocks) > 1 else set()
    small = sorted(ranks for ranks in found if len(ranks) < joint.size)
    if not small:
        return []
    told = ", ".join(map(_ranks, small))
    return [f"groups = {{ranks: dist.new_group(ranks) for ranks in ({told},)}}"]


def _group(joint: Joint, ranks: Sequence[int]) -> str:
    return "None" if len(ranks) == joint.size else f"groups[{_ranks(ranks)}]"


def _group_by_rank(ranks: Sequence[tuple[int, ...]]) -> str:
    if len(set(ranks)) == 1 and len(ranks[0]) == len(ranks):
        return "dist.group.WORLD"
    return f"groups[{_by_rank([_ranks(one) for one in ranks])}]"


def _identifier(name: str, position: int) -> str:
    is_free = name not in TAKEN.split() and not hasattr(builtins, name) and name.isidentifier()
    return name if is_free else f"arg{position}"
