"""`hybrid`: a program with some of its units combined into nodes, and the rest as written.

The program is recorded as units on its examples. A call of a kind or of sizes that were not seen
is recorded again: if it makes the same calls, the same grouping serves it, otherwise it runs as
written.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from pullback.capture.fake import is_odd
from pullback.capture.names import program_name
from pullback.capture.trees import map_leaves, tensor_leaves
from pullback.compose.fast_path import table_of
from pullback.compose.flow import Flow, flow_of, recorded_units, skeleton
from pullback.compose.nested import as_written, callable_of, composition
from pullback.compose.options import AS_WRITTEN, ComposeOptions, require_examples
from pullback.compose.reasons import REFUSALS, Reasons, call_text, reason_text
from pullback.derive.recipes import Recipes
from pullback.function.slots import has_tangent, transforms_active
from pullback.judge.tensor_specs import tensor_spec_of_leaf
from pullback.run import describe_backend
from pullback.run.nodes.paths import Paths, UncompiledReason

FLOWS = 256  # how many calls of other kinds and sizes are kept


def hybrid_program(
    program: Callable[..., Any],
    examples: tuple[Any, ...],
    groups: Iterable[Iterable[int]],
    options: ComposeOptions,
) -> Any:
    """As `pullback.hybrid`, which says what it does."""
    program, name = callable_of(program), options.name
    options = ComposeOptions(options.backend, options.policy(), verify=options.verify)
    require_examples(program, examples)
    flows = _Flows(program, tuple(tuple(group) for group in groups), options)
    paths = flows.paths
    try:
        flows.begin(examples)
    except REFUSALS as error:
        paths.as_written(UncompiledReason(reason_text(error), AS_WRITTEN))
        return as_written(program, reason_text(error), name)
    table = table_of(flows.kinds.environment, flows.entry, flows.run, paths)
    made = composition(program, "hybrid", table.make_call(), name)
    made.is_wrong = staticmethod(flows.is_wrong)
    made.eager_reasons = staticmethod(flows.eager_reasons)
    made.explain = staticmethod(lambda: "\n".join(flows.lines()))
    made.groups = flows.first.groups
    made.flow, made.specs = flows.first, map_leaves(tensor_spec_of_leaf, examples)
    return made


class _Flows:
    """The flows of one program and one grouping, by the calls that they serve."""

    def __init__(
        self,
        program: Callable[..., Any],
        groups: tuple[tuple[int, ...], ...],
        options: ComposeOptions,
    ) -> None:
        self.program = program
        self.groups = groups
        self.options = options
        self.paths = Paths(program_name(program), warns=options.compiles)
        self.kinds = Recipes(program, options.policy())
        self.reasons = Reasons()
        self._flows: OrderedDict[Any, Flow] = OrderedDict()
        self._lock = threading.RLock()

    def begin(self, examples: tuple[Any, ...]) -> None:
        """Make the flow of the examples, which all others follow."""
        with torch.enable_grad():
            self.first = self._make((examples, {}))
            self._flows[self.kinds.key((examples, {}))[:2]] = self.first

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """One call."""
        tensors = tensor_leaves((args, kwargs))
        if (
            not torch.is_grad_enabled()
            or transforms_active()
            or has_tangent(tensors)
            or any(map(is_odd, tensors))
        ):
            return self.program(*args, **kwargs)
        flow = self._find(args, kwargs)
        return self.program(*args, **kwargs) if flow is None else flow.run(tensors)

    def entry(self, args: tuple[Any, ...]) -> tuple[Any, str]:
        """What runs calls like this one, and how, for the table of the short way."""
        flow = self._find(args, {})
        if flow is None:
            return self.program, "run as written"
        places = [i for i, arg in enumerate(args) if isinstance(arg, Tensor)]
        is_bare = not flow.needs

        def run(*args: Any) -> Any:
            if is_bare or flow.is_as_it_was():
                return flow.run([args[place] for place in places])
            return self.run(*args)

        return run, "run in groups"

    def _find(self, args: Any, kwargs: Any) -> Flow | None:
        """The flow for a call; None if it runs as written."""
        kind, call, _ = self.kinds.key((args, kwargs))
        key = kind, call
        flow = self._flows.get(key)
        if flow is not None and flow.is_as_it_was():
            return flow
        with self._lock:
            flow = self._flows.get(key)  # another thread may have made it meanwhile
            if flow is not None and flow.is_as_it_was():
                return flow
            if key in self.reasons:
                return None
            try:
                flow = self._flows[key] = self._make((args, kwargs))
            except REFUSALS as error:
                self._refuse(key, (args, kwargs), reason_text(error))
                return None
            if skeleton(flow.program) != skeleton(self.first.program):
                del self._flows[key]
                self._refuse(key, (args, kwargs), "it makes other calls than the examples do")
                return None
            while len(self._flows) > FLOWS:
                self._flows.popitem(last=False)
            return flow

    def _refuse(self, key: Any, call: tuple[Any, Any], reason: str) -> None:
        self.reasons.add(key, call_text(call), reason)
        self.paths.warn(UncompiledReason(reason, AS_WRITTEN))

    def _make(self, call: tuple[Any, Any]) -> Flow:
        program = self.program
        self.kinds.require_seen(call)

        def whole(args: Any, kwargs: Any) -> Any:
            return program(*args, **kwargs)

        whole.__name__ = getattr(program, "__name__", type(program).__name__)
        units = recorded_units(whole, call)
        module = getattr(program, "__module__", None) or "__main__"
        return flow_of(units, self.groups, call, self.options, module)

    # ---- what to say of it ----

    def lines(self) -> list[str]:
        """What runs how, line by line."""
        flow = self.first
        nodes = len(flow.nodes)
        alone = sum(len(group) for group in flow.groups if group not in flow.nodes)
        first = f"hybrid: {_count(nodes, 'node')} and {_count(alone, 'unit')} as written"
        rows = [f"{first}, {describe_backend(self.options.backend)}"]
        for group in flow.groups:
            names = ", ".join(f"{n} {flow.program.units[n].name}" for n in group)
            how = "one node" if group in flow.nodes else "as written"
            why = f": {flow.reasons[group]}" if group in flow.reasons else ""
            rows.append(f"  {how}: {names}{why}")
            node = flow.nodes.get(group)
            rows += [f"  {line}" for line in node.nodes.lines()] if node is not None else []
        return [*rows, *self.paths.lines(), *self.reasons.lines()]

    def is_wrong(self) -> bool:
        """Whether code of one of the nodes was seen to compute something else."""
        return any(node.nodes.is_wrong for node in self.first.nodes.values())

    def eager_reasons(self) -> tuple[str, ...]:
        """Why something of the nodes is not compiled."""
        nodes = (node.nodes for node in self.first.nodes.values())
        return tuple(dict.fromkeys(reason for each in nodes for reason in each.reasons))


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + ("" if number == 1 else "s")
