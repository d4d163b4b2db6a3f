"""Sound functions pass `view-output`; planted faults are caught, and named."""

import torch
from torch.nn.functional import pad

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("view-output")

X = normal(4, 6)

SOUND = {
    "copy": (made(lambda x: x.cumsum(0)[-1, -1].clone(), lambda g, x: g * (x == x)), (X,)),
    "slice": (made(lambda x: (x * 2)[:, :3], lambda g, x: 2 * pad(g, (0, 3))), (X,)),
    "whole input": (made(lambda x: x.view_as(x), lambda g, x: g * 1), (X,)),
    "whole input, reshaped": (made(lambda x: x.mT.unsqueeze(0), lambda g, x: g[0].mT * 1), (X,)),
    "part, copied": (made(lambda x: x[:, :3].clone(), lambda g, x: pad(g, (0, 3))), (X,)),
    "several parts": (
        made(lambda x: (x[:, :3], x[:, 3:]), lambda g, h, x: torch.cat([g, h], 1)),
        (X,),
    ),
    "program": (lambda x: x.flatten().cumsum(0)[-1], (X,)),
}

PLANTED = {
    "last of a scan": (
        made(lambda x: x.flatten().cumsum(0)[-1], lambda g, x: g.expand_as(x)),
        (X,),
        "output 0",
    ),
    "entry of the input": (
        made(lambda x: x[0, 0], lambda g, x: pad(g.view(1, 1), (0, 5, 0, 3))),
        (X,),
        "output 0",
    ),
    "columns of the input": (
        made(lambda x: x[:, 1:4], lambda g, x: pad(g, (1, 2))),
        (X,),
        "output 0",
    ),
    "entry of a pair": (
        made(lambda x: torch.stack([x.sum(), x.prod()])[0], lambda g, x: g.expand_as(x)),
        (X,),
        "output 0",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
