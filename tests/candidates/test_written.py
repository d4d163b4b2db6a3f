"""What a result holds is its memory: what it computes when it is asked comes too late."""

import torch

from pullback.candidates.written import in_memory, why_lazy, why_other, written_copy


class Late(torch.Tensor):
    """A tensor that fills itself when a function of PyTorch first gets it."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            if isinstance(args[0], Late):
                args[0].as_subclass(torch.Tensor).fill_(7.0)
            return func(*args, **(kwargs or {}))


class Named(torch.Tensor):
    """A class of its own, and nothing besides."""


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (2,))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return func(*(torch.ones(2) if isinstance(a, Wrapper) else a for a in args))


def test_what_comes_late_is_not_what_was_written():
    late = torch.zeros(3).as_subclass(Late)

    assert written_copy(late).tolist() == [0.0] * 3
    assert why_lazy(late) == ""
    assert "Late" in why_other(late)
    assert in_memory(late).tolist() == [7.0] * 3


def test_a_class_of_its_own_is_not_lazy():
    for tensor in (torch.ones(2).as_subclass(Named), torch.nn.Parameter(torch.ones(2))):
        assert type(in_memory(tensor)) is torch.Tensor
        assert why_lazy(tensor) == why_other(tensor) == ""


def test_not_a_number_is_itself():
    assert why_other(torch.tensor([float("nan"), 1.0])) == ""


def test_methods_of_its_own_are_not_called():
    out = torch.zeros(2)
    out.detach = out.clone = lambda: out.fill_(1.0)

    assert written_copy(out).tolist() == [0.0, 0.0]
    assert "`detach`" in why_lazy(out)


def test_what_has_no_memory_is_lazy():
    assert "Wrapper" in why_lazy(Wrapper())
    assert written_copy(Wrapper()).tolist() == [1.0, 1.0]
    assert why_lazy(torch.empty(2, device="meta")) == "a tensor without memory"
