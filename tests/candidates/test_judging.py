"""Attacks are caught for their reason, sound counterparts are silent, and the verdict holds."""

import threading
from pathlib import Path

import pytest
import torch

import pullback as pb
from benchmarks.attacks import TABLE
from benchmarks.judged_attacks import names_of
from pullback.candidates import race
from pullback.candidates.judging import judge_all
from pullback.errors import ExamplesError, TargetError

ATTACKS = [attack for attack in TABLE if attack.file == "cpu.py"]
ONE_OF_EACH = list({attack.finding: attack for attack in ATTACKS if not attack.by_time}.values())
ONE_OF_SOUND = list({attack.sound: attack for attack in ATTACKS}.values())


def some_then_all(some):
    """Some attacks, and all of them where slow tests run."""
    every = pytest.param(ATTACKS, marks=pytest.mark.slow)
    return pytest.mark.parametrize("attacks", [some, every], ids=["some", "all"])


QUICK = {"check": False, "compiled": False, "cold": False, "seconds": 0.01}


@pytest.fixture
def few_rounds(monkeypatch):
    """As few rounds of timing as give a speed-up."""
    monkeypatch.setattr(race, "ROUNDS", (5, 5))


def judged(attacks, which):
    """The verdicts on attacks (0), or on their sound counterparts (1), by name."""
    names = [(names_of(attack), attack) for attack in attacks]
    targets = dict.fromkeys(found[which] for found, _ in names)
    *_, reference, examples = names[0][0]
    return {v.candidate: v for v in judge_all(targets, reference, examples, **QUICK)}


def missed(attacks, verdicts):
    """Attacks that were not found by their name, with what was found."""
    found = {}
    for attack in attacks:
        verdict = verdicts[names_of(attack)[0]]
        names = [finding.rule.name for finding in verdict.findings]
        is_note = attack.finding == "calls-reference"
        if attack.finding not in names or verdict.ok is not is_note:
            found[attack.name] = names
    return found


@some_then_all(ONE_OF_EACH)
def test_attack_is_caught_for_its_reason(attacks, few_rounds):
    attacks = [attack for attack in attacks if not attack.by_time]

    assert missed(attacks, judged(attacks, 0)) == {}


@pytest.mark.slow  # by the clock
def test_attacks_by_time_are_caught():
    attacks = [attack for attack in ATTACKS if attack.by_time]

    assert missed(attacks, judged(attacks, 0)) == {}


@some_then_all(ONE_OF_SOUND[::2])
def test_sound_counterparts_are_silent(attacks, few_rounds):
    verdicts = judged(attacks, 1)
    loud = {name: verdict.names() for name, verdict in verdicts.items() if not verdict.ok}

    assert loud == {}
    assert all(verdict.speedup is not None for verdict in verdicts.values())


@pytest.mark.needs_cuda
def test_attacks_on_a_gpu_are_caught():
    attacks = [attack for attack in TABLE if attack.file == "gpu.py"]

    assert missed(attacks, judged(attacks, 0)) == {}


@pytest.mark.needs_cuda
def test_sound_counterparts_on_a_gpu_are_silent():
    attacks = [attack for attack in TABLE if attack.file == "gpu.py"]
    verdicts = judged(attacks, 1)

    assert {name: v.names() for name, v in verdicts.items() if not v.ok} == {}


# ---- candidates of other kinds ----


def reference(x):
    return torch.softmax(x, -1)


def doubled(x):
    return torch.softmax(x, -1) * 2


def with_numpy(x):
    import numpy as np

    y = np.exp(x.numpy() - x.numpy().max(-1, keepdims=True))
    return torch.from_numpy(y / y.sum(-1, keepdims=True))


class Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, g):
        (y,) = ctx.saved_tensors
        return y * (g - (g * y).sum(-1, keepdim=True))


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.mark_non_differentiable(y)
        return y


def even_rows_only(x):
    if x.shape[0] % 2:
        raise ValueError("an even number of rows is needed")
    return torch.softmax(x, -1)


def never_ends(x):
    threading.Event().wait()


X = torch.randn(8, 12)


