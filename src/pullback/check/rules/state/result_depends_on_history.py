"""A call must give the same result whenever it is made.

What it checks
    The same call, with the same random numbers, is made several times, with other calls between:
    outputs and gradients stay the same.

Why it matters
    A counter, a cache or a running statistic that is read back makes results depend on what came
    before: checkpointing computes something else the second time, and no run can be repeated.

Fails
    MyFunction.calls += 1; return x * MyFunction.calls

Passes
    return x * calls

Cannot see
    Dependence on the clock or on other processes that did not show in a few calls. Results that
    differ by rounding from run to run are declared: `declares = {"nondeterministic": 1e-6}`.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.subject import (
    BackwardFailedError,
    Finding,
    Rule,
    Skip,
    Subject,
    is_close,
    worst_of,
)

RULE = Rule(code="T903", name="result-depends-on-history", group="state", profile="quick")

REPEATS = 4


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding for the first result that differs."""
    bound = subject.target.intent.nondeterministic
    usual = subject.run()
    outputs = [output.detach().clone() for output in usual.outputs]
    try:
        grads = usual.pull(subject.cotangents(usual))
    except BackwardFailedError as failure:
        yield Skip(RULE, f"backward fails: {failure}")
        return
    for _ in range(REPEATS):
        if subject.accepts(subject.given):
            subject.run(subject.given)
        run = subject.run()
        now = run.pull(subject.cotangents(run))
        pairs = [
            (f"output {i}", o, outputs[i]) for i, o in enumerate(run.outputs) if i < len(outputs)
        ]
        pairs += [(f"gradient of `{n}`", g, grads[n]) for n, g in now.items()]  # type: ignore[misc]
        for words, got, expected in pairs:
            if got is None or expected is None or got.shape != expected.shape:
                continue
            if not got.is_floating_point() or is_close(got, expected, 100):
                continue
            if bound and float((got - expected).abs().max()) <= bound:
                continue
            index, have, want = worst_of(got, expected)
            yield subject.finding(
                RULE,
                example=subject.base,
                at=f"{words} at {list(index)}, in a later call with the same arguments",
                expected=f"{want}, as in the first call",
                got=have,
                fix="let the result depend on the arguments alone; pass what changes as one of them",
            )
            return
