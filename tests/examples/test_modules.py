"""Every example runs as a program, in a process of its own."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# module: a line of its output that says what was found
LINES = {
    "combined": "Node: CombinedFunctionBackward, the only one in the graph.",
    "nested": "Nodes, from the output: SineFunctionBackward, SquareFunctionBackward.",
    "hybrid": "Node: ComplexFunctionBackward; the inner two leave none.",
    "my_activation": "     1.0000     0.3791    -0.0366    -0.0366        0.1020",
    "my_elementwise": "C++ names.    Largest difference from PyTorch: 0 (15 float64 values",
    "my_complex_op": "     2.2500     0.6054    -0.9775    -0.9775        1.1084",
    "my_function": "The output is the input tensor itself: True.",
    "my_relu": "     2.0000     2.0000           1.0000     1.0000     1.0000",
    "my_ops": "losses: ",
    "roi_align": "Node: ROIAlignFunctionBackward, put there by the operator itself.",
    "planned": "square_sine(float32[1000000], float32[1000000]): 1 000 000 elements of `x`",
    "demo": "All Functions agree with PyTorch, and both published mistakes were found.",
}
# Only what needs no compiler is planned: it takes seconds.
EAGER = {"PULLBACK_BACKENDS": "eager"}
NOT_PROGRAMS = {"parallel", "__init__", "compare"}


QUICK = {"combined", "hybrid", "my_relu", "roi_align"}


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "module", [pytest.param(m, marks=() if m in QUICK else pytest.mark.slow) for m in LINES]
)
def test_module_runs_as_a_program(module, warm_python):
    run = warm_python("-m", f"examples.{module}", folder=ROOT, OMP_NUM_THREADS="1", **EAGER)

    assert run.returncode == 0, run.stderr
    assert any(line.startswith(LINES[module]) for line in run.stdout.splitlines()), run.stdout


def test_every_example_is_listed():
    modules = {path.stem for path in (ROOT / "examples").glob("*.py")}

    assert modules - NOT_PROGRAMS == set(LINES)
