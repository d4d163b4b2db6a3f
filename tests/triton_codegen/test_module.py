"""Files of kernels: what they are decorated with, and the functions that they need."""

from pullback.triton_codegen.module import common_texts, kernel_text, usual_options
from tests.triton_codegen.graphs import draw
from tests.triton_codegen.test_host import phase_of


def test_first_configuration_is_the_usual_one():
    phase = phase_of(lambda x: x / x.sum(-1, keepdim=True), draw(4, 2048))
    (kernel,) = phase.kernels

    assert usual_options(kernel) == {"num_warps": 8}
    assert kernel_text(kernel).startswith("@triton.autotune(configs(({}, 8), ")
    assert kernel_text(kernel, is_tuned=False).startswith("@triton.jit\ndef ")


def test_helpers_come_with_the_kernels_that_call_them():
    phase = phase_of(lambda x: x.tanh(), draw(4, 8))
    texts = "\n".join(common_texts([phase]))

    assert "def tanh(x):" in texts
    assert "def log1p(x):" not in texts
    assert "def row_tile(" not in texts
