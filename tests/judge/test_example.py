"""Arguments are copied so that layout, aliasing and kinds survive."""

import torch

from pullback.judge.example import Example, example_of, mapped, tensors_in


def test_copies_keep_layout_and_aliasing():
    x = torch.arange(12.0).reshape(3, 4).t()
    one, two = Example((x, x), frozenset()).fresh()

    assert one is two
    assert (one.stride(), one.tolist()) == (x.stride(), x.tolist())
    assert one.data_ptr() != x.data_ptr()


def test_all_that_can_need_grad_where_none_does():
    plain = example_of((torch.ones(2), torch.ones(2, dtype=torch.int64), 3))
    chosen = example_of((torch.ones(2), torch.ones(2, requires_grad=True)))

    assert (plain.needs, chosen.needs) == ({0}, {1})


def test_sizes_stay_sizes_and_containers_are_looked_into():
    size = torch.Size([2, 3])
    given = {"a": [torch.ones(1)], "b": (torch.zeros(1), size)}
    found = mapped(given, lambda t: t + 1)

    assert found["b"][1].numel() == 6
    assert [float(t) for t in tensors_in(found)] == [2.0, 1.0]


def test_double_keeps_values_and_says_where_they_came_from():
    example = example_of((torch.ones(2), torch.ones(1, dtype=torch.complex64)))

    double = example.double()

    assert [t.dtype for t in double.args] == [torch.float64, torch.complex128]
    assert double.label == "given as float32 and complex64"
    assert double.double() is double


def test_parameters_of_modules_in_a_list_stay_theirs():
    modules = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    example = example_of((torch.ones(2), modules, *modules[1].parameters()))

    _, copies, weight, bias = example.fresh()

    assert (copies[1].weight is weight, copies[1].bias is bias) == (True, True)
    assert copies[0].weight is not modules[0].weight
