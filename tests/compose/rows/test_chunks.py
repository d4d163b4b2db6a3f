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


@pytest.mark.quick(3)
@pytest.mark.parametrize("name", PROGRAMS)
def test_chunks_give_what_the_program_gives(name):
    """Five chunks, the last of which is smaller."""
    program, args = PROGRAMS[name]
    run = pb.chunked(program, chunks=5, backend="eager")
    assert_same(run, program, args)
    assert "5 chunks of 6 rows" in run.explain()
    assert "gradients made in forward" in run.explain()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_of_half_precision_are_kept_in_float32(dtype):
    x, weight = drawn(64, WIDE, dtype=dtype), drawn(CLASSES, WIDE, dtype=dtype)
    args = (x, weight, classes_of(64))
    run = pb.chunked(cross_entropy, chunks=32, backend="eager")
    exact = pulled(cross_entropy, (x.double(), weight.double(), classes_of(64)))[1]
    by_program, by_chunks = pulled(cross_entropy, args)[1], pulled(run, args)[1]
    for mine, theirs, true in zip(by_chunks, by_program, exact, strict=True):
        assert mine.dtype is dtype
        assert (mine - true).norm() <= 1.5 * (theirs - true).norm() + 1e-7


@pytest.mark.needs_compiler
def test_compiled_chunks_give_the_same():
    run = pb.chunked(cross_entropy, chunks=3, backend="inductor")
    args = (drawn(ROWS, WIDE, dtype=torch.float32), drawn(CLASSES, WIDE, dtype=torch.float32))
    assert_same(run, cross_entropy, (*args, labels_of()), rtol=1e-4, atol=1e-5)
    assert run.explain().endswith('backend "inductor"')


def softmax_over_rows(x, weight, labels):
    return F.cross_entropy((x @ weight.T).softmax(0), labels)


def running_sum(x, weight, labels):
    return F.cross_entropy((x @ weight.T).cumsum(0), labels)


def batch_norm(x, weight, labels):
    return F.cross_entropy(F.batch_norm(x @ weight.T, None, None, training=True), labels)


def shifted(x, weight, labels):
    logits = x @ weight.T
    return F.cross_entropy(logits[:-1], labels[1:])


def with_dropout(x, weight, labels):
    return F.cross_entropy(F.dropout(x @ weight.T), labels)


@pytest.mark.parametrize(
    ("program", "op"),
    [
        (softmax_over_rows, "_softmax"),
        (running_sum, "cumsum"),
        (shifted, "slice"),
    ],
)
def test_large_rows_that_depend_on_each_other_are_refused(program, op):
    with pytest.raises(ChunkingError) as caught:
        pb.chunked(program, X, WEIGHT, classes_of(), over=("x", "labels"), chunks=3)
    text = str(caught.value)
    assert f"`{op}`, which takes large rows together" in text
    assert "test_chunks.py:" in text


@pytest.mark.parametrize("program", [batch_norm, with_dropout])
def test_what_is_not_known_to_keep_rows_apart_is_refused(program):
    with pytest.raises(ChunkingError):
        pb.chunked(program, X, WEIGHT, classes_of(), over=("x", "labels"), chunks=3)


def test_each_row_with_each_other_is_refused():
    def contrastive(x, labels):
        return F.cross_entropy(x @ x.T, labels)

    with pytest.raises(ChunkingError) as caught:
        pb.chunked(contrastive, X, torch.arange(ROWS), over=("x", "labels"), chunks=3)
    assert "each row with each other" in str(caught.value)


def test_work_that_depends_on_the_number_of_rows_is_refused():
    def decides(x, weight, labels):
        logits = x @ weight.T
        return F.cross_entropy(logits.sin() if x.shape[0] > 10 else logits, labels)

    with pytest.raises(ChunkingError) as caught:
        pb.chunked(decides, X, WEIGHT, classes_of(), over=("x", "labels"), chunks=3)
    assert "must do the same work whatever the number of its rows is" in str(caught.value)


def test_second_derivatives_are_the_program_s():
    run = pb.chunked(cross_entropy, chunks=3, backend="eager")
    x, weight = drawn(ROWS, 2), drawn(3, 2)
    labels = torch.arange(ROWS) % 3
    assert torch.autograd.gradgradcheck(lambda x, w: run(x, w, labels), (x, weight))


def test_backward_twice_gives_the_same_twice():
    run = pb.chunked(cross_entropy, chunks=3, backend="eager")
    x = X.detach().requires_grad_()
    loss = run(x, WEIGHT, labels_of())
    (first,) = torch.autograd.grad(loss, x, torch.tensor(3.0), retain_graph=True)
    (again,) = torch.autograd.grad(loss, x, torch.tensor(3.0))
    assert torch.equal(first, again)


def test_without_gradients_forward_runs_alone():
    run = pb.chunked(cross_entropy, chunks=3, backend="eager")
    with torch.no_grad():
        loss = run(X, WEIGHT, labels_of())
    assert not loss.requires_grad
    torch.testing.assert_close(loss, cross_entropy(X, WEIGHT, labels_of()).detach())
    assert "gradients" not in run.explain()


