"""The benchmark on public code: a tiny package goes through all of it, without network."""

import json
import textwrap
from dataclasses import replace

import pytest
import torch

from benchmarks.wild import settle, table, verdicts
from benchmarks.wild.apart import apart
from benchmarks.wild.install import strip
from benchmarks.wild.packages import DEPENDENCIES, PACKAGES, Package
from benchmarks.wild.page import text as page
from benchmarks.wild.results import Found, Result, add, read
from benchmarks.wild.run import chosen, run
from benchmarks.wild.subject import Subject, double, every, normal

# Kept for an independent judgement.
LEFT_OUT = [
    "icefall",
    "transformers",
    "megatron-lm",
    "entmax",
    "snntorch",
    "gpytorch",
    "linear-operator",
    "timm",
    "brevitas",
    "torchrl",
    "norse",
    "safari",
    "colossalai",
    "torch-ngp",
    "fairseq",
    "spikingjelly",
    "stylegan",
    "pyro",
    "pyro-ppl",
    "fastai",
    "compressai",
    "nerfstudio",
    "rwkv",
    "opennmt-py",
    "torchdiffeq",
    "zuko",
    "speechbrain",
    "lxt",
    "qpth",
    "pypose",
    "torch-geometric",
    "xformers",
    "theseus",
    "theseus-ai",
    "espnet",
    "torchao",
    "torchgpipe",
    "bitsandbytes",
    "nnmnkwii",
    "deepinv",
    "supar",
    "lava-dl",
    "unit-scaling",
    "lucent",
    "torch-lucent",
    "mambapy",
    "ddn",
]

CODE = """
import torch


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g


class Wrong(Square):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return x * g


class Frozen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y) if x.requires_grad else None
        return x * y

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x
"""


@pytest.fixture
def packages(tmp_path):
    """A folder with one package whose `__init__` cannot be run."""
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "__init__.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "tiny" / "functions.py").write_text(textwrap.dedent(CODE))
    strip(Package("tiny", "1.0", "0" * 64, bare=("tiny",)), tmp_path)
    return tmp_path


def tiny(name, *inputs):
    """A subject of the tiny package."""
    return Subject("tiny", f"tiny.functions:{name}", lambda: inputs or (normal(3),))


def found(**facts):
    """A finding with some facts."""
    names = ("rule", "name", "severity", "place", "at", "expected", "got", "why", "fix", "repro")
    return Found(**(dict.fromkeys(names, "") | {"severity": "wrong"} | facts))


def verdict(**facts):
    """A verdict with some facts."""
    usual = {"subject": "tiny:Wrong", "rule": "G101", "place": "tiny/functions.py:20"}
    usual |= {"severity": "wrong", "verdict": "true", "settled": "differences", "why": ""}
    return verdicts.Verdict(**(usual | facts))


WRONG = Result(
    "tiny:Wrong", 0.5, (found(rule="G101", name="wrong-gradient", place="tiny/functions.py:20"),)
)


class TestCorpus:
    def test_is_large_enough(self):
        subjects = every()

        assert len({subject.package for subject in subjects}) >= 30
        assert len(subjects) >= 150

    def test_has_nothing_that_is_kept_for_others(self):
        names = {package.name.lower().replace("_", "-") for package in (*PACKAGES, *DEPENDENCIES)}

        assert not names & set(LEFT_OUT)

    def test_every_subject_is_of_a_pinned_package(self):
        names = {package.name for package in PACKAGES}

        assert {subject.package for subject in every()} == names
        assert all(len(package.sha256) == 64 for package in (*PACKAGES, *DEPENDENCIES))

    def test_verdicts_and_defects_are_about_subjects_and_are_settled(self):
        names = {subject.id for subject in every()}
        listed = [*verdicts.read().values(), *verdicts.defects()]

        assert {entry.subject for entry in listed} <= names
        for entry in listed:
            assert entry.settled == "repro" or callable(settle.settlement(entry.settled))


class TestRun:
    def test_finds_what_is_wrong_and_where(self, packages):
        result = run(tiny("Wrong"), packages)

        assert not result.error
        assert any(entry.place.startswith("tiny/functions.py:") for entry in result.found)
        assert result.cpu > 0

    def test_says_nothing_of_what_is_right(self, packages):
        assert run(tiny("Square"), packages).found == ()

    def test_what_cannot_be_loaded_is_an_error(self, packages):
        assert "AttributeError" in run(tiny("Missing"), packages).error

    def test_what_does_not_end_is_an_error(self, packages):
        import time

        assert apart(lambda: time.sleep(60), path=packages, seconds=0.2) == (
            None,
            "did not end in 0 s",
        )

    def test_what_dies_is_an_error(self, packages):
        import os

        assert apart(lambda: os._exit(3), path=packages, seconds=20) == (None, "ended with 3")

    def test_parts_hold_every_subject_once(self):
        subjects = every()
        parts = chosen(subjects, [], "1/2") + chosen(subjects, [], "2/2")

        assert sorted(s.id for s in parts) == sorted(s.id for s in subjects)
        assert {s.package for s in chosen(subjects, ["memcnn"], "1/1")} == {"memcnn"}

    def test_results_come_back_from_their_file(self, tmp_path):
        path = tmp_path / "results.json"
        add(WRONG, path)
        add(replace(WRONG, cpu=1.0), path)

        assert read(path) == [replace(WRONG, cpu=1.0)]


