"""Each call is told before it is made."""

import torch

from pullback.check.job import Job
from pullback.check.kernels.launches import narrated
from pullback.check.target.target import target_of
from pullback.judge.example import example_of
from tests.check import functions as f


def test_call_is_told_with_its_arguments():
    told = []
    job = Job(target_of(f.Square), (example_of((torch.ones(2, 3),)),), ())

    y = narrated(job, told.append).target.call(torch.ones(2, 3))

    assert y.tolist() == [[1.0] * 3] * 2
    assert [(message.kind, message.where) for message in told] == [("calling", "x: float32[2, 3]")]
