"""Parallel Functions of public frameworks, checked across ranks on CPU with gloo.

    python -m venv wild && wild/bin/pip install fairscale deepspeed nanotron yunchang
    wild/bin/python -m benchmarks.wild.ranks --ranks 2

What is found is compared with the verdicts below, each of which was read in the source: a finding
that nobody has read fails the run, and so does one that is gone.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

import pullback as pb


@dataclass(frozen=True)
class Subject:
    """One Function of a package, its inputs on each rank, and what is known of it."""

    where: str  # module:Name
    inputs: Callable[[int], tuple[Any, ...]]
    found: tuple[str, ...] = ()  # the rules that find something
    verdict: str = "sound"


def shard(rank: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers that differ from rank to rank."""
    generator = torch.Generator().manual_seed(10 * seed + rank + 1)
    return torch.randn(*shape, generator=generator)


def one(*shape: int, seed: int = 0) -> torch.Tensor:
    """Numbers that are the same on all ranks."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(99 + seed))


def fairscale() -> None:
    """Make the groups of fairscale's model parallelism: all ranks are one."""
    groups = importlib.import_module("fairscale.nn.model_parallel.initialize")
    groups.initialize_model_parallel(dist.get_world_size())


def deepspeed() -> Any:
    """Let deepspeed use the group that is there, without the op that it would build for it."""
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    importlib.import_module("deepspeed.comm").init_distributed("gloo", verbose=False)
    return dist.group.WORLD


def in_fairscale(make: Callable[[int], tuple[Any, ...]]) -> Callable[[int], tuple[Any, ...]]:
    """The inputs of a rank, after the groups are there."""

    def inputs(rank: int) -> tuple[Any, ...]:
        fairscale()
        return make(rank)

    return inputs


TARGET = torch.tensor([0, 3, 1, 2, 3])
MAPPINGS = "fairscale.nn.model_parallel.mappings"
LAYERS = "deepspeed.module_inject.layers"
VOCAB = "deepspeed.sequence.vocab_parallel_ops"
PRIMITIVES = "nanotron.parallel.tensor_parallel.distributed_differentiable_primitives"

