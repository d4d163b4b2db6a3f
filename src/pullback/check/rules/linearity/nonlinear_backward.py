"""`backward` must be linear in the gradient it receives.

What it checks
    For random `u` and `v`: `backward(2u - 3v)` is `2 backward(u) - 3 backward(v)`, with cotangents
    of ordinary size, large and small.

Why it matters
    A vector-Jacobian product is linear by definition. `torch.autograd.gradcheck` feeds gradients
    of norm one, so a `clamp` at one passes it, and the network then trains with the wrong gradient
    (a real case: a loss whose backward multiplied everything by `grad_output[0]`, Liger#1298).

Fails
    return grad_output.clamp(-1, 1) * y

Passes
    return grad_output * y

Cannot see
    A backward that is linear but is the transpose of some other Jacobian.
"""

from __future__ import annotations

from collections.abc import Iterator

from pullback.check.subject import Finding, Rule, Skip, Subject, is_close, worst_of

RULE = Rule(code="L201", name="nonlinear-backward", group="linearity", profile="quick")

SCALES = (1.0, 64.0, 1 / 64)


def check(subject: Subject) -> Iterator[Finding | Skip]:
    """Yield one finding per input whose gradient is not linear."""
    if subject.fails_at_base:
        yield Skip(RULE, f"backward fails at the example: {subject.fails_at_base}")
        return
    told: set[str] = set()
    for scale in SCALES:
        run = subject.run()
        u = [None if c is None else scale * c for c in subject.cotangents(run, 0)]
        v = [None if c is None else scale * c for c in subject.cotangents(run, 1)]
        both = [
            None if a is None or b is None else 2 * a - 3 * b for a, b in zip(u, v, strict=True)
        ]
        of_u, of_v, of_both = (subject.run().pull(c) for c in (u, v, both))
        for name, got in of_both.items():
            one, two = of_u[name], of_v[name]
            if name in told or got is None or one is None or two is None:
                continue
            if subject.target.intent.is_surrogate(name):
                continue
            expected = 2 * one - 3 * two
            if is_close(got, expected, 1e2):
                continue
            told.add(name)
            index, have, want = worst_of(got, expected)
            yield subject.finding(
                RULE,
                example=subject.base,
                at=f"gradient of `{name}` at {list(index)}",
                expected=f"{want}, from 2 backward(u) - 3 backward(v)",
                got=f"{have}, from backward(2u - 3v)",
                fix="let each gradient be a product with the cotangent, with nothing that bends it",
            )
