"""Routes through `torch.compile`, compiled autograd and `torch.export`."""

import torch
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch._dynamo.testing import CompileCounterWithBackend
from torch.func import grad, vmap

from tests.function.everywhere.compare import (
    ROWS,
    TORCH,
    Call,
    Tensors,
    assert_equal,
    assert_same_pull,
    flat,
    floating,
    gradients,
    leaves,
    loss_of,
    second_gradients,
)
from tests.function.everywhere.routes.route import Route
from tests.function.everywhere.routes.transforms import batched, every


def around(f: Call) -> Call:
    """`f` between plain operations, as it stands in a program."""

    def program(*xs: Tensor):
        outs = flat(f(*(1.25 * x for x in xs)))
        return tuple(out + 1 for out in outs)

    return program


def compiled(backend: str, dynamic: bool) -> Call:
    def run(f: Call, reference: Call, tensors: Tensors) -> None:
        counter = CompileCounterWithBackend(backend)
        program = torch.compile(around(f), backend=counter, fullgraph=True, dynamic=dynamic)
        for rows in (ROWS, 5, 6) if dynamic else (ROWS,):
            xs = tensors(rows)

            assert_equal(gradients(program, xs), gradients(around(reference), xs))
        # Torch 2.11 and 2.12 compile some Functions again for the second number of rows.
        assert counter.frame_count == 1 or (dynamic and TORCH < (2, 13))
        assert_equal(flat(program(*leaves(xs))), flat(around(reference)(*leaves(xs))))

    return run


def compiled_with_breaks(f: Call, reference: Call, tensors: Tensors) -> None:
    """The compiler may leave to Python what it cannot or must not trace."""
    program = torch.compile(around(f), backend="aot_eager")
    for rows in (ROWS, 5):
        xs = tensors(rows)

        assert_equal(gradients(program, xs), gradients(around(reference), xs))