def test_kinds_of_candidates(few_rounds):
    candidates = [Softmax, with_numpy, doubled, NoGradient, even_rows_only]
    verdicts = dict(zip(candidates, judge_all(candidates, reference, (X,), **QUICK), strict=True))
    names = {c: [f.rule.name for f in v.findings] for c, v in verdicts.items()}

    assert names == {
        Softmax: [],
        with_numpy: ["forward-only"],
        doubled: ["wrong-result"],
        NoGradient: ["no-gradient"],
        even_rows_only: names[even_rows_only],
    }
    assert set(names[even_rows_only]) <= {"refuses-inputs"}
    assert set(verdicts[Softmax].speedups) == {"forward", "backward", "both"}
    assert set(verdicts[with_numpy].speedups) == {"forward"}
    assert verdicts[doubled].speedup is None
    assert [v.ok for v in verdicts.values()] == [True, True, False, False, True]


def test_check_finds_what_trials_do_not():
    verdict = pb.judge(Softmax, reference, (X,), **{**QUICK, "check": True})

    assert verdict.ok
    assert verdict.tried["rules"] > 50


def test_a_seed_gives_the_same_inputs_again():
    one, two = (pb.judge(doubled, reference, (X,), seed=11, **QUICK) for _ in range(2))

    assert one.seed == two.seed == 11
    assert one.findings == two.findings


def test_inputs_come_from_a_function():
    verdict = pb.judge(doubled, reference, lambda: [(torch.randn(3, 4),)], **QUICK)

    assert verdict.names() == ["wrong-result"]


@pytest.mark.slow
@pytest.mark.needs_compiler
def test_compiled_candidates_and_references_are_timed(tmp_path):
    path = Path(tmp_path, "fast.py")
    path.write_text(
        "import torch\n"
        "compiled = torch.compile(lambda x: torch.softmax(x, -1))\n"
        "def fast(x):\n    return compiled(x)\n"
    )
    options = {**QUICK, "compiled": True}
    verdict = pb.judge(f"{path}:fast", reference, (X,), **options)

    assert verdict.ok
    assert set(verdict.speedups["both"]) == {"reference", "compiled"}


@pytest.mark.slow
@pytest.mark.needs_compiler
def test_candidates_in_cpp_are_judged(tmp_path):
    path = Path(tmp_path, "native.py")
    source = "torch::Tensor twice(torch::Tensor x) { return torch::softmax(x, -1); }"
    path.write_text(
        "from torch.utils.cpp_extension import load_inline\n"
        f"ops = load_inline('judged_ops', cpp_sources={source!r}, functions=['twice'],\n"
        f"                  build_directory={str(tmp_path)!r})\n"
        "def native(x):\n    return ops.twice(x)\n"
    )
    verdict = pb.judge(f"{path}:native", reference, (X,), **QUICK)

    assert verdict.names() == []


# ---- what cannot be judged ----


def test_reference_that_draws_is_refused():
    with pytest.raises(ExamplesError) as caught:
        pb.judge(doubled, lambda x: x + torch.rand(3), (torch.randn(3),), **QUICK)

    assert "must give the same for the same inputs" in str(caught.value)


def test_reference_that_does_not_run_is_refused():
    with pytest.raises(ExamplesError) as caught:
        pb.judge(doubled, lambda x: x @ x, (torch.randn(3, 4),), **QUICK)

    assert "must run at its inputs" in str(caught.value)


def test_what_cannot_be_sent_is_refused():
    lock = threading.Lock()

    def local(x):
        with lock:
            return x

    with pytest.raises(TargetError) as caught:
        pb.judge(local, reference, (X,), **QUICK)

    assert "must be something that can be sent" in str(caught.value)


def test_a_candidate_that_refuses_all_but_the_first_call_fails():
    calls = []

    def once(x):
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("no more")
        return torch.softmax(x, -1)

    assert pb.judge(once, reference, (X,), **QUICK).names() == ["candidate-fails"]


def test_missing_candidate_is_a_finding():
    verdict = pb.judge("nowhere.py:f", reference, (X,), **QUICK)

    assert verdict.names() == ["candidate-fails"]
