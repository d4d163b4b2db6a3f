"""Every sound function of the benchmark agrees with its twin in plain torch.

A function that is called sound and is not would make every honest checker look bad, so each is
compared over subsets of inputs, layouts, sizes, kinks, precisions, and to the order it promises.
"""

import inspect
import sys

import pytest
import torch

from benchmarks.faults import case, public
from benchmarks.faults.sound import entries
from tests.benchmarks.twin import (
    LAYOUTS,
    assert_equal,
    both,
    call_of,
    converted,
    cotangents_for,
    floating,
    gradients,
    laid_out,
    leaves_of,
    needing,
    pull,
    run,
    second_backward,
    sliced,
    tensors_of,
    transposed,
    variants_of,
)

ENTRIES = entries()
every_entry = pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if place % 4 == 0 else pytest.mark.slow)
        for place, name in enumerate(ENTRIES)
    ],
)


def point(name):
    """The entry, its inputs, and cotangents for its outputs."""
    entry = ENTRIES[name]
    args = entry.inputs()
    return entry, args, cotangents_for(run(entry.plain, args))


# ---- what holds of each ----


@every_entry
def test_outputs_agree_with_torch(name):
    entry, args, _ = point(name)
    ours, theirs = run(call_of(entry.target), args, entry.dirty), run(entry.plain, args)

    assert_equal([y.detach() for y in ours], [y.detach() for y in theirs])
    assert [y.requires_grad for y in ours] == [y.requires_grad for y in theirs]


@every_entry
def test_gradients_agree_for_every_subset(name):
    entry, args, _ = point(name)
    count = len(leaves_of(args))
    assert count

    for wanted in [set(), *({i} for i in range(count)), set(range(count))]:
        some = needing(args, wanted)
        cotangents = cotangents_for(run(entry.plain, some))

        assert_equal(*both(entry, some, cotangents))


@every_entry
def test_cotangent_of_any_layout_works(name):
    entry, args, _ = point(name)
    for layout in LAYOUTS:
        cotangents = cotangents_for(run(entry.plain, args), layout, seed=1)
        before = [c.clone() for c in cotangents]

        assert_equal(*both(entry, args, cotangents))
        assert_equal(cotangents, before, rtol=0, atol=0)


@every_entry
def test_inputs_of_any_layout_work(name):
    entry, args, cotangents = point(name)
    for layout in (transposed, sliced):
        moved = laid_out(args, layout)
        before = [x.detach().clone() for x in tensors_of(moved)]

        assert_equal(*both(entry, moved, cotangents))
        assert_equal([x.detach() for x in tensors_of(moved)], before, rtol=0, atol=0)


@every_entry
def test_each_output_alone_agrees(name):
    entry, args, cotangents = point(name)
    for i in range(len(cotangents)):

        def alone(call, dirty, i=i):
            outputs = floating(run(call, args, dirty))
            return pull([outputs[i]], args, [cotangents[i]])

        assert_equal(alone(call_of(entry.target), entry.dirty), alone(entry.plain, False))


@every_entry
def test_second_order_agrees_or_is_refused(name):
    entry, args, cotangents = point(name)
    if entry.order == 1:
        with pytest.raises(RuntimeError, match="once_differentiable"):
            second_backward(call_of(entry.target), args, cotangents, entry.dirty)
        return

    assert_equal(*both(entry, args, cotangents, order=2), rtol=1e-7, atol=1e-9)


@every_entry
def test_backward_may_run_twice(name):
    entry, args, cotangents = point(name)
    outputs = run(call_of(entry.target), args, entry.dirty)
    once, twice = (pull(outputs, args, cotangents, retain_graph=True) for _ in range(2))

    assert_equal(once, twice, rtol=0, atol=0)


# ---- other inputs ----


@every_entry
def test_other_sizes_agree_or_are_refused(name):
    entry, args, _ = point(name)
    for changed in variants_of(args):
        try:
            outputs = run(entry.plain, changed)
        except (RuntimeError, IndexError, ValueError, AssertionError):
            continue
        cotangents = cotangents_for(outputs, seed=2)
        try:
            ours = gradients(call_of(entry.target), changed, cotangents, entry.dirty)
        except ValueError:
            continue

        assert_equal(ours, gradients(entry.plain, changed, cotangents))


@every_entry
def test_ties_and_zeros_take_subgradients_of_torch(name):
    entry, args, _ = point(name)
    if not entry.convention:
        pytest.skip("another subgradient, on purpose")
    rng = torch.Generator().manual_seed(3)
    levels = converted(
        args, lambda x: torch.randint(-1, 2, x.shape, generator=rng).to(x.dtype).contiguous()
    )
    try:
        outputs = run(entry.plain, levels)
        run(call_of(entry.target), levels, entry.dirty)
    except (ValueError, RuntimeError, IndexError):
        return

    assert_equal(*both(entry, levels, cotangents_for(outputs, seed=3)))


@every_entry
def test_result_is_finite_where_torch_is(name):
    entry, args, _ = point(name)
    for scale in (1e-4, 30.0, 1e3):
        scaled = converted(args, lambda x, scale=scale: x * scale)
        try:
            cotangents = cotangents_for(run(entry.plain, scaled), seed=4)
            ours, theirs = both(entry, scaled, cotangents)
        except (ValueError, RuntimeError):
            continue
        finite = [x.isfinite() for x in theirs]
        ours, theirs = (
            [x[f] for x, f in zip(side, finite, strict=True)] for side in (ours, theirs)
        )

        assert_equal(ours, theirs, rtol=1e-5, atol=1e-9)