SUBJECTS = (
    Subject(
        f"{MAPPINGS}:_CopyToModelParallelRegion",
        in_fairscale(lambda rank: (one(4, 4),)),
        found=("written-by-collective",),
        verdict="confirmed: backward sums in place over the cotangent it is given",
    ),
    Subject(
        f"{MAPPINGS}:_ReduceFromModelParallelRegion",
        in_fairscale(lambda rank: (shard(rank, 4, 4),)),
    ),
    Subject(
        f"{MAPPINGS}:_ScatterToModelParallelRegion",
        in_fairscale(lambda rank: (one(4, 4),)),
        found=("strided-across-ranks",),
        verdict="confirmed: the cotangent is a buffer of the gather: y.sum().backward() raises",
    ),
    Subject(
        f"{MAPPINGS}:_GatherFromModelParallelRegion",
        in_fairscale(lambda rank: (shard(rank, 4, 4),)),
    ),
    Subject(
        "fairscale.nn.model_parallel.cross_entropy:_VocabParallelCrossEntropy",
        in_fairscale(lambda rank: (shard(rank, 5, 2), TARGET % (2 * dist.get_world_size()))),
        found=("second-across-ranks",),
        verdict="confirmed: a second derivative loses what depends on the logits",
    ),
    Subject(
        "fairscale.nn.moe.moe_layer:_AllToAll",
        lambda rank: (dist.group.WORLD, shard(rank, 4, 3)),
    ),
    Subject("deepspeed.moe.sharded_moe:_AllToAll", lambda rank: (deepspeed(), shard(rank, 4, 3))),
    Subject(
        f"{LAYERS}:RowParallel",
        lambda rank: (deepspeed(), shard(rank, 4, 3), False),
        found=("written-by-collective",),
        verdict="confirmed: in place on the input, not marked dirty; strided inputs are not summed",
    ),
    Subject(
        f"{LAYERS}:ColumnParallel",
        lambda rank: (deepspeed(), one(4, 3)),
        found=("strided-across-ranks", "written-by-collective"),
        verdict="confirmed: a strided cotangent is summed in a copy that is dropped",
    ),
    Subject(
        f"{LAYERS}:AsyncColumnParallel",
        lambda rank: (deepspeed(), one(4, 3), shard(rank, 2, 3), shard(rank, 2, seed=1)),
    ),
    Subject(
        f"{LAYERS}:ScatterToTensorParallelRegion",
        lambda rank: (deepspeed(), one(4, 4), [4 // dist.get_world_size()] * 4, rank),
    ),
    Subject(
        f"{LAYERS}:GatherFromTensorParallelRegion",
        lambda rank: (deepspeed(), shard(rank, 4, 2), (2,) * dist.get_world_size()),
    ),
    Subject(
        "deepspeed.sequence.cross_entropy:_VocabParallelCrossEntropy",
        lambda rank: (shard(rank, 5, 2), TARGET % 4, deepspeed(), 2 * rank, 2 * rank + 2, -100),
    ),
    Subject(
        "deepspeed.sequence.cross_entropy:_GatherSequenceLoss",
        lambda rank: (shard(rank, 4, 3), deepspeed(), True),
        found=("second-across-ranks",),
        verdict="confirmed: a second derivative loses the reduce-scatter of backward",
    ),
    Subject(
        f"{VOCAB}:_VocabParallelLogProbs",
        lambda rank: (shard(rank, 5, 2), (TARGET % 4)[:, None], deepspeed(), 2 * rank, -100),
    ),
    Subject(f"{VOCAB}:_VocabParallelEntropy", lambda rank: (shard(rank, 5, 2), deepspeed())),
    Subject(
        "deepspeed.moe.ep_tp_dispatch:_AllGatherVariableRows",
        lambda rank: (shard(rank, 2, 3), deepspeed(), [2] * dist.get_world_size(), 2),
        found=("second-across-ranks",),
        verdict="confirmed: a second derivative loses the sum; the first is right if sharded",
    ),
    Subject(
        "deepspeed.module_inject.auto_ep_layer:_AllToAllV",
        lambda rank: (
            deepspeed(),
            shard(rank, dist.get_world_size(), 3),
            [1] * dist.get_world_size(),
            [1] * dist.get_world_size(),
        ),
        found=("second-across-ranks",),
        verdict="confirmed: autograd does not follow backward, which nothing says",
    ),
    Subject(
        f"{PRIMITIVES}:DifferentiableIdentity",
        lambda rank: (one(4, 3), dist.group.WORLD),
        found=("written-by-collective",),
        verdict="confirmed: backward sums in place over the cotangent it is given",
    ),
    Subject(
        f"{PRIMITIVES}:DifferentiableAllReduceSum",
        lambda rank: (shard(rank, 4, 3), dist.group.WORLD),
        found=("written-by-collective",),
        verdict="confirmed: the input is summed in place and returned, not marked dirty",
    ),
    Subject(
        f"{PRIMITIVES}:DifferentiableAllGather",
        lambda rank: (shard(rank, 4, 3), dist.group.WORLD),
    ),
    Subject(
        f"{PRIMITIVES}:DifferentiableReduceScatterSum",
        lambda rank: (shard(rank, 4, 3), dist.group.WORLD),
    ),
    Subject(
        "yunchang.comm.all_to_all:SeqAllToAll4D",
        lambda rank: (dist.group.WORLD, shard(rank, 2, 3, 4, 2), 2, 1),
    ),
)


def audited(subject: Subject, ranks: int) -> tuple[list[str], str, float]:
    """The rules that find something, the report, and the seconds."""
    module, _, name = subject.where.partition(":")
    start = time.monotonic()
    target = getattr(importlib.import_module(module), name)
    report = pb.check(target, subject.inputs, ranks=ranks, allow=("wrapped-differs",))
    return sorted({f.rule.name for f in report.findings}), str(report), time.monotonic() - start


def main() -> int:
    """Check every Function whose package is there, and print what is not as it was read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--reports", action="store_true", help="print every report")
    options = parser.parse_args()
    wrong = 0
    for subject in SUBJECTS:
        if options.only not in subject.where:
            continue
        try:
            names, report, seconds = audited(subject, options.ranks)
        except ImportError as error:
            print(f"{subject.where}: not installed ({error})")
            continue
        except pb.PullbackError as error:
            print(f"{subject.where}: {error}")
            wrong += 1
            continue
        is_known = names == sorted(subject.found)
        wrong += not is_known
        told = subject.verdict if is_known else f"NEW, expected {list(subject.found)}"
        print(f"{subject.where}: {names or 'nothing'} in {seconds:.1f} s: {told}")
        if options.reports or not is_known:
            print(report)
        sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
