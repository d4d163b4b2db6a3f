"""The headers of the installed torch, as the emitter reads them."""

import re

import pytest
import torch

from pullback.emit.cpp import headers
from pullback.emit.cpp import values as cpp_values
from pullback.emit.cpp.headers import call_forms, split_types
from pullback.run.disk.toolchain import include_folder

# Arguments that no captured op has, but for their defaults.
NEVER = {"at::Generator", "at::Storage", "at::Stream", "at::DeviceIndex"}


def test_ways_of_common_op_are_found():
    ways = call_forms("sum", "dim_IntList")

    assert ways.struct.name == "at::_ops::sum_dim_IntList::call"
    assert ways.struct.gives == "at::Tensor"
    assert ways.method.takes == (
        "at::Tensor",
        "at::OptionalIntArrayRef",
        "bool",
        "std::optional<at::ScalarType>",
    )
    assert (ways.method.name, ways.method.needless) == ("sum", 2)
    assert (ways.function.name, ways.function.needless) == ("sum", 2)


def test_symbolic_sizes_are_preferred():
    assert call_forms("view", "").method.name == "view_symint"
    assert call_forms("expand", "").method.takes[1] == "c10::SymIntArrayRef"
    assert call_forms("view", "").function is None


def test_unknown_op_has_no_way():
    assert call_forms("no_such_op", "") is None


def test_commas_inside_brackets_part_nothing():
    assert split_types("std::array<bool,3> mask, const at::Tensor & x") == [
        "std::array<bool,3> mask",
        "const at::Tensor & x",
    ]


def test_every_aten_op_can_be_called():
    """The struct of each functional op is there, and each of its types can be written."""
    missing, unwritable = [], set()
    for name in torch._C._dispatch_get_all_op_names():
        space, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if space != "aten" or not (include_folder() / "ATen" / "ops" / f"{base}_ops.h").is_file():
            continue
        ways = call_forms(base, overload)
        if ways is None:
            missing.append(name)
            continue
        for kind in ways.struct.takes:
            bare = re.sub(r"^std::optional<(.*)>$", r"\1", kind)
            known = bare in cpp_values._WRITERS or re.match(r"std::array<bool,\d>$", bare)
            if not known and bare not in NEVER:
                unwritable.add(kind)

    assert missing == []
    assert unwritable == set()


@pytest.mark.parametrize("kind", ["const at::Tensor &", "at::Tensor &", "at::Tensor"])
def test_references_do_not_change_a_type(kind):
    assert headers.plain_type(kind) == "at::Tensor"
