"""Sound functions pass `broadcast-input`; planted faults are caught, and named."""

from pullback.check.rules.shape.broadcast_input import check
from tests.check.subjects import made, normal, rule_tests

SOUND = {
    "product": (
        made(lambda a, b: a * b, lambda g, a, b: (g * b, g * a)),
        lambda: (normal(4, 3), normal(4, 3, seed=1)),
    ),
    "row of less rank": (
        made(lambda a, b: a * b, lambda g, a, b: (g * b, (g * a).sum(0))),
        lambda: (normal(4, 3), normal(3, seed=1)),
    ),
    "summed": (
        made(lambda a, b: a + b, lambda g, a, b: (g.sum_to_size(a.shape), g.sum_to_size(b.shape))),
        lambda: (normal(4, 3), normal(4, 3, seed=1)),
    ),
    "loss": (
        made(
            lambda a, b: ((a - b) ** 2).mean(), lambda g, a, b: (2 * g * (a - b) / a.numel(), None)
        ),
        lambda: (normal(4, 3), normal(4, 3, seed=1).detach()),
    ),
}
PLANTED = {
    "column of less rank": (
        made(
            lambda a, b: a * b,
            lambda g, a, b: (
                g * b,
                (g * a).sum(0) if b.dim() < g.dim() else (g * a).mean(-1, keepdim=True),
            ),
        ),
        lambda: (normal(4, 3), normal(3, seed=1)),
        "gradient of `b`",
    ),
    "first row": (
        made(
            lambda a, b: a * b,
            lambda g, a, b: (g * b, (g * a)[: len(b)] if b.dim() == 2 else g * a),
        ),
        lambda: (normal(4, 3), normal(4, 3, seed=1)),
        "gradient of `b`",
    ),
    "reshaped": (
        made(lambda a, b: a - 2 * b, lambda g, a, b: (g, (-2 * g).reshape(b.shape))),
        lambda: (normal(4, 3), normal(4, 3, seed=1)),
        "backward, with `b` broadcast",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
