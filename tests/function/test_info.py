"""A info is made at the first call of a class, belongs to it alone, and sees it change."""

import gc
import io
import threading
import weakref

import pytest
import torch

import pullback as pb
from pullback.function.info import info_of


def leaf(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def square():
    class Square(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            return 2 * x * cotangent

    return Square


def slope(function, *args):
    x = leaf(3.0)
    return torch.autograd.grad(function.apply(x, *args), x)[0].item()


# ---- one per class ----


def test_info_is_made_once():
    cls = square()
    cls.apply(leaf(1.0))
    info = info_of(cls)
    cls.apply(leaf(1.0))

    assert info_of(cls) is info
    assert info.cls is cls
    assert info.name == "Square"


def test_every_subclass_has_its_own():
    parent = square()

    class Child(parent):
        @staticmethod
        def backward(ctx, cotangent):
            return parent.backward(ctx, cotangent) * 10

    assert slope(parent) == 6.0
    assert slope(Child) == 60.0
    assert slope(parent) == 6.0
    assert info_of(Child) is not info_of(parent)


def test_threads_may_make_the_first_call():
    for _ in range(10):
        cls, found, barrier = square(), [], threading.Barrier(4)

        def work(cls=cls, found=found, barrier=barrier):
            x = leaf(3.0)
            barrier.wait()
            cls.apply(x).backward()
            found.append(x.grad.item())

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert found == [6.0] * 4


def test_unused_class_is_collected():
    def use():
        cls = square()
        cls.apply(leaf(1.0)).backward()
        return weakref.ref(cls)

    dead = [use() for _ in range(5)]
    gc.collect()
    gc.collect()

    assert [ref() for ref in dead] == [None] * 5


# ---- what PyTorch and its users see of the class ----


def test_node_is_of_the_class_at_hand():
    """Code that asked for `_backward_cls` before the first call still knows the node."""
    cls = square()
    before = cls._backward_cls
    y = cls.apply(leaf(1.0))
    node = y.grad_fn

    assert isinstance(node, before)
    assert isinstance(node, cls._backward_cls)
    assert isinstance(node, pb.AutogradContext)
    assert node.name() == "SquareBackward"
    assert type(node).__name__ == "SquareBackward"


@pytest.mark.parametrize("kept", [False, True], ids=["plain", "with attribute tensor"])
def test_context_leads_to_the_class(kept):
    class Helped(pb.Function):
        weight = 3.0

        @staticmethod
        def twice(cotangent):
            return 2 * cotangent

        @staticmethod
        def forward(ctx, x):
            if kept:
                ctx.kept = x * 1
            return x * 2

        @staticmethod
        def backward(ctx, cotangent):
            return ctx._forward_cls.twice(cotangent) * ctx._forward_cls.weight

    assert slope(Helped) == 6.0


def test_legacy_export_finds_symbolic():
    """`symbolic` is how a Function says what it is in ONNX: the exporter asks what was traced."""
    calls = []

    class Exported(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return x * x

        @staticmethod
        def symbolic(graph, x):
            calls.append("symbolic")
            return graph.op("Mul", x, x)

    class Module(torch.nn.Module):
        def forward(self, x):
            return Exported.apply(x)

    def export():
        try:
            torch.onnx.export(Module(), (torch.ones(2),), io.BytesIO(), dynamo=False)
        except Exception as error:
            if "not installed" not in str(error):  # the last step needs the package `onnx`
                raise

    with pytest.warns(DeprecationWarning, match="legacy TorchScript-based ONNX export"):
        export()

    assert calls == ["symbolic"]


def test_trace_records_one_node():
    cls = square()
    with pytest.warns(DeprecationWarning, match=r"torch\.jit\.trace"):
        graph = torch.jit.trace(lambda x: cls.apply(x) + 1, torch.ones(2)).graph
    nodes = [node for node in graph.nodes() if node.kind() == "prim::PythonOp"]

    assert [node.pyname() for node in nodes] == ["Square"]


# ---- methods that are replaced ----


def test_replaced_backward_is_used(monkeypatch):
    cls = square()
    assert slope(cls) == 6.0
    monkeypatch.setattr(cls, "backward", staticmethod(lambda ctx, g: 7 * g))

    assert slope(cls) == 7.0


def test_replaced_forward_is_used(monkeypatch):
    cls = square()
    assert slope(cls) == 6.0

    def forward(ctx, x, factor):
        ctx.save_for_backward(x * factor)
        return x * x * factor

    def backward(ctx, cotangent):
        return 2 * ctx.saved_tensors[0] * cotangent, None

    monkeypatch.setattr(cls, "forward", staticmethod(forward))
    monkeypatch.setattr(cls, "backward", staticmethod(backward))
    x = leaf(3.0)

    assert slope(cls, 5.0) == 30.0
    assert torch.autograd.grad(cls.apply(x, factor=5.0), x)[0].item() == 30.0


def test_replaced_split_forward_is_used(monkeypatch):
    class Split(pb.Function):
        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, cotangent):
            return 2 * ctx.saved_tensors[0] * cotangent, None

    assert slope(Split) == 6.0
    monkeypatch.setattr(Split, "forward", staticmethod(lambda x, factor=5: x * x * factor))
    x = leaf(3.0)

    assert Split.apply(x).item() == 45.0
    assert Split.apply(x, 2).item() == 18.0
    assert Split.apply(x, factor=3).item() == 27.0


def test_methods_may_come_after_the_class():
    class Late(pb.Function):
        pass

    with pytest.raises(NotImplementedError, match="must implement the forward function"):
        Late.apply(leaf(1.0))
    Late.forward = staticmethod(lambda ctx, x: x * 3)
    Late.backward = staticmethod(lambda ctx, cotangent: cotangent * 3)

    assert slope(Late) == 3.0


def test_methods_may_be_lambdas():
    """Also where they use names of ours, which foreign callers need translated."""
    space = {
        "forward": staticmethod(lambda ctx, x: ctx.saved_data.update(k=3.0) or x * 3.0),
        "backward": staticmethod(lambda ctx, g: {"x": g * ctx.saved_data["k"]}),
    }

    assert slope(type("Short", (pb.Function,), space)) == 3.0


def test_attribute_set_later_is_seen():
    cls = square()
    slope(cls)
    cls.factor = 5.0
    cls.backward = staticmethod(lambda ctx, g: g * ctx._forward_cls.factor)

    assert slope(cls) == 5.0


def test_function_is_hidden_from_the_compiler_once():
    pytest.importorskip("torch._dynamo")
    info = info_of(square())

    def run():
        return 1

    hidden = info.opaque(run)

    assert hidden is not run
    assert hidden() == 1
    assert info.opaque(run) is hidden
    assert len({id(info.opaque(lambda: 1)) for _ in range(9)}) > 1
    assert len(info.hidden) < 5
