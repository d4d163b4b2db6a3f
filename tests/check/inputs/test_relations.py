"""Relations between arguments: those that an example shows are kept, and none is seen by chance."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import Function

import pullback as pb
from pullback.check.inputs.relations import broken_by, relations_of, restored
from pullback.judge.example import example_of


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def order(count, seed=0):
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


MATRIX = drawn(4, 4)
ORDER = order(7)

SHOWN = {
    "a tensor and how far each of its rows goes": (
        (drawn(2, 4, 5), torch.tensor([[4, 5], [2, 3]])),
        (drawn(2, 4, 5), torch.tensor([[5, 4], [2, 3]])),
    ),
    "one-hot rows": ((F.one_hot(torch.tensor([0, 2, 1]), 3).float(),), (drawn(3, 3),)),
    "zeros and ones": (((drawn(3, 3) > 0).float(),), (drawn(3, 3),)),
    "rows that sum to one": ((drawn(3, 4).softmax(-1),), (drawn(3, 4),)),
    "rows of norm one": ((F.normalize(drawn(3, 4), dim=-1),), (drawn(3, 4),)),
    "a positive definite matrix": (
        (MATRIX @ MATRIX.T + torch.eye(4),),
        (MATRIX @ MATRIX.T - 9 * torch.eye(4),),
    ),
    "a symmetric matrix": ((MATRIX + MATRIX.T,), (MATRIX,)),
    "a tensor that is its own flip": ((drawn(5) + drawn(5).flip(0),), (drawn(5),)),
    "a skew matrix or kernel": ((MATRIX - MATRIX.T,), (MATRIX,)),
    "a lower triangular matrix": ((MATRIX.tril(),), (MATRIX,)),
    "an upper triangular matrix": ((MATRIX.triu(),), (MATRIX,)),
    "a permutation": ((ORDER,), (ORDER.clamp(max=4),)),
    "sorted numbers": ((drawn(8).sort().values,), (drawn(8),)),
    "equal tensors": ((drawn(5), drawn(5)), (drawn(5), drawn(5, seed=1))),
    "permutations that are each other's inverse": (
        (ORDER, ORDER.argsort()),
        (ORDER, order(7, seed=1)),
    ),
    "a tensor and its flip": ((drawn(5), drawn(5).flip(0)), (drawn(5), drawn(5, seed=1))),
    "a matrix and its transpose": ((drawn(2, 3), drawn(2, 3).T), (drawn(2, 3), drawn(3, 2))),
    "tensors of one shape": (
        (drawn(2, 3), drawn(2, 3, seed=1), drawn(2, 3, seed=2)),
        (drawn(2, 3), drawn(3), drawn(2, 3, seed=2)),
    ),
    "starts of parts and their lengths": (
        (torch.tensor([0, 3, 4, 9]), torch.tensor([3, 1, 5, 2])),
        (torch.tensor([0, 3, 4, 9]), torch.tensor([2, 1, 5, 2])),
    ),
    "lengths of the parts of the other": (
        (torch.tensor([3, 1, 5, 2]), drawn(11, 2)),
        (torch.tensor([3, 1, 5, 3]), drawn(11, 2)),
    ),
    "bounds of the parts of the other": (
        (torch.tensor([0, 3, 4, 11]), drawn(11, 2)),
        (torch.tensor([0, 3, 4, 9]), drawn(11, 2)),
    ),
    "one that is never above the other": (
        (drawn(12) - 9, drawn(12) + 9),
        (drawn(12), drawn(12, seed=1)),
    ),
}


@pytest.mark.parametrize("words", SHOWN)
def test_relation_is_seen_kept_and_broken(words):
    shown, other = (example_of(args) for args in SHOWN[words])
    relations = relations_of([shown])

    assert words in [relation.words for relation in relations]
    assert broken_by(shown, relations) is None
    assert broken_by(shown.double(), relations) is None
    assert words in [r.words for r in relations if not r.is_kept(other)]


@pytest.mark.parametrize("words", SHOWN)
def test_relation_that_another_example_breaks_is_none(words):
    found = relations_of([example_of(args) for args in SHOWN[words]])

    assert words not in [relation.words for relation in found]


@pytest.mark.parametrize(
    "args",
    [
        (drawn(3, 4), drawn(3, 4, seed=1), drawn(4)),
        (torch.zeros(3, 4), torch.zeros(3, 4), torch.ones(4)),
        (torch.arange(12.0), torch.linspace(0, 1, 12).reshape(3, 4)),
        (drawn(1), drawn(1, 1), torch.tensor(2.0), 3, None),
        (torch.tensor([0, 2, 2, 1, 0]), drawn(3, 3)),
        (torch.tensor([0, 2, 1, 1, 0, 2]), drawn(6, 3)),  # which part each row belongs to
        (torch.tensor([2, 0, 1]), drawn(3, 5)),  # labels
        (drawn(4, 4, seed=2) + 5j, True),
    ],
)
def test_no_relation_is_seen_by_chance(args):
    assert relations_of([example_of(args)]) == ()


SMALL = {
    "permutations that are each other's inverse": (
        torch.tensor([2, 0, 3, 1]),
        torch.tensor([1, 3, 0, 2]),
    ),
    "a positive definite matrix": (torch.tensor([[2.0, 0.5], [0.5, 1.0]]),),
}


@pytest.mark.parametrize("words", SMALL)
def test_relation_of_few_numbers_is_seen(words):
    assert words in [relation.words for relation in relations_of([example_of(SMALL[words])])]


@pytest.mark.parametrize("words", sorted(SHOWN))
def test_relation_is_restored_where_that_can_be_done(words):
    shown, other = (example_of(args) for args in SHOWN[words])
    (relation,) = [r for r in relations_of([shown]) if r.words == words]
    made = restored(other, [relation])

    assert relation.is_kept(made) == (relation.restored is not None)


def test_two_tensors_of_one_shape_go_together_only_where_that_is_asked():
    example = example_of((drawn(2, 3), drawn(2, 3, seed=1)))

    assert relations_of([example]) == ()
    (relation,) = relations_of([example], few=True)
    assert relation.words == "tensors of one shape"


# ---- Functions that rely on one ----


class CrossEntropy(Function):
    """With the gradient that holds for rows that sum to one."""

    @staticmethod
    def forward(ctx, x, target):
        ctx.save_for_backward(x, target)
        return -(target * x.log_softmax(-1)).sum()

    @staticmethod
    def backward(ctx, g):
        x, target = ctx.saved_tensors
        return g * (x.softmax(-1) - target), None


class Reordered(Function):
    @staticmethod
    def forward(ctx, x, order, inverse):
        ctx.save_for_backward(inverse)
        return x[order]

    @staticmethod
    def backward(ctx, g):
        (inverse,) = ctx.saved_tensors
        return g[inverse], None, None


class Form(Function):
    """x a x, for a symmetric `a`."""

    @staticmethod
    def forward(ctx, x, a):
        ctx.save_for_backward(x, a)
        return x @ a @ x

    @staticmethod
    def backward(ctx, g):
        x, a = ctx.saved_tensors
        return 2 * g * (a @ x), None


class WrongForm(Form):
    @staticmethod
    def backward(ctx, g):
        x, a = ctx.saved_tensors
        return g * (a @ x), None


RELYING = {
    CrossEntropy: lambda: (
        drawn(6, 5).requires_grad_(),
        F.one_hot(torch.arange(6) % 5, 5).float(),
    ),
    Reordered: lambda: (drawn(6, 5).requires_grad_(), order(6), order(6).argsort()),
    Form: lambda: (drawn(4).requires_grad_(), MATRIX + MATRIX.T),
}


@pytest.mark.parametrize("function", RELYING)
def test_function_that_relies_on_a_relation_has_no_finding(function):
    report = pb.check(function, RELYING[function])

    assert report.findings == ()
    assert any("keep what the example shows" in note for note in report.notes)


def test_fault_beside_a_relation_is_found():
    report = pb.check(WrongForm, RELYING[Form])

    assert [finding.rule.group for finding in report.findings] == ["gradient"]


class Lookup(Function):
    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.rows = table.shape[0]
        return table[index]

    @staticmethod
    def backward(ctx, g):
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.rows, *g.shape[1:]).index_add(0, index, g), None


class Parts(Function):
    @staticmethod
    def forward(ctx, x, lengths):
        ctx.save_for_backward(lengths)
        return torch.stack([part.sum(0) for part in x.split(lengths.tolist())])

    @staticmethod
    def backward(ctx, g):
        (lengths,) = ctx.saved_tensors
        return g.repeat_interleave(lengths, 0), None


def notes_of(function):
    lengths = torch.tensor([1, 4, 1, 0])
    report = pb.check(function, (drawn(6, 3).requires_grad_(), lengths))
    assert report.findings == ()
    return [note for note in report.notes if "lengths of the parts" in note]


def test_indices_that_sum_to_a_size_are_no_lengths():
    assert notes_of(Lookup) == []


def test_lengths_stay_lengths():
    assert len(notes_of(Parts)) == 1
