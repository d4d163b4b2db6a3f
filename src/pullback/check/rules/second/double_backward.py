"""Second derivatives that are wrong, or cut off without a word."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pullback.check.findings.facts import At
from pullback.check.findings.registered import Registered
from pullback.check.repro.orders import second_slope
from pullback.check.subject.second_order import Defect, second_order
from pullback.check.subject.subject import Finding, Rule, Severity, Skip, Subject
from pullback.check.watching.saving import saving
from pullback.judge.example import can_differ, tensors_in

INTENT = ("once_differentiable",)
WRONG_DOUBLE_BACKWARD = Rule(
    "H001", "wrong-double-backward", "second", profile="quick", intent=INTENT
)
DETACHED_DOUBLE_BACKWARD = Rule(
    "H002", "detached-double-backward", "second", profile="quick", intent=INTENT
)

SAVED = (
    "a tensor that forward computed on the way is saved: it is a constant to the second backward"
)
RECOMPUTE = "compute it in backward from saved inputs or outputs, or add @once_differentiable"
DIFFERENTIATE = (
    "let each step of backward have its own right derivative, or add @once_differentiable"
)
REFUSE = "add @once_differentiable to backward, whose error says it"
HISTORY = "compute with tensors that have a history, or add @once_differentiable to backward"


def wrong_double_backward(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per variable whose second derivative has wrong numbers."""
    outcome = second_order(subject)
    if outcome.accident is not None and not outcome.defects:
        yield subject.finding(
            WRONG_DOUBLE_BACKWARD,
            example=subject.small,
            severity=Severity.FRAGILE,
            at="backward, with create_graph=True",
            expected="gradients of the gradient, or an error that says why there are none",
            got=outcome.accident,
            fix=REFUSE,
        )
        return
    for found in _defects(WRONG_DOUBLE_BACKWARD, subject, is_cut=False):
        if isinstance(found, Skip):
            yield found
            continue
        yield subject.finding(
            WRONG_DOUBLE_BACKWARD,
            example=found.example,
            severity=_severity(subject),
            at=At(found.thing, found.index),
            expected=found.expected,
            got=found.got,
            why=SAVED if _keeps_intermediate(subject) else "",
            fix=RECOMPUTE if _keeps_intermediate(subject) else DIFFERENTIATE,
        )


def detached_double_backward(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per variable that the gradient is cut off from."""
    for found in _defects(DETACHED_DOUBLE_BACKWARD, subject, is_cut=True):
        if isinstance(found, Skip):
            yield found
            continue
        yield subject.finding(
            DETACHED_DOUBLE_BACKWARD,
            example=found.example,
            severity=_severity(subject),
            at=At(found.thing, found.index),
            expected=found.expected.then(", or an error"),
            got="0 in every entry",
            why=f"the way from the gradient back to {found.thing.source} is cut",
            remedy="cut",
            fix=HISTORY,
        )


def _severity(subject: Subject) -> Severity | None:
    """A surrogate has no true second derivative: one that is not its own derivative is fragile."""
    return Severity.FRAGILE if subject.target.intent.has_surrogate else None


def _defects(rule: Rule, subject: Subject, *, is_cut: bool) -> Iterator[Defect | Skip]:
    """The defects of one kind, from now on reported, or the reason why none could be looked for."""
    outcome = second_order(subject)
    if outcome.skip and not outcome.defects:
        yield outcome.skipped(rule)
    for defect in outcome.defects:
        if defect.is_cut == is_cut:
            subject.reported.add((rule.group, defect.name))
            yield defect


def _keeps_intermediate(subject: Subject) -> bool:
    """Whether a tensor that is neither input nor output is saved, or lies on ctx.

    Such a tensor has no history: to a second backward it is a constant.
    """
    if not subject.target.is_function:
        return False
    packed: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with saving(subject.target, pack):
        called = subject.run(subject.small)
    for node in {id(o.grad_fn): o.grad_fn for o in called.outputs}.values():
        packed += tensors_in(list(getattr(node, "__dict__", {}).values()))
    known = {_memory(t) for t in (*tensors_in(called.passed), *called.outputs)}
    return any(can_differ(tensor) and _memory(tensor) not in known for tensor in packed)


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


RULES = (
    Registered(
        WRONG_DOUBLE_BACKWARD,
        wrong_double_backward,
        repros=(second_slope,),
        page="""
The gradient of a gradient must be right, or be refused aloud.

What it checks
    `<backward(g), w>` is differentiated through backward, with respect to the inputs and to the
    cotangent, and compared with forward differentiated twice and with differences of backward. It
    is done with all inputs, with each alone, and with cotangents that have a history and that have
    none. Where the gradient is a surrogate, or wrong, differences of backward alone decide. A bare
    assertion, and any other error that says nothing of second derivatives, is reported as fragile.

Why it matters
    A tensor that forward computed and saved is a constant to the second backward: its term is
    dropped in silence (pytorch#76185, #104040). Gradient penalties, forces of learned potentials
    and meta-learning then train on the wrong numbers.

Fails
    e = x.exp(); ctx.save_for_backward(e)      # an intermediate

Passes
    ctx.save_for_backward(x)                   # and x.exp() again in backward

Cannot see
    Derivatives of third order, and entries at which the gradient has a kink.
""",
    ),
    Registered(
        DETACHED_DOUBLE_BACKWARD,
        detached_double_backward,
        repros=(second_slope,),
        page="""
A gradient asked for with `create_graph=True` must not come back detached.

What it checks
    With `create_graph=True`, the gradient's derivative with respect to an input or to the cotangent
    is absent or zero throughout, while differences of backward show that it is not zero.

Why it matters
    `detach`, `.data`, NumPy or `no_grad` in backward cut the graph without a word: the penalty or
    the force that is trained on has no gradient at all, and the loss does not move
    (torchmd-net#179).

Fails
    return grad * torch.from_numpy(np.cos(x.detach().numpy()))

Passes
    return grad * x.cos()                 # or @once_differentiable on backward, which raises

Cannot see
    A cut behind which the second derivative happens to be zero at every example.
""",
    ),
)