def error_of(values, truth):
    """The largest difference, in units of the largest true value."""
    pairs = zip(values, truth, strict=True)
    size = max((float(t.abs().max()) for t in truth if t.numel()), default=1.0)
    return max((float((v.to(t) - t).abs().max()) for v, t in pairs if t.numel()), default=0) / (
        size or 1.0
    )


@every_entry
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_precision_is_that_of_eager(name, dtype):
    entry, args, _ = point(name)
    tensors = [*tensors_of(args), *run(entry.plain, args)]
    if any(x.is_complex() for x in tensors) or (dtype == torch.bfloat16 and not entry.low):
        pytest.skip(f"takes no {dtype}")
    rough = converted(args, lambda x: x.to(dtype))
    exact = converted(rough, lambda x: x.double())
    outputs = run(entry.plain, exact)
    cotangents = [c.to(dtype).double() for c in cotangents_for(outputs, seed=5)]
    truth = gradients(entry.plain, exact, cotangents)
    levels = floating(run(entry.plain, rough))
    lowered = [c.to(y.dtype) for c, y in zip(cotangents, levels, strict=True)]
    try:
        ours, eager = both(entry, rough, lowered)
    except ValueError as refusal:
        pytest.skip(str(refusal))
    allowed = 3 * error_of(eager, truth) + 8 * torch.finfo(dtype).eps

    assert [x.dtype for x in ours] == [x.dtype for x in leaves_of(rough)]
    assert error_of(ours, truth) <= allowed


# ---- transforms, for those that promise them ----

TRANSFORMED = [
    name
    for name, entry in ENTRIES.items()
    if inspect.isclass(entry.target)
    and entry.target.setup_context is not torch.autograd.Function.setup_context
]
FORWARD_MODE = [
    name for name in TRANSFORMED if ENTRIES[name].target.jvp is not torch.autograd.Function.jvp
]
BATCHED = [
    name
    for name in TRANSFORMED
    if ENTRIES[name].target.generate_vmap_rule
    or ENTRIES[name].target.vmap is not torch.autograd.Function.vmap
]


def split(args):
    """The tensors that require grad, and a function that puts them back among the others."""
    places = [i for i, x in enumerate(args) if isinstance(x, torch.Tensor) and x.requires_grad]

    def joined(values):
        full = list(args)
        for place, value in zip(places, values, strict=True):
            full[place] = value
        return full

    return tuple(args[i].detach() for i in places), joined


def differentiable(call, joined):
    """The function of the tensors that require grad alone, with floating outputs alone."""
    return lambda *values: tuple(
        y for y in tensors_of(call(*joined(values))) if y.is_floating_point() or y.is_complex()
    )


@pytest.mark.parametrize("name", FORWARD_MODE)
def test_forward_mode_agrees_with_torch(name):
    entry, args, _ = point(name)
    values, joined = split(args)
    rng = torch.Generator().manual_seed(6)
    tangents = tuple(torch.randn(x.shape, generator=rng, dtype=x.dtype) for x in values)
    ours, theirs = (
        torch.func.jvp(differentiable(call, joined), values, tangents)
        for call in (entry.target.apply, entry.plain)
    )

    assert_equal(ours, theirs)


@pytest.mark.parametrize("name", BATCHED)
def test_batched_run_agrees_with_torch(name):
    entry, args, _ = point(name)
    values, joined = split(args)
    stacks = tuple(torch.stack((x, x.flip(-1) * 0.5, x * 1.5), dim=0) for x in values)

    def loss(call):
        inner = differentiable(call, joined)
        return lambda *values: sum((y * y.detach().cos()).sum() for y in inner(*values))

    every = tuple(range(len(values)))
    ours, theirs = (
        torch.func.vmap(torch.func.grad(loss(call), every))(*stacks)
        for call in (entry.target.apply, entry.plain)
    )

    assert_equal(ours, theirs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n, e in ENTRIES.items() if isinstance(e.target, torch.library.CustomOpDef)]
)
def test_custom_op_passes_opcheck(name):
    entry, args, _ = point(name)

    torch.library.opcheck(entry.target, args)


def test_some_promise_each_transform():
    assert len(FORWARD_MODE) >= 5
    assert len(BATCHED) >= 8


# ---- the set as a whole ----


def test_set_is_as_large_as_promised():
    assert len(entries()) >= 90
    assert len(public.SOUND) >= 20
    assert {c.name for c in case.sound()} >= ENTRIES.keys()


@every_entry
def test_target_is_found_by_name(name):
    target = ENTRIES[name].target
    if isinstance(target, torch.library.CustomOpDef):
        target = target._init_fn
    module = sys.modules[target.__module__]

    assert getattr(module, target.__qualname__) is not None
    assert "<locals>" not in target.__qualname__


def test_planted_wrong_gradient_is_seen():
    entry = ENTRIES["tanh"]
    args = entry.inputs()
    ours, _ = both(entry, args, cotangents_for(run(entry.plain, args)))

    with pytest.raises(AssertionError):
        assert_equal([2 * x for x in ours], ours)
