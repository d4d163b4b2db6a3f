"""The text of kernels: values in the outermost place, names of the user, indices that are moved."""

import torch

from pullback.triton_codegen.host import phase_text
from pullback.triton_codegen.writer import wrapped_line
from tests.triton_codegen.graphs import draw, names_in, parts_of


def kernels_of(program, *given, phase="forward"):
    parts = parts_of(program, *given)
    return phase_text(getattr(parts, phase), phase, names_in(parts)).kernels


def test_weights_are_read_before_the_rows():
    def scaled(x, w):
        return x * w / x.sum(-1, keepdim=True)

    main, _ = kernels_of(scaled, draw(4, 8), draw(8), phase="backward")
    lines = [line.strip() for line in main.lines]
    loop = next(i for i, line in enumerate(lines) if line.startswith("for first"))

    assert next(i for i, line in enumerate(lines) if line.startswith("w = tl.load")) < loop


def test_user_names_stand_in_the_kernel():
    def named(x):
        shifted = x - x.amax(-1, keepdim=True)
        return shifted * shifted

    (kernel,) = kernels_of(named, draw(4, 8))

    assert any(line.strip().startswith("shifted = x - ") for line in kernel.lines)


def test_slices_are_read_where_they_stand():
    (kernel,) = kernels_of(lambda x: x[:, 2:] * 2, draw(4, 8))

    assert "(col + 2) * x_stride_1" in kernel.text


def test_reduction_inside_a_gather_goes_over_the_row():
    def picked(x, place):
        return (x - x.logsumexp(-1, keepdim=True)).gather(-1, place.unsqueeze(-1))

    (kernel,) = kernels_of(picked, draw(4, 8), torch.arange(4))

    assert kernel.text.count("tl.sum(") == 1
    assert "mask=in_rows & ((place >= 0) & (place < n_cols))" in kernel.text


def test_explicit_rounding_is_kept():
    (kernel,) = kernels_of(lambda x: x.bfloat16().float() * 3, draw(4, 8))

    assert ".to(tl.bfloat16).to(tl.float32) * 3" in kernel.text


def test_long_lines_are_wrapped_at_their_call():
    line = (
        "    total = tl.load(" + ", ".join(f"argument_{i}" for i in range(12)) + ").to(tl.float32)"
    )

    first, *_, last = wrapped_line(line)

    assert first == "    total = tl.load("
    assert last == "    ).to(tl.float32)"