def compiled_without_grad(f: Call, reference: Call, tensors: Tensors) -> None:
    program = torch.compile(around(f), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert_equal(flat(program(*tensors(ROWS))), flat(around(reference)(*tensors(ROWS))))


def compiled_twice(f: Call, reference: Call, tensors: Tensors) -> None:
    """Double backward through a compiled function."""
    program = torch.compile(around(f), backend="aot_eager", fullgraph=True)
    xs = tensors(ROWS)

    assert_equal(second_gradients(program, xs), second_gradients(around(reference), xs))


def compiled_grad(f: Call, reference: Call, tensors: Tensors) -> None:
    """`torch.func.grad` inside the compiled region."""
    xs = tensors(ROWS)
    program = torch.compile(
        lambda *ys: grad(loss_of(f), argnums=every(xs))(*ys), backend="aot_eager", fullgraph=True
    )

    assert_equal(program(*xs), gradients(reference, xs))


def compiled_vmap(f: Call, reference: Call, tensors: Tensors) -> None:
    """`torch.vmap` inside the compiled region, differentiated from outside."""
    batch = batched(tensors(ROWS), 0)
    program = torch.compile(
        lambda *ys: vmap(lambda *xs: flat(f(*xs)))(*ys),
        backend="aot_eager",
        fullgraph=True,
    )

    def looped(*ys: Tensor):
        loop = [flat(reference(*xs)) for xs in zip(*ys, strict=True)]
        return tuple(torch.stack(outs) for outs in zip(*loop, strict=True))

    assert_equal(gradients(program, batch), gradients(looped, batch))


def loss_after(f: Call) -> Call:
    """One number in few operations, for graphs that are compiled many times."""
    return lambda *xs: sum(out.exp().sum() for out in floating(around(f)(*xs)))


def compiled_backward(backend: str) -> Call:
    """The forward runs eagerly, compiled autograd captures the whole backward."""

    def run(f: Call, reference: Call, tensors: Tensors) -> None:
        counter = CompileCounterWithBackend(backend)

        def compiler(graph):
            return torch.compile(graph, backend=counter, fullgraph=True, dynamic=True)

        for rows in (ROWS, 5):
            xs = leaves(tensors(rows))
            with compiled_autograd._enable(compiler):
                loss_after(f)(*xs).backward()

            expected = torch.autograd.grad(loss_after(reference)(*xs), xs)
            assert_equal(tuple(x.grad for x in xs), expected)
        assert counter.frame_count >= 1

    return run


def compiled_both_ways(f: Call, reference: Call, tensors: Tensors) -> None:
    """`config.compiled_autograd` with a compiled function that calls `backward` itself."""
    xs = leaves(tensors(ROWS))

    def step(*ys: Tensor) -> Tensor:
        loss = loss_after(f)(*ys)
        loss.backward()
        return loss

    with torch._dynamo.config.patch(compiled_autograd=True):
        torch.compile(step, backend="aot_eager")(*xs)

    expected = torch.autograd.grad(loss_after(reference)(*xs), xs)
    assert_equal(tuple(x.grad for x in xs), expected)


class Program(nn.Module):
    def __init__(self, f: Call) -> None:
        super().__init__()
        self.f = f

    def forward(self, *xs: Tensor):
        return around(self.f)(*xs)


def exported(strict: bool) -> Call:
    """The values of the exported program."""

    def run(f: Call, reference: Call, tensors: Tensors) -> None:
        xs = tensors(ROWS)
        program = torch.export.export(Program(f), xs, strict=strict).module()

        assert_equal(flat(program(*xs)), flat(around(reference)(*xs)))

    return run


def exported_with_gradients(strict: bool) -> Call:
    """The gradients of the exported program."""

    def run(f: Call, reference: Call, tensors: Tensors) -> None:
        program = torch.export.export(Program(f), leaves(tensors(ROWS)), strict=strict).module()

        assert_same_pull(program, around(reference), tensors(ROWS))

    return run


# One graph, nothing left to Python.
WHOLE = ("traceable",)
# Enough to see that a costly route works; the slow run takes all.
FEW = (
    "saves-input",
    "saves-intermediate",
    "keeps-intermediate-on-ctx",
    "writes-in-place",
    "takes-numbers-and-none",
    "sets-up-context",
    "returns-several",
    "bends-the-gradient",
    "is-opaque",
    "uses-cpp-names",
    "returns-a-mapping",
)
FEWER = (
    "saves-intermediate",
    "sets-up-context",
    "writes-in-place",
    "returns-several",
    "uses-cpp-names",
    "returns-a-mapping",
)

COMPILED = {
    "compile_aot_eager": Route(compiled("aot_eager", dynamic=False), WHOLE),
    "compile_aot_eager_dynamic": Route(compiled("aot_eager", dynamic=True), WHOLE, quick=FEW),
    "compile_inductor": Route(compiled("inductor", dynamic=False), WHOLE, quick=FEWER),
    "compile_inductor_dynamic": Route(compiled("inductor", dynamic=True), WHOLE, quick=FEWER[:2]),
    "compile_with_breaks": Route(compiled_with_breaks, quick=FEW),
    "compile_double_backward": Route(compiled_twice, WHOLE, quick=FEW),
    "compile_no_grad": Route(compiled_without_grad, WHOLE, quick=FEW),
    "compile_func_grad": Route(compiled_grad, (*WHOLE, "transforms")),
    "compile_vmap": Route(compiled_vmap, (*WHOLE, "transforms", "vmaps")),
    "compiled_autograd": Route(compiled_backward("aot_eager"), WHOLE, quick=FEW),
    "compiled_autograd_inductor": Route(compiled_backward("inductor"), WHOLE, quick=()),
    "compiled_both_ways": Route(compiled_both_ways, quick=FEW),
    "export": Route(exported(strict=False)),
    "export_gradients": Route(exported_with_gradients(strict=False)),
    "strict_export_gradients": Route(exported_with_gradients(strict=True), WHOLE, quick=FEW),
}

# Before, Dynamo stumbles over most Functions here, by the order of their arguments.
if TORCH >= (2, 12):
    COMPILED["strict_export"] = Route(exported(strict=True), WHOLE)
