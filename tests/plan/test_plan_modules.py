"""`plan` of a module: `best` is used like the module."""

import copy

import pytest
import torch
from torch import nn

import pullback as pb
from pullback.errors import PlanError


def layers(*more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), *more, nn.Tanh()).double()


X = torch.linspace(-1, 1, 12, dtype=torch.float64).view(3, 4)


def planned(module, **more):
    return pb.plan(module, X, backends=["eager"], budget=0, **more)


def same(got, expected):
    results = []
    for module in (got, expected):
        module.zero_grad()
        output = module(X)
        output.square().sum().backward()
        grads = [p.grad for p in module.parameters()]
        results.append((output.detach(), grads, list(module.buffers())))
    torch.testing.assert_close(*results)


def test_best_is_used_like_the_module():
    module = layers()
    plan = planned(module)

    assert isinstance(plan.best, nn.Sequential)
    assert plan.best[0].weight is module[0].weight
    assert list(plan.best.state_dict()) == list(module.state_dict())
    same(plan.best, copy.deepcopy(module))
    assert "12 elements of `input`" in plan.table()
    assert plan.best.explain() == plan.explain()


@pytest.mark.slow
def test_buffers_are_left_by_the_search_and_changed_by_a_call():
    module = layers(nn.BatchNorm1d(4))
    before = copy.deepcopy(module)
    plan = planned(module, sizes=[(X.repeat(4, 1),)])

    assert module[1].num_batches_tracked == 0
    same(plan.best, before)
    assert module[1].num_batches_tracked == 1


def test_module_that_was_rebuilt_runs_as_written():
    module = layers()
    best = planned(module).best
    module[0] = nn.Linear(4, 2).double()
    module[1] = nn.Softmax(-1)

    assert best(X).equal(module(X))


def test_plan_is_saved_and_loaded(tmp_path):
    module = layers()
    planned(module).save(tmp_path / "plan.json")

    for examples in ((), (X,)):
        loaded = pb.load_plan(tmp_path / "plan.json", module, *examples)
        same(loaded.best, copy.deepcopy(module))


def test_copy_of_best_is_the_module_as_written():
    best = planned(layers()).best

    assert type(copy.deepcopy(best)) is nn.Sequential


def test_module_that_cannot_be_combined_is_refused():
    module = layers()
    module[0].register_forward_hook(lambda *_: None)

    with pytest.raises(PlanError, match="must be one that can be combined") as raised:
        planned(module)

    assert raised.value.facts["got"] == "`0` has hooks, which run with every call"
