"""The cut "auto" saves no more bytes than AOTAutograd's min-cut, on any pipeline.

Everyone's bytes are counted in the same way: memory that is not an input's is an intermediate's (an
output that is saved, too), a view counts as its base, and each piece of memory counts once. Eager
autograd's are seen by `saved_tensors_hooks`. Torch's partitioners get the joint graph that we cut;
its min-cut also gets it in the simpler ops that `torch.compile` would have made of it, and the
better of its two results counts.

Exits with 1 if the claim fails, if "everything" keeps more than eager autograd, or if "auto" keeps
any intermediate of ten leapfrog steps.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, fx
from torch._functorch import partitioners
from torch._inductor.decomposition import select_decomp_table
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.pipelines import PIPELINES, make_inputs
from pullback.capture.joint import capture
from pullback.graph.cost import base_of, bytes_of
from pullback.graph.cut import cut
from pullback.graph.cut_problem import is_plain_number
from pullback.graph.parts import BACKWARD, FORWARD, JointGraph, calls, phase_of

Bytes = tuple[int, int]
"""Of intermediates, of inputs."""

COLUMNS = ("eager", "torch default", "torch min-cut", "everything", "half", "auto", "inputs")


# ---- who saves what ----


def eager(function: Callable[..., Any], inputs: Sequence[Tensor]) -> Bytes:
    """What eager autograd keeps after a call."""
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        outputs = function(*inputs)
    own = {x.untyped_storage().data_ptr() for x in inputs}
    sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}
    total, of_inputs = sum(sizes.values()), sum(n for at, n in sizes.items() if at in own)
    del outputs
    return total - of_inputs, of_inputs


def by_default_partition(joint: JointGraph) -> Bytes:
    """What torch's default partitioner keeps: the trace as it is."""
    return by_torch(partitioners.default_partition, joint)


def by_min_cut(joint: JointGraph) -> Bytes:
    """What torch's min-cut keeps, of the graph as it is or in simpler ops."""
    partition = partitioners.min_cut_rematerialization_partition
    return min(by_torch(partition, joint), by_torch(partition, decomposed(joint)), key=sum)


def by_torch(partition: Callable[..., Any], joint: JointGraph) -> Bytes:
    """What one of torch's partitioners keeps."""
    graph = copy.deepcopy(joint.graph)
    twin = JointGraph(graph, joint.input_count, joint.output_count)
    for kind, nodes in (("primals", twin.inputs), ("tangents", twin.cotangents)):
        for number, node in enumerate(nodes, start=1):
            node.target = node.name = f"{kind}_{number}"  # how torch tells them apart
    for node in calls(graph):
        node.meta["partitioner_tag"] = f"is_{phase_of(node)}"
    names = {node.name: node for node in graph.nodes}
    examples = [node.meta["val"] for node in twin.placeholders]
    module = fx.GraphModule({}, copy.deepcopy(graph))
    forward, _ = partition(module, examples, num_fwd_outputs=joint.output_count)
    returned = forward.graph.output_node().args[0][joint.output_count :]
    return counted(names[node.name] for node in returned)


def decomposed(joint: JointGraph) -> JointGraph:
    """`joint` in the ops of `torch.compile`; what needs a cotangent is backward's."""
    values = [node.meta["val"] for node in joint.placeholders]
    examples = [torch.empty_strided(v.shape, v.stride(), dtype=v.dtype) for v in values]
    interpreter = fx.Interpreter(fx.GraphModule({}, joint.graph))
    trace = make_fx(interpreter.run, select_decomp_table(), tracing_mode="fake")
    result = JointGraph(trace(*examples).graph, joint.input_count, joint.output_count)
    late = set(result.cotangents)
    for node in result.graph.nodes:
        late |= {node} if late & set(node.all_input_nodes) else set()
        node.meta["phase"] = BACKWARD if node in late else FORWARD
    return result


def by_us(joint: JointGraph, policy: str | int) -> Bytes:
    """What a cut of ours keeps, all inputs being leaves."""
    return counted(cut(joint, policy, free=range(joint.input_count)).saved)


def counted(saved: Iterable[fx.Node]) -> Bytes:
    """The bytes of the memory behind `saved`, once each."""
    bases = {base_of(node) for node in saved if not is_plain_number(node)}
    of_inputs = sum(bytes_of(node) for node in bases if node.op == "placeholder")
    return sum(map(bytes_of, bases)) - of_inputs, of_inputs


def row(function: Callable[..., Any], inputs: Sequence[Tensor]) -> dict[str, Bytes]:
    """Everyone's bytes for one function."""
    joint = capture(function, inputs, dynamic=False).joint
    everything = by_us(joint, "everything")
    kept = (
        eager(function, inputs),
        by_default_partition(joint),
        by_min_cut(joint),
        everything,
        by_us(joint, everything[0] // 2),
        by_us(joint, "auto"),
        by_us(joint, "inputs"),
    )
    return dict(zip(COLUMNS, kept, strict=True))


# ---- the claim ----


def broken(name: str, kept: dict[str, Bytes]) -> list[str]:
    """What is wrong with one row, in words."""
    auto, other = kept["auto"], kept["torch min-cut"]
    faults = []
    if auto[0] > other[0] or sum(auto) > sum(other):
        faults.append(f"{name}: auto saves {cell(auto)} MiB, torch's min-cut {cell(other)}")
    if sum(kept["everything"]) > sum(kept["eager"]):
        more = f"{cell(kept['everything'])} MiB, eager {cell(kept['eager'])}"
        faults.append(f"{name}: everything saves {more}")
    if name.startswith("leapfrog") and auto[0] > 0:
        faults.append(f"{name}: auto keeps {auto[0]} bytes of intermediates, not 0")
    return faults


def cell(kept: Bytes) -> str:
    """Bytes as MiB of intermediates + MiB of inputs."""
    return "+".join(f"{number / 2**20:.2f}" for number in kept)


def main() -> int:
    """Print the table; 1 if the claim fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--elements", type=int, default=2**20, help="of the largest activation")
    parser.add_argument("--rounds", type=int, help="ignored: bytes are the same in every round")
    elements = parser.parse_args().elements
    console = Console(width=130)
    table = Table(title=f"MiB saved, intermediates+inputs, {elements:,} float32 elements")
    for head in ("pipeline", *COLUMNS):
        table.add_column(head, justify="left" if head == "pipeline" else "right")
    faults = []
    for name, pipeline in PIPELINES.items():
        inputs = make_inputs(name, elements)
        for form, function in (("plain", pipeline.plain), ("nested", pipeline.nested)):
            kept = row(function, inputs)
            table.add_row(f"{name} {form}", *map(cell, kept.values()))
            faults += broken(f"{name} {form}", kept)
    console.print(table)
    console.print("half: a budget of half the intermediates of everything", highlight=False)
    console.print("\n".join(faults) or "auto never saves more than torch's min-cut")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
