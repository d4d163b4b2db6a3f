"""Sound functions pass `vmap-of-gradient`; planted faults are caught, and named."""

from torch.autograd import Function

from tests.check.subjects import check_of, normal, rule_tests

check = check_of("vmap-of-gradient")


class ByTensor(Function):
    """Backward keeps to tensors."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x / x.abs().max()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        largest = x.abs().max()
        hit = (x.abs() == largest).to(x.dtype)
        return grad / largest - hit * x.sign() * (grad * x).sum() / largest**2


class ByNumber(Function):
    """Backward takes a number out of a tensor."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x / x.abs().max()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        largest = x.abs().max().item()
        hit = (x.abs() == largest).to(x.dtype)
        return grad / largest - hit * x.sign() * (grad * x).sum() / largest**2


SOUND = {
    "by tensor": (ByTensor, lambda: (normal(4, 3),)),
}
PLANTED = {
    "by number": (ByNumber, lambda: (normal(4, 3),), "by vmap over torch.func.grad"),
}


test_sound_function_has_no_finding, test_planted_fault_is_caught = rule_tests(
    check, SOUND, PLANTED, count=1
)