@pytest.mark.parametrize("frozen", [0, 1])
def test_inputs_without_gradients_have_none(frozen):
    args = [X, WEIGHT, labels_of()]
    args[frozen] = args[frozen].detach()
    assert_same(pb.chunked(cross_entropy, chunks=3, backend="eager"), cross_entropy, args)


def test_parameters_from_outside_get_their_gradients():
    head = torch.nn.Linear(WIDE, CLASSES, dtype=torch.float64)

    def loss(x, labels):
        return F.cross_entropy(head(x), labels)

    run = pb.chunked(loss, chunks=4, backend="eager")
    run(X, classes_of()).backward(torch.tensor(2.0, dtype=torch.float64))
    got = head.weight.grad, head.bias.grad
    expected = torch.autograd.grad(2 * loss(X, classes_of()), (head.weight, head.bias))
    torch.testing.assert_close(got, expected)


def test_several_outputs_are_computed_again_in_backward():
    def both(x, weight, labels):
        logits = x @ weight.T
        losses = F.cross_entropy(logits, labels, reduction="none")
        return losses, logits.logsumexp(-1).mean(), labels + 1

    run = pb.chunked(both, chunks=4, backend="eager")
    assert_same(run, both, (X, WEIGHT, classes_of()))
    assert "gradients made in backward" in run.explain()


class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent.clamp(-1e-3, 1e-3)


def test_a_hand_written_backward_gets_its_own_cotangent():
    def loss(x, weight, labels):
        return F.cross_entropy(Clipped.apply(x @ weight.T), labels)

    run = pb.chunked(loss, chunks=4, backend="eager")
    assert_same(run, loss, (X, WEIGHT, classes_of()))
    assert "gradients made in backward" in run.explain()


def test_rows_in_another_dimension_of_longer_tensors():
    def tokens(x, weight, labels):
        logits = x @ weight.T
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)

    x, labels = drawn(4, ROWS, WIDE), labels_of(4 * ROWS).view(4, ROWS)
    run = pb.chunked(tokens, over={"x": 1, "labels": 1}, chunks=4, backend="eager")
    with pytest.raises(ChunkingError):  # they are joined with the dimension before them
        run(x, WEIGHT, labels)
    wide = x.transpose(0, 1).contiguous().detach().requires_grad_()
    run = pb.chunked(tokens, chunks=4, backend="eager")
    assert_same(run, tokens, (wide, WEIGHT, labels.T.contiguous()))


def test_equal_sizes_do_not_make_a_weight_rows():
    x, weight = drawn(CLASSES, WIDE), drawn(CLASSES, WIDE)
    run = pb.chunked(cross_entropy, chunks=4, backend="eager")
    assert_same(run, cross_entropy, (x, weight, labels_of(CLASSES)))
    assert "rows of `x` and `labels`" in run.explain()


def test_autocast_is_that_of_the_call():
    args = (drawn(ROWS, WIDE, dtype=torch.float32), drawn(CLASSES, WIDE, dtype=torch.float32))
    run = pb.chunked(cross_entropy, chunks=4, backend="eager")
    with torch.autocast("cpu", torch.bfloat16):
        expected = pulled(cross_entropy, (*args, labels_of()))
        got = pulled(run, (*args, labels_of()))
    for mine, theirs in zip(got[0] + got[1], expected[0] + expected[1], strict=True):
        assert mine.dtype is theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=2e-3)


def test_keywords_and_plain_arguments_pass():
    def loss(x, weight, labels, *, scale=1.0):
        return F.cross_entropy(x @ weight.T * scale, labels)

    run = pb.chunked(loss, chunks=4, backend="eager")
    got = run(X, WEIGHT, classes_of(), scale=0.5)
    torch.testing.assert_close(got, loss(X, WEIGHT, classes_of(), scale=0.5))


def test_few_rows_run_as_written():
    run = pb.chunked(cross_entropy, chunks=2)
    assert_same(run, cross_entropy, (drawn(5, WIDE), WEIGHT, classes_of(5)))
    assert run.explain() == "chunked: as written, since there are too few rows"


def test_small_programs_are_not_cut_by_themselves():
    run = pb.chunked(cross_entropy, backend="eager")
    assert_same(run, cross_entropy, (X, WEIGHT, classes_of()))
    assert "as written" in run.explain()


@pytest.mark.slow
def test_other_programs_take_it_as_it_is_written():
    run = pb.chunked(cross_entropy, chunks=4, backend="eager")

    def outer(x, weight):
        return run(x.sin(), weight, labels_of()) * 2

    combined = pb.combine(outer, X, WEIGHT, backend="eager")
    assert_same(combined, outer, (X, WEIGHT))


@pytest.mark.parametrize("over", ["y", 7, ("x", "weight")])
def test_rows_that_are_not_there_are_refused(over):
    with pytest.raises(ChunkingError):
        pb.chunked(cross_entropy, X, WEIGHT, labels_of(), over=over, chunks=3)


def test_chunks_must_be_a_number():
    with pytest.raises(ChunkingError) as caught:
        pb.chunked(cross_entropy, chunks="many")
    assert "E503 chunking: `chunks` must be a number of chunks" in str(caught.value)
