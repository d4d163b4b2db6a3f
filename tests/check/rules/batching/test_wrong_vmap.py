"""Sound functions pass `wrong-vmap`; planted faults are caught, and named."""

import torch
from torch.autograd import Function

from tests.check.subjects import check_of, normal, rule_tests

check = check_of("wrong-vmap")


class Row(Function):
    """The sum of each sample, right wherever the batch is."""

    @staticmethod
    def forward(x, w):
        return (x * w).sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g.unsqueeze(-1) * w, g.unsqueeze(-1) * x

    @staticmethod
    def vmap(info, in_dims, x, w):
        x = x.unsqueeze(0) if in_dims[0] is None else x.movedim(in_dims[0], 0)
        w = w.unsqueeze(0) if in_dims[1] is None else w.movedim(in_dims[1], 0)
        return Row.apply(x, w), 0


class Generated(Row):
    generate_vmap_rule = True
    vmap = Function.vmap


class NoRule(Row):
    """Without a rule, `vmap` refuses: no defect."""

    vmap = Function.vmap


class InFront(Row):
    """Takes every batch to be in front."""

    @staticmethod
    def vmap(info, in_dims, x, w):
        return InFront.apply(x, w), 0


class FirstOnly(Row):
    """With one set of weights, the first sample stands for all."""

    @staticmethod
    def vmap(info, in_dims, x, w):
        if in_dims[1] is None:
            x = x.movedim(in_dims[0], 0)
            return Row.apply(x[:1].expand_as(x), w), 0
        return Row.vmap(info, in_dims, x, w)


class ReadsNumber(Generated):
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.largest = float(inputs[0].max())
        ctx.save_for_backward(*inputs)


class ThroughNumpy(Generated):
    """Promises vmap by `generate_vmap_rule`, and cannot be batched."""

    @staticmethod
    def forward(x, w):
        return torch.from_numpy(x.detach().numpy() * w.detach().numpy())


def squaring(name, place):
    """An op that squares, whose rule says that the batch is where `place` says."""

    @torch.library.custom_op(f"tests_wrong_vmap::{name}", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        return x * x

    op.register_fake(torch.empty_like)
    op.register_vmap(lambda info, in_dims, x: (op(x), place(in_dims)))
    return op


kept = squaring("kept", lambda in_dims: in_dims[0])
front = squaring("front", lambda in_dims: 0)


SOUND = {
    "op": (kept, lambda: (normal(3, 4),)),
    "program with an op": (lambda x: kept(2 * x), lambda: (normal(3, 4),)),
    "rule": (Row, lambda: (normal(3, 4), normal(3, 4, seed=1))),
    "generated": (Generated, lambda: (normal(3, 4), normal(3, 4, seed=1))),
    "no rule": (NoRule, lambda: (normal(3, 4), normal(3, 4, seed=1))),
}
PLANTED = {
    "promised": (ThroughNumpy, lambda: (normal(3), normal(3, seed=1)), "vmap, for in_dims=(0, 0)"),
    "in front": (InFront, lambda: (normal(3, 3), normal(3, 3, seed=1)), "in_dims=(2, 2)"),
    "first only": (FirstOnly, lambda: (normal(3, 3), normal(3, 3, seed=1)), "in_dims=(0, None)"),
    "op": (front, lambda: (normal(3, 3),), "in_dims=(2,)"),
    "program with an op": (lambda x: front(x), lambda: (normal(3, 3),), "in_dims=(2,)"),
    "reads a number": (ReadsNumber, lambda: (normal(3), normal(3, seed=1)), "vmap, for"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(check, SOUND, PLANTED)
