"""Sound functions pass `repeated-indices`; planted faults are caught, and named."""

import pytest
import torch

from tests.check.subjects import check_of, normal, rule_tests, variadic

check = check_of("repeated-indices")


def assigned(table, index, grad):
    """Only the last of several gradients."""
    out = torch.zeros_like(table)
    out[index] = grad
    return out, None


def added(table, index, grad):
    """The sum of all."""
    return torch.zeros_like(table).index_add(0, index, grad), None


def inputs():
    """A table, and indices of which none is repeated."""
    return normal(6, 3), torch.tensor([4, 0, 2])


def loss(logits, labels):
    """The mean over the labels that are not -100."""
    return torch.nn.functional.cross_entropy(logits, labels)


def mean_over_all(logits, labels, grad):
    """As if no label were ignored."""
    picked = torch.nn.functional.one_hot(labels.clamp(min=0), logits.shape[1]).to(logits.dtype)
    shown = (labels >= 0)[:, None]
    return grad * shown * (logits.softmax(-1) - picked) / len(labels), None


def mean_over_shown(logits, labels, grad):
    """Divided by the number of labels that count."""
    return mean_over_all(logits, labels, grad)[0] * len(labels) / (labels >= 0).sum(), None


def labelled():
    """Logits with labels, none of them ignored."""
    return normal(5, 4), torch.tensor([0, 1, 3, 2, 0])


def shares(x, group, count):
    """The exponentials of each group, as shares of their sum."""
    e = x.exp()
    return e / x.new_zeros(count).index_add(0, group, e)[group]


def by_group(x, group, count, grad):
    """What each group loses, by its own sum."""
    y = shares(x, group, count)
    sums = x.new_zeros(count).index_add(0, group, grad * y)
    return y * (grad - sums[group]), None, None


def by_all(x, group, count, grad):
    """The same for one group."""
    y = shares(x, group, count)
    return y * (grad - (grad * y).sum()), None, None


def one_group():
    return normal(4), torch.zeros(4, dtype=torch.long), 1


SOUND = {
    "groups": (variadic(shares, by_group), one_group),
    "added": (variadic(lambda table, index: table[index], added), inputs),
    "mean over what counts": (variadic(loss, mean_over_shown), labelled),
}
PLANTED = {
    "one group": (variadic(shares, by_all), one_group, "gradient of `args[0]`"),
    "ignored labels counted": (variadic(loss, mean_over_all), labelled, "gradient of `args[0]`"),
    "assigned": (variadic(lambda t, i: t[i], assigned), inputs, "gradient of `args[0]`"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)


@pytest.mark.parametrize("name", PLANTED)
def test_gradcheck_alone_would_miss_it(name):
    target, args, _ = PLANTED[name]

    assert torch.autograd.gradcheck(target.apply, args())
