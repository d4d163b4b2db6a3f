"""The text of kernels: values in the outermost place, under the names of the user."""

from tests.triton_codegen.graphs import draw, kernels_of


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


def test_explicit_rounding_is_kept():
    (kernel,) = kernels_of(lambda x: x.bfloat16().float() * 3, draw(4, 8))

    assert ".to(tl.bfloat16).to(tl.float32) * 3" in kernel.text
