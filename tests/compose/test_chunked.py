"""`chunked`: the program's outputs and gradients, a few rows at a time."""

import pytest
import torch
import torch.nn.functional as F

import pullback as pb
from pullback.errors import ChunkingError


def cross_entropy(x, weight, labels):
    return F.cross_entropy(F.linear(x, weight), labels, ignore_index=-100)


def smoothed(x, weight, labels):
    return F.cross_entropy(x @ weight.T, labels, label_smoothing=0.1, reduction="sum")


def with_z_loss(x, weight, labels):
    logits = x @ weight.T
    return F.cross_entropy(logits, labels) + 1e-2 * logits.logsumexp(-1).square().mean()


def distillation(x, weight, teacher):
    ours = F.log_softmax(x @ weight.T / 2, -1)
    return F.kl_div(ours, F.softmax(teacher @ weight.T / 2, -1), reduction="batchmean") * 4


def preference(chosen, rejected, weight, labels):
    """DPO with pairs as rows, each a sequence of tokens."""

    def log_p(x):
        rows = F.log_softmax(x @ weight.T, -1)
        return rows.gather(-1, labels.unsqueeze(-1)).squeeze(-1).sum(-1)

    return -F.logsigmoid(0.1 * (log_p(chosen) - log_p(rejected))).mean()


def policy(x, weight, labels, advantages, old):
    """GRPO: clipped ratios, each token weighted by its sequence's advantage."""
    rows = F.log_softmax(x @ weight.T, -1)
    log_p = rows[torch.arange(rows.shape[0]), labels]
    ratio = (log_p - old).exp()
    clipped = ratio.clamp(0.8, 1.2)
    mask = (labels != 3).to(x.dtype)
    return -(torch.minimum(ratio * advantages, clipped * advantages) * mask).sum() / mask.sum()


def of_sums(x, weight, labels):
    """Not linear in its sums: the loss must be known before its gradient."""
    logits = x @ weight.T
    return F.cross_entropy(logits, labels).sqrt() + logits.square().mean().log()


def centred(x, weight, labels):
    """Features less their mean over all rows."""
    return F.cross_entropy((x - x.mean(0)) @ weight.T, labels)


def ranked(x, weight, labels):
    """Losses of rows, which are small, mixed in every way."""
    losses = F.cross_entropy(x @ weight.T, labels, reduction="none")
    return losses.sort().values[: losses.shape[0] // 2].sum() + losses.softmax(0)[0]


def drawn(*shape, dtype=torch.float64, needs=True):
    generator = torch.Generator().manual_seed(sum(shape))
    made = torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    return made.requires_grad_(needs)


ROWS, WIDE, CLASSES = 27, 6, 40


def labels_of(rows=ROWS):
    labels = torch.arange(rows) * 7 % CLASSES
    return labels.masked_fill(torch.arange(rows) % 5 == 2, -100)


def classes_of(rows=ROWS):
    return torch.arange(rows) * 7 % CLASSES


X, WEIGHT = drawn(ROWS, WIDE), drawn(CLASSES, WIDE)
PROGRAMS = {
    "cross_entropy": (cross_entropy, (X, WEIGHT, labels_of())),
    "smoothed": (smoothed, (X, WEIGHT, classes_of())),
    "with_z_loss": (with_z_loss, (X, WEIGHT, classes_of())),
    "distillation": (distillation, (X, WEIGHT, drawn(ROWS, WIDE, needs=False))),
    "preference": (
        preference,
        (drawn(ROWS, 3, WIDE), drawn(ROWS, 3, WIDE), WEIGHT, classes_of(ROWS * 3).view(ROWS, 3)),
    ),
    "policy": (
        policy,
        (X, WEIGHT, classes_of(), drawn(ROWS, needs=False), drawn(ROWS, needs=False)),
    ),
    "of_sums": (of_sums, (X, WEIGHT, classes_of())),
    "centred": (centred, (X, WEIGHT, classes_of())),
    "ranked": (ranked, (X, WEIGHT, classes_of())),
}


def pulled(run, args, scale=-2.5):
    """Outputs, and gradients for a cotangent that is not one."""
    row = [a.detach().requires_grad_(a.requires_grad) for a in args]
    made = run(*row)
    outputs = made if isinstance(made, tuple) else (made,)
    live = [one for one in outputs if one.requires_grad]
    needing = [x for x in row if x.requires_grad]
    given = [torch.full_like(one, scale) for one in live]
    return outputs, torch.autograd.grad(live, needing, given, allow_unused=True)


def assert_same(run, program, args, **near):
    for got, expected in zip(pulled(run, args), pulled(program, args), strict=True):
        for mine, theirs in zip(got, expected, strict=True):
            if mine is None or theirs is None:
                assert mine is theirs
            else:
                torch.testing.assert_close(mine, theirs, **near)


@pytest.mark.parametrize("name", PROGRAMS)
def test_chunks_give_what_the_program_gives(name):
    """Five chunks, the last of which is smaller."""
    program, args = PROGRAMS[name]
    run = pb.chunked(program, chunks=5, backend="eager")
    assert_same(run, program, args)
    assert "5 chunks of 6 rows" in run.explain()
    assert "gradients made in forward" in run.explain()
