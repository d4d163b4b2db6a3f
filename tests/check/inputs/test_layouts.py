"""Layouts keep the values, and differ from the dense one."""

import pytest
import torch

from pullback.check.inputs.layouts import dense, is_expanded, is_same_layout, layouts_of

TENSORS = {
    "vector": torch.randn(6),
    "matrix": torch.randn(3, 4),
    "image": torch.randn(2, 3, 4, 5),
    "complex": torch.randn(3, 4, dtype=torch.complex64),
    "number": torch.tensor(2.0),
}


@pytest.mark.parametrize("name", TENSORS)
def test_values_survive_every_layout(name):
    tensor = TENSORS[name]
    for label, changed in layouts_of(tensor):
        want = dense(changed) if is_expanded(label) else tensor

        assert torch.equal(changed, want)
        assert not is_same_layout(changed, tensor)


def test_complex_tensor_gets_a_conjugate_view():
    assert any(changed.is_conj() for _, changed in layouts_of(TENSORS["complex"]))


def test_real_tensor_gets_a_negative_view():
    assert any(changed.is_neg() for _, changed in layouts_of(TENSORS["matrix"]))


def test_image_gets_channels_last():
    assert "channels-last" in [label for label, _ in layouts_of(TENSORS["image"])]
