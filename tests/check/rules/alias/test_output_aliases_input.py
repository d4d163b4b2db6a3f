"""Sound functions pass `output-aliases-input`; planted faults are caught, and named."""

import torch
from torch.nn.functional import pad

from tests.check.subjects import check_of, findings, made, normal, rule_tests

check = check_of("output-aliases-input")

X = normal(4, 6)

SOUND = {
    "copy": (made(lambda x: x.clone(), lambda g, x: g), (X,)),
    "itself": (made(lambda x: x, lambda g, x: g), (X,)),
    "view": (made(lambda x: x.t(), lambda g, x: g.t()), (X,)),
}

PLANTED = {
    "detached": (made(lambda x: x.detach(), lambda g, x: g), (X,), "output 0"),
    "data": (made(lambda x: (x * 2, x.data), lambda g, h, x: 2 * g + h), (X,), "output 1"),
    "by numpy": (
        made(lambda x: torch.from_numpy(x.detach().numpy()[1:]), lambda g, x: pad(g, (0, 0, 1, 0))),
        (X,),
        "output 0",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


def test_memory_whose_writes_are_counted_is_fragile():
    weights = [
        str(findings(check, *PLANTED[name][:1], X)[0].weight) for name in ("detached", "data")
    ]

    assert weights == ["fragile", "wrong"]
