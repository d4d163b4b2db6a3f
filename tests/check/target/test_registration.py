"""The dispatcher tells the names of an op's arguments, and where C++ registered it."""

import torch

from pullback.check.target import registration
from pullback.check.target.registration import overload_of, place_of_op, schema_of
from pullback.check.target.target import target_of


@torch.library.custom_op("pullback_tests::registered", mutates_args=())
def registered(x: torch.Tensor, factor: float) -> torch.Tensor:
    return factor * x


def test_schema_is_found_for_every_kind_of_op():
    packet = torch.ops.pullback_tests.registered

    for thing in (registered, packet, packet.default):
        assert [argument.name for argument in schema_of(thing).arguments] == ["x", "factor"]
    assert schema_of(torch.sin) is None


def test_packet_stands_for_its_first_overload():
    assert overload_of(torch.ops.aten.relu) is torch.ops.aten.relu.default


def test_op_is_named_as_it_is_called():
    names = [target_of(thing).name for thing in (registered, torch.ops.pullback_tests.registered)]

    assert names == ["pullback_tests.registered"] * 2


def test_arguments_are_named_by_the_schema():
    assert target_of(torch.ops.pullback_tests.registered).names_of(2) == ("x", "factor")


def test_place_is_that_of_autograd_first(monkeypatch, tmp_path):
    source = tmp_path / "ops.cpp"
    source.touch()
    told = f"""name: a::b
debug: registered at {source}:10
CPU: registered at {source}:20 :: (Tensor _0) -> Tensor _0 [ boxed unboxed ]
Autograd[alias]: registered at {source}:30 :: (Tensor _0) -> Tensor _0 [ boxed unboxed ]
"""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registration, "_dump", lambda name: told)
    with_autograd = place_of_op(torch.ops.aten.relu)
    monkeypatch.setattr(registration, "_dump", lambda name: told.partition("Autograd")[0])

    assert (with_autograd, place_of_op(torch.ops.aten.relu)) == ("ops.cpp:30", "ops.cpp:10")


def test_source_that_is_elsewhere_is_no_place():
    assert place_of_op(torch.ops.aten.relu) == ""
    assert place_of_op(torch.sin) == ""
