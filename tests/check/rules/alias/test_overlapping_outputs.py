"""Sound functions pass `overlapping-outputs`; planted faults are caught, and named."""

import torch
from torch.nn.functional import pad

from tests.check.subjects import check_of, made, normal, rule_tests

check = check_of("overlapping-outputs")

X = normal(4, 6)


def twice(x):
    """One piece of memory, twice."""
    y = x.exp()
    return y, y.detach()


def windows(x):
    """Two windows that overlap."""
    y = x * 2
    return y[:, :4], y[:, 2:]


def by_numpy(x):
    """The same memory, reached another way."""
    y = x.detach() * 2
    return y, torch.from_numpy(y.numpy()[1:])


def interleaved(x):
    """Columns in turns, of one buffer."""
    y = x * 2
    return y[:, ::2], y[:, 1::2]


SOUND = {
    "two": (made(lambda x: (x.sin(), x.cos()), lambda g, h, x: g * x.cos() - h * x.sin()), (X,)),
    "slices": (
        made(lambda x: (x * 2).chunk(2, -1), lambda g, h, x: 2 * torch.cat((g, h), -1)),
        (X,),
    ),
    "in turns": (made(interleaved, lambda g, h, x: 2 * torch.stack((g, h), -1).flatten(1)), (X,)),
    "one": (made(lambda x: x * 2, lambda g, x: 2 * g), (X,)),
}

PLANTED = {
    "twice": (made(twice, lambda g, h, x: (g + h) * x.exp()), (X,), "outputs 0 and 1"),
    "windows": (
        made(windows, lambda g, h, x: 2 * (pad(g, (0, 2)) + pad(h, (2, 0)))),
        (X,),
        "outputs 0 and 1",
    ),
    "by numpy": (
        made(by_numpy, lambda g, h, x: 2 * (g + pad(h, (0, 0, 1, 0)))),
        (X,),
        "outputs 0 and 1",
    ),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
