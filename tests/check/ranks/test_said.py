"""What ranks write on standard error."""

import os

import torch
import torch.distributed as dist
from torch.autograd import Function

import pullback as pb
from pullback.check.ranks.said import RankErrors


class UnequalSizes(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        sent = grad[: 1 + 2 * dist.get_rank()].clone()
        dist.all_reduce(sent)
        return grad


def test_text_is_shown_once(capsys):
    said = RankErrors()
    os.write(said.fileno(), b"one\n")
    said.show()
    os.write(said.fileno(), b"two\n")
    said.show()
    said.close()

    assert capsys.readouterr().err == "one\ntwo\n"


def test_end_by_cpp_is_told_not_shown(capsys):
    said = RankErrors()
    os.write(said.fileno(), b"own\nterminate called after throwing an instance of 'X'\n")
    os.write(said.fileno(), b"  what():  [enforce fail at a/pair.cc:456] 12 vs 8. Is there more?")

    assert said.last_message() == " (12 vs 8)"
    said.show()
    said.close()
    assert capsys.readouterr().err == "own\n"


def test_log_of_what_is_raised_is_not_shown(capsys):
    said = RankErrors()
    os.write(said.fileno(), b"[rank2]:[F1119 04:36:05.245 Group.cpp:1537] Check failed\n")
    os.write(said.fileno(), b"own\n")
    said.show()
    said.close()

    assert capsys.readouterr().err == "own\n"


def test_lost_ranks_print_nothing_beside_the_report(capfd):
    report = pb.check(
        UnequalSizes, lambda rank: (torch.ones(4, 3) + rank,), ranks=2, profile="quick"
    )

    assert [finding.rule.name for finding in report.findings] == ["different-collectives"]
    assert capfd.readouterr().err == ""


class Prints(Function):
    @staticmethod
    def forward(ctx, x):
        print("printed" * 100)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_what_a_function_prints_is_shown_in_part_and_not_on_standard_output(capfd):
    report = pb.check(Prints, lambda rank: (torch.ones(4, 3) + rank,), ranks=2)
    shown = capfd.readouterr()

    assert report.ok
    assert shown.out == ""
    assert "printed" in shown.err
    assert "is left out" in shown.err
    assert len(shown.err) < 25_000
