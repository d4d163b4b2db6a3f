"""C++ that does other things than its program is never handed out."""

from dataclasses import replace

import pytest
import torch

import pullback as pb
from pullback.emit.cpp import op as cpp
from pullback.emit.cpp.op import emit_cpp
from pullback.emit.cpp.verify import graphs_differ
from pullback.emit.subject import subject_of
from pullback.errors import EmitMismatchError
from pullback.judge.observed import TOGETHER, Observed


def row(*shape):
    return torch.linspace(-1, 2, torch.Size(shape).numel()).reshape(shape).requires_grad_()


def verified(x, y, factor=0.5):
    return (x * factor).sin() * y, y.exp()


def sine(x, y):
    return x.sin() * y, y.exp()


def test_graph_that_differs_is_written_as_captured():
    subject = subject_of(sine, (row(3), row(3)))
    other = subject_of(lambda x, y: (x.cos() * y, y.exp()), (row(3), row(3)))
    vars(subject)["parts"] = other.parts
    text = next(iter(emit_cpp(subject).values()))

    assert "auto out0 = x.sin() * y;" in text


def test_graphs_that_both_differ_are_refused():
    subject = subject_of(sine, (row(3), row(3)))
    other = subject_of(lambda x, y: (x.cos() * y, y.exp()), (row(3), row(3)))
    vars(subject)["parts"] = vars(subject)["exact"] = other.parts
    with pytest.raises(EmitMismatchError) as caught:
        emit_cpp(subject)

    assert str(caught.value).startswith(
        "E604 emit-mismatch: the C++ of `Sine` must do what the program does: nothing is handed out"
    )
    assert caught.value.facts["at"] == "output 0, for the example"
    assert caught.value.facts["got"].endswith(", from the C++")


def relu(x):
    return torch.where(x > 0, x, 0.0)


def shifted(x):
    return torch.where(x >= 0, x, 0.0)


def test_graph_that_differs_at_ties_alone_is_seen():
    """At zero alone, where one has the gradient 1 and the other 0."""
    subject, other = (subject_of(f, (row(5),)) for f in (relu, shifted))

    assert graphs_differ(subject, subject.parts) is None
    found = graphs_differ(subject, other.parts)
    assert (found.row, found.kind) == ("zeros among them", "gradient")
    assert (found.name, found.by) == ("x", TOGETHER)


def test_program_that_is_not_repeatable_is_not_blamed():
    state = iter(range(100))
    subject = subject_of(relu, (row(4),))
    counting = replace(subject, program=lambda x: x * next(state))

    assert graphs_differ(counting, subject.parts) is None


def steep(x):
    """The slope of the second output is infinite at zero: zeros times it are not a number."""
    return x * 2, x.sum().sqrt()


def test_infinite_slope_of_another_output_is_not_blamed():
    subject = subject_of(steep, (row(4),))

    assert graphs_differ(subject, subject.parts) is None


def cancelling(x, w):
    """The gradient of the first output is zero, but for what rounding leaves of it."""
    return torch.softmax(x @ w, -1).sum(0), torch.tanh(x).mean()


def test_rounding_of_what_cancels_is_not_blamed():
    examples = tuple(torch.randn(shape, requires_grad=True) for shape in ((5, 8), (8, 6)))
    subject = subject_of(cancelling, examples)

    assert graphs_differ(subject, subject.parts) is None


# ---- with a compiler ----


def spoiled(monkeypatch, old, new):
    """Write `new` for `old` in the C++ that is compared."""
    written = cpp.library_text

    def library_text(*arguments):
        text = written(*arguments)
        assert old in text
        return text.replace(old, new)

    monkeypatch.setattr(cpp, "library_text", library_text)


SPOILED = {
    "gradient": ("grad_x = ", "grad_x = 1.001 * ", "the gradient of `x` by"),
    "history": ("silent.push_back(out1)", "(void)out1", "where input 0 alone does"),
    "number": ("number(factor, x)", "number(0.5, x)", "output 0, for other numbers"),
    "syntax": ("struct Verified ", "strict Verified ", "error"),
}


@pytest.mark.needs_compiler
@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow) for k in SPOILED])
def test_cpp_that_differs_is_not_handed_out(kind, monkeypatch, tmp_path):
    old, new, said = SPOILED[kind]
    spoiled(monkeypatch, old, new)
    with pytest.raises(EmitMismatchError) as caught:
        pb.emit(verified, "cpp", examples=(row(3), row(3)), path=tmp_path / "spoiled")

    assert said in " ".join(caught.value.facts.values())
    assert list(tmp_path.iterdir()) == []


# ---- without one ----

NOTE = "// Not compared with the program when it was written: no C++ compiler is installed as"


def test_text_that_was_not_compiled_says_so(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    text = pb.emit(verified, "cpp", examples=(row(3), row(3)))

    assert NOTE in text


def test_comparison_can_be_left_out(monkeypatch):
    monkeypatch.setattr("subprocess.run", None)
    text = pb.emit(verified, "cpp", examples=(row(3), row(3)), verify=False)

    assert NOTE not in text


# ---- the facts of an error ----


def two(x, y):
    return x.sin() * y, y * y


def test_difference_names_the_gradient():
    comparison = subject_of(two, (row(3), row(3))).comparison
    first = comparison.rows[0]
    right, wrong = (comparison.observe(lambda given: two(*given), first) for _ in range(2))
    wrong.first["output 1"][1][2] += 1
    said = comparison.apart(right, wrong, first).facts("`two`", "the C++")

    assert comparison.apart(right, right, first) is None
    assert said["at"] == "the gradient of `y` by output 1 alone, for the example"
    assert said["expected"].endswith(" at [2], from `two`")
    failed = comparison.apart(right, Observed(error="no", error_type="ValueError"), first)
    assert failed.facts("it", "the C++")["got"] == "ValueError: no, from the C++"
