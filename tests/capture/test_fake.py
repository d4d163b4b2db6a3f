"""A stage: fake tensors, symbolic sizes, a growing graph."""

import pytest
import torch
from torch import fx

from pullback.capture.fake import (
    Overhearing,
    Stage,
    apart,
    is_dense,
    is_fake,
    numbers_of,
    with_other_sizes,
)
from pullback.capture.joint import capture
from pullback.capture.watch import watched
from tests.capture.cases import normal

LAYOUTS = {
    "contiguous": torch.ones(3, 4),
    "transposed": torch.ones(3, 4).t(),
    "expanded": torch.ones(1, 4).expand(3, 4),
    "strided": torch.ones(6, 8)[::2, ::2],
    "scalar": torch.ones(()),
    "empty": torch.ones(0, 4),
    "single": torch.ones(1, 1),
}


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("name", LAYOUTS)
def test_stand_in_is_of_the_same_kind(name, dynamic):
    tensor = LAYOUTS[name].to(torch.float64)

    fake = Stage(dynamic=dynamic).stand_in(tensor)

    assert is_fake(fake)
    assert numbers_of(fake.shape) == tuple(tensor.shape)
    assert numbers_of(fake.stride()) == tensor.stride()
    assert fake.dtype == tensor.dtype


def test_stand_ins_share_no_memory():
    stage, tensor = Stage(dynamic=True), torch.ones(3)

    one, two = stage.stand_in(tensor), stage.stand_in(tensor)

    assert one.untyped_storage()._cdata != two.untyped_storage()._cdata


def test_foreign_tensors_are_known():
    stage, other = Stage(dynamic=True), Stage(dynamic=True)

    assert not stage.is_foreign(stage.stand_in(torch.ones(3)))
    assert stage.is_foreign(other.stand_in(torch.ones(3)))
    assert stage.is_foreign(torch.ones(3))


@pytest.mark.parametrize("name", LAYOUTS)
def test_dense_tensor_is_one_whose_clone_agrees(name):
    tensor = LAYOUTS[name]
    agrees = tensor.numel() < 2 or tensor.clone().stride() == tensor.stride()

    assert is_dense(tensor) == agrees


def test_function_becomes_a_graph():
    stage = Stage(dynamic=True)
    x = stage.stand_in(normal(4, 3))

    module = stage.trace(lambda x: x.sin() * 2, [x])

    ops = [n.target for n in module.graph.nodes if n.op == "call_function"]
    assert ops == [torch.ops.aten.sin.default, torch.ops.aten.mul.Tensor]


def test_placeholders_may_come_later():
    stage = Stage(dynamic=True)
    x, extra = stage.stand_in(normal(3)), stage.stand_in(normal(3))
    nodes = []

    def run(x):
        y = x.sin()
        nodes.append(stage.add_placeholder(extra))
        nodes.append(stage.node_of(y))
        return y * extra

    module = stage.trace(run, [x])

    assert [n.op for n in module.graph.nodes] == [
        "placeholder",
        "call_function",
        "placeholder",
        "call_function",
        "output",
    ]
    assert nodes[1].target is torch.ops.aten.sin.default
    assert module(torch.zeros(3), torch.ones(3)).tolist() == [0.0, 0.0, 0.0]


def test_recording_is_known():
    stage = Stage(dynamic=False)
    seen = []

    def run(x):
        seen.append(stage.is_recording)
        return x

    stage.trace(run, [stage.stand_in(normal(3))])

    assert seen == [True]
    assert not stage.is_recording


def test_conditions_hold_for_what_fits():
    stage = Stage(dynamic=True)
    x, y = stage.stand_in(normal(4, 3)), stage.stand_in(normal(3, 5))
    stage.trace(lambda x, y: x @ y, [x, y])

    conditions = stage.conditions([x, y])

    assert stage.meets(conditions, [normal(6, 7), normal(7, 8)])
    assert not stage.meets(conditions, [normal(6, 7), normal(6, 8)])
    assert stage.meets(conditions, [normal(8, 7)[2:], normal(7, 8)])


# ---- sizes ----


def shapes_of(program, *shapes):
    stage = Stage(dynamic=True)
    fakes = [stage.stand_in(torch.ones(shape)) for shape in shapes]
    stage.trace(program, fakes)
    return [fake.shape for fake in fakes]


def test_tied_sizes_grow_together():
    shapes = shapes_of(lambda x, y: x @ y, (4, 3), (3, 5))

    assert with_other_sizes(shapes, [], lambda n: n + 1) == [(5, 4), (4, 6)]


def test_equal_sizes_grow_alike():
    shapes = shapes_of(lambda x, y: (x * 2, y * 2), (4, 3), (4, 5))

    assert with_other_sizes(shapes, [], lambda n: 2 * n) == [(8, 6), (8, 10)]


def test_fixed_sizes_do_not_grow():
    one, two = shapes_of(lambda x, y: x @ y, (4, 3), (3, 5))

    assert with_other_sizes([one], [two], lambda n: n + 1) == [(5, 3)]


def test_plain_sizes_hold_their_equals():
    shapes = shapes_of(lambda x, y: (x + torch.ones(3), y * 2), (4, 3), (3, 5))

    assert with_other_sizes(shapes, [], lambda n: n + 1) == [(5, 3), (3, 6)]


# ---- around ----


def test_modes_around_are_out_of_sight():
    stage = Stage(dynamic=True)
    seen = []

    def run(x):
        with apart():
            seen.append(torch.ones(2).tolist())
        return x * 2

    module = stage.trace(run, [stage.stand_in(normal(3))])

    assert seen == [[1.0, 1.0]]
    assert len(module.graph.nodes) == 3
    assert isinstance(module, fx.GraphModule)


def test_default_device_stays_in_sight():
    with torch.device("meta"), watched(lambda call: pytest.fail(call.name)), apart():
        x = torch.ones(2)

    assert x.device.type == "meta"


def test_hooks_around_are_off_and_come_back():
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return tensor

    x = torch.ones(2, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with apart():
            x.sin()
        before = len(packed)
        x.sin()

    assert (before, len(packed)) == (0, 1)


def test_ops_are_overheard():
    heard = []

    with Overhearing(lambda op, place: heard.append((str(op), place))):
        torch.ones(2).sin()

    assert [op for op, _ in heard][-1] == "aten.sin.default"
    assert heard[-1][1].startswith("test_fake.py:")


def test_nothing_is_cached_with_the_sizes_of_a_capture():
    x = torch.randn(3, 5, requires_grad=True)
    captured = capture(lambda x: (x.sin() * x).exp(), (x,))

    assert not captured.stage.sizes.fake_tensor_cache
