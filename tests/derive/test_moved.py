"""Programs that move numbers about: each number, and its gradient, arrives where it should."""

import random

import pytest
import torch

import pullback as pb


def rows():
    return torch.arange(3, -1, -1) % 3


def channels(x, w):
    """A channel shuffle: a `reshape` that copies, and comes back to the shape of its input."""
    n, c, length = x.shape
    return w * x.view(n, 2, c // 2, length).transpose(1, 2).reshape(n, c, length)


def turned(x, w):
    return w * x.reshape(2, -1).t().contiguous().view(x.shape)


def there_and_back(x, w):
    return w * x.transpose(0, 1).reshape(-1).view(x.shape[1], x.shape[0], -1).transpose(0, 1)


def blocks(x, w):
    n, c, length = x.shape
    moved = x.view(n, c // 2, 2, length).permute(0, 1, 3, 2).reshape(n, c // 2, -1)
    return w * moved.reshape(n, c, length)


def columns(x, w):
    return w[:, rows()] * x[:, rows()].sin()


def both(x, w):
    return x[:, rows(), 1:] * w[..., rows()][:, rows()]


PROGRAMS = {
    body.__name__: body for body in (channels, turned, there_and_back, blocks, columns, both)
}


def inputs():
    draw = torch.Generator().manual_seed(0)
    made = (torch.randn(2, 6, 5, dtype=torch.float64, generator=draw) for _ in range(2))
    return [one.requires_grad_() for one in made]


def pulled(call, given):
    out = call(*given)
    return [out, *torch.autograd.grad(out.square().sum(), given)]


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_derived_program_is_as_written(name):
    given = inputs()
    derived = pb.derive(PROGRAMS[name], *given)

    torch.testing.assert_close(pulled(derived.apply, given), pulled(PROGRAMS[name], given))


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_printed_program_is_as_written(name):
    given = inputs()
    space = {}
    exec(compile(pb.derive(PROGRAMS[name], *given).source(), "printed", "exec"), space)
    (printed,) = [
        value
        for value in space.values()
        if isinstance(value, type) and issubclass(value, torch.autograd.Function)
    ]

    torch.testing.assert_close(pulled(printed.apply, given), pulled(PROGRAMS[name], given))


# ---- chains of moves, at random ----


def factored(x, draw):
    """Sizes, in another number of dimensions."""
    primes = [2, 2, 3, 5]
    draw.shuffle(primes)
    cut = draw.randrange(1, 4)
    sizes = [1, *primes[:cut]], primes[cut:]
    return x.reshape(*[size for part in sizes for size in part])


def permuted(x, draw):
    return x.permute(draw.sample(range(x.dim()), x.dim()))


MOVES = (
    factored,
    permuted,
    lambda x, draw: x.contiguous(),
    lambda x, draw: x.flatten(),
    lambda x, draw: x.unsqueeze(draw.randrange(x.dim() + 1)),
    lambda x, draw: x.squeeze(),
    lambda x, draw: x.transpose(0, -1),
)


def chain(seed):
    """A program of some moves, which ends in the shape that it began with."""

    def program(x, w):
        draw = random.Random(seed)
        y = x
        for _ in range(draw.randrange(2, 6)):
            y = draw.choice(MOVES)(y, draw)
        return w * y.reshape(x.shape)

    return program


@pytest.mark.quick(3)
@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 40))]
)
def test_chain_of_moves_is_as_written(seed):
    given = inputs()
    derived = pb.derive(chain(seed), *given)

    torch.testing.assert_close(pulled(derived.apply, given), pulled(chain(seed), given))
