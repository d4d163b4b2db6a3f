"""Random programs, and random ways to group their units: what a table of examples does not hold.

A program is a row of steps on a growing row of values: ops, views, changes in place of what it made
itself, `detach`, gradients, Functions, values that nobody uses, outputs that share memory.
"""

import random
from dataclasses import dataclass

import torch

from tests.compose.pipelines import Mul, Sin, Square

UNARY = {
    "sin": torch.sin,
    "tanh": torch.tanh,
    "square": lambda x: x * x,
    "Sin": Sin.apply,
    "Square": Square.apply,
    "relu": torch.relu,
    "scaled": lambda x: x * 0.5 + 1,
    "clone": torch.clone,
    "detach": torch.detach,
    "single": lambda x: x.float().double(),
    "sum": lambda x: x.sum(-1, keepdim=True) * torch.ones_like(x),
    "softmax": lambda x: x.softmax(-1),
    "sorted": lambda x: x.sort(-1).values,
    "cumsum": lambda x: x.cumsum(0),
    "gradient": lambda x: (
        torch.autograd.grad(x.sin().sum(), x, create_graph=True)[0] if x.requires_grad else x.cos()
    ),
    "recorded off": lambda x: _off(x),
}
VIEWS = {
    "transposed": lambda x: x.t(),
    "flipped": lambda x: x.flip(0).t().contiguous().t(),
    "rows": lambda x: x[:2],
    "every second": lambda x: x[::2],
    "flat": lambda x: x.reshape(-1),
    "unsqueezed": lambda x: x.unsqueeze(0).squeeze(0),
    "viewed": lambda x: x.view_as(x),
}
BINARY = {
    "add": torch.add,
    "mul": torch.mul,
    "Mul": Mul.apply,
    "where": lambda x, y: torch.where(x > 0, x, y),
    "stacked": lambda x, y: torch.stack([x, y]).sum(0),
    "max": torch.maximum,
}
PLACE = {
    "mul_": lambda x: x.mul_(1.5),
    "add_": lambda x: x.add_(0.25),
    "first": lambda x: x[0].fill_(0.5),
    "assigned": lambda x: x.__setitem__(0, x[-1] * 2),
    "half": lambda x: x[:1].mul_(3.0),
}
SHAPE = (3, 3)


def _off(x):
    with torch.no_grad():
        return x * 2


@dataclass(frozen=True)
class RandomProgram:
    """The steps of one program: the name of each, and the places of what it takes."""

    steps: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[int, ...]
    inputs: int

    def __call__(self, *inputs):
        values = list(inputs)
        for name, places in self.steps:
            given = [values[place] for place in places]
            if name in PLACE:
                PLACE[name](*given)
            else:
                values.append({**UNARY, **VIEWS, **BINARY}[name](*given))
        outputs = tuple(values[place] for place in self.outputs)
        return outputs[0] if len(outputs) == 1 else outputs

    __name__ = "random_program"


def random_program(seed: int) -> RandomProgram:
    """The program of this number; as written, it runs and can be differentiated."""
    for attempt in range(1000):
        made = _drawn(random.Random(1000 * seed + attempt))
        if made is not None:
            return made
    raise AssertionError("no program was found")


def _drawn(rng):
    count = rng.choice((1, 2))
    shapes = [SHAPE] * count
    fresh = [False] * count  # whether a value has memory that the program made
    steps = []
    for _ in range(rng.randint(3, 9)):
        kind = rng.choices(("unary", "view", "binary", "place"), (5, 2, 3, 2))[0]
        place = rng.randrange(len(shapes))
        if kind == "place":
            own = [i for i, is_fresh in enumerate(fresh) if is_fresh]
            if own:
                steps.append((rng.choice(list(PLACE)), (rng.choice(own),)))
            continue
        if kind == "unary":
            name, places = rng.choice(list(UNARY)), (place,)
        elif kind == "view":
            name, places = rng.choice(list(VIEWS)), (place,)
            if len(shapes[place]) < 2:
                continue
        else:
            alike = [i for i, shape in enumerate(shapes) if shape == shapes[place]]
            name, places = rng.choice(list(BINARY)), (place, rng.choice(alike))
        steps.append((name, places))
        example = torch.ones(shapes[place], requires_grad=True) * 1
        made = {**UNARY, **VIEWS, **BINARY}[name](*[example] * len(places))
        shapes.append(tuple(made.shape))
        shares = kind == "view" or name in ("detach", "clone")
        fresh.append(fresh[place] if shares else kind != "view" and name != "gradient")
    row = range(len(shapes))
    outputs = tuple(rng.choice(row[count // 2 :]) for _ in range(rng.randint(1, 3)))
    made = RandomProgram(tuple(steps), outputs, count)
    return made if _is_sound(made) else None


def inputs_of(program: RandomProgram) -> tuple[torch.Tensor, ...]:
    """Arguments for a program."""
    generator = torch.Generator().manual_seed(7)
    row = [
        torch.randn(SHAPE, generator=generator, dtype=torch.float64) for _ in range(program.inputs)
    ]
    return tuple(x.requires_grad_() for x in row)


def _is_sound(program):
    """Whether autograd takes the program as it is written, and some output has a gradient."""
    inputs = inputs_of(program)
    try:
        outputs = program(*[x * 1 for x in inputs])
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        linked = [y for y in outputs if y.requires_grad]
        if not linked:
            return False
        torch.autograd.grad([y.sum() for y in linked], inputs, create_graph=True, allow_unused=True)
    except (RuntimeError, IndexError):
        return False
    return True


def random_groups(units: int, seed: int) -> list[tuple[int, ...]]:
    """Some of the units in groups: mostly neighbours, sometimes any."""
    rng = random.Random(seed)
    if rng.random() < 0.7:
        cuts = (
            sorted(rng.sample(range(1, units), min(units - 1, rng.randint(0, 3))))
            if units > 1
            else []
        )
        groups = [tuple(range(a, b)) for a, b in zip([0, *cuts], [*cuts, units], strict=True)]
        return [group for group in groups if rng.random() < 0.8]
    homes = [rng.randrange(3) for _ in range(units)]
    return [tuple(i for i in range(units) if homes[i] == home) for home in range(2)]