class TestVerdicts:
    def test_a_finding_without_one_is_a_problem(self):
        (line,) = verdicts.problems([WRONG], {})

        assert line == ("tiny:Wrong: G101 wrong-gradient at tiny/functions.py:20 has no verdict")

    def test_a_finding_that_has_moved_is_a_problem(self):
        known = {v.key: v for v in [verdict(place="tiny/functions.py:7")]}

        (line,) = verdicts.problems([WRONG], known)
        assert line.endswith("has no verdict (there is one for tiny/functions.py:7)")

    def test_another_severity_is_a_problem(self):
        known = {v.key: v for v in [verdict(severity="fragile")]}

        (line,) = verdicts.problems([WRONG], known)
        assert "is wrong, and its verdict is on one that is fragile" in line

    def test_one_with_a_verdict_is_none(self):
        assert verdicts.problems([WRONG], {v.key: v for v in [verdict()]}) == []

    def test_a_subject_that_was_not_checked_is_a_problem(self):
        assert verdicts.problems([Result("tiny:Square", 0.0, error="died")], {}) == [
            "tiny:Square: not checked: died"
        ]

    def test_a_true_one_that_is_gone_is_told_on_request(self):
        known = {v.key: v for v in [verdict()]}
        clean = [Result("tiny:Wrong", 0.5)]

        assert verdicts.problems(clean, known) == []
        assert len(verdicts.problems(clean, known, gone=True)) == 1

    def test_there_is_no_fourth_kind(self):
        with pytest.raises(ValueError, match="a verdict is one of"):
            verdict(verdict="perhaps")

    def test_come_back_from_their_file(self, tmp_path):
        path = tmp_path / "verdicts.json"
        verdicts.write([verdict()], path)

        assert verdicts.read(path) == {verdict().key: verdict()}
        path.write_text(json.dumps(json.loads(path.read_text()) * 2))
        with pytest.raises(ValueError, match="each finding has one verdict"):
            verdicts.read(path)


class TestSettlements:
    @pytest.mark.parametrize(
        ("settlement", "name", "inputs", "expected"),
        [
            (settle.differences, "Wrong", (double(3),), True),
            (settle.differences, "Square", (double(3),), False),
            (settle.second, "Square", (double(3),), False),
            (settle.frozen, "Frozen", (normal(3), normal(3, seed=1)), True),
            (settle.frozen, "Square", (normal(3),), False),
            (settle.twice, "Square", (normal(3),), False),
            (settle.drawn, "Square", (normal(3),), False),
            (settle.unread, "Square", (normal(3),), False),
            (settle.edited, "Square", (normal(3),), False),
            (settle.mutated, "Square", (normal(3),), False),
        ],
    )
    def test_shows_what_is_there(self, settlement, name, inputs, expected, packages):
        subject = tiny(name, *inputs)

        answer, error = apart(lambda: settlement(subject), path=packages, seconds=60)
        assert (answer, error) == (expected, "")

    def test_a_program_is_shown_by_its_failure(self, packages):
        (packages / "a" / "b").mkdir(parents=True)

        assert settle.program("assert 1 == 2", packages / "a" / "b")
        assert not settle.program("assert 1 == 1", packages / "a" / "b")
        assert not settle.program("import nothing_of_that_name", packages / "a" / "b")


class TestTable:
    def test_counts_per_rule_and_verdict(self):
        known = {v.key: v for v in [verdict()]}

        counts = table.count([WRONG, Result("tiny:Square", 1.5)], known)
        assert counts.rules["G101", "wrong-gradient", "wrong"]["true"] == 1
        assert counts.share() == (1, 1)
        assert (counts.subjects, counts.clean, counts.median) == (2, 1, 1.0)

    def test_a_false_one_lowers_the_share(self):
        known = {v.key: v for v in [verdict(verdict="false", destructive=True)]}

        counts = table.count([WRONG], known)
        assert counts.share() == (0, 1)
        assert counts.destructive == 1

    def test_the_page_names_no_package_beside_a_finding(self):
        known = {v.key: v for v in [verdict()]}

        made = page([WRONG], [WRONG], known)
        assert "| G101 [wrong-gradient](rules/wrong-gradient.md) | 1 |  |  |" in made
        assert "tiny" not in made


def test_subjects_give_fresh_inputs_each_time():
    one, other = normal(3), normal(3)

    assert one is not other
    assert torch.equal(one, other)
