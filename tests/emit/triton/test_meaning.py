"""What files of kernels compute in Triton's interpreter, beside PyTorch: sizes, strides, values."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

import pullback as pb
from tests.emit.triton.cases import draw, labels

# ---- programs, as people write them ----


def bias(x, b):
    return x + b


def modulated_norm(x, shift, scale):
    y = F.layer_norm(x, (x.shape[-1],))
    return y * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


def mean_of_counted(logits, target):
    counts = target != -100
    lse = torch.logsumexp(logits, -1)
    picked = logits.gather(1, target.clamp(min=0)[:, None]).squeeze(1)
    return ((lse - picked) * counts).sum() / counts.sum()


def cross_entropy(logits, target):
    return F.cross_entropy(logits, target)


def absolute(x, y):
    return F.l1_loss(x, y)


def layer_norm_by_hand(x, weight):
    var, mean = torch.var_mean(x, -1, keepdim=True)
    return (x - mean) / (x.std(-1, keepdim=True) + 1e-6) * weight + var.sqrt()


def rms_by_norm(x, weight):
    return x / (x.norm(2, dim=-1, keepdim=True) * x.shape[-1] ** -0.5 + 1e-8) * weight


def group_norm_by_hand(x, weight):
    y = x.reshape(x.shape[0], 2, -1)
    var = y.var(-1, keepdim=True, unbiased=False)
    y = (y - y.mean(-1, keepdim=True)) / torch.sqrt(var + 1e-5)
    return y.reshape(x.shape) * weight.view(1, -1, 1, 1)


def interleaved_swiglu(x):
    gate, up = x[..., ::2].clamp(max=2.0), x[..., 1::2].clamp(-2.0, 2.0)
    return gate * torch.sigmoid(1.7 * gate) * (up + 1)


def shifted_rows(x):
    return x[1:].sin() + x[:-1]


def polynomial(x, w):
    return w[0] * x**3 + w[1] * x**2 + w[2] * x


def softmax_by_hand(x):
    e = torch.exp(x - x.max(-1, keepdim=True).values)
    return e / e.sum(-1, keepdim=True)


def causal(scores):
    size = scores.shape[-1]
    mask = torch.ones(scores.shape[-2], size, dtype=torch.bool).triu(1)
    return torch.softmax(scores.masked_fill(mask, float("-inf")), -1)


def masked_to_nothing(scores, mask):
    return torch.softmax(scores + mask, -1).nan_to_num(0.0)


def log_probability(logits, target):
    return logits.log_softmax(-1)[torch.arange(logits.shape[0]), target]


def preference(chosen, rejected):
    return -F.logsigmoid(0.1 * (chosen - rejected)).mean()


def interleaved_rope(x, cos, sin):
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)


def rolled_rope(x, cos, sin):
    return x * cos + torch.roll(x, x.shape[-1] // 2, -1) * sin


def gates(x):
    return F.glu(x, -1) + F.mish(x)[..., : x.shape[-1] // 2]


def activations(x):
    found = F.elu(x) + F.celu(x, 0.7) + F.hardswish(x) + F.hardsigmoid(x)
    return found + F.hardtanh(x) + torch.sinh(x) + torch.cosh(x)


def side_by_side(x):
    q, k, v = x.unbind(1)
    return torch.stack([q * k, v.cos()], 1)


def added_logarithms(x, y):
    return torch.logaddexp(x, y)


def parametric(x, slope):
    return F.prelu(x, slope)


def between_extremes(x):
    low, high = x.amin(-1, keepdim=True), x.amax(-1, keepdim=True)
    return (x - low) / (high - low + 1e-3)


def peak_and_shares(x):
    return x.amax(-1, keepdim=True), torch.softmax(x, -1)


def peaks_of_columns(x):
    return x.amax(0) * 2


def _hidden_rows() -> torch.Tensor:
    mask = torch.zeros(5, 7)
    mask[2], mask[0, 3:] = float("-inf"), float("-inf")
    return mask


PROGRAMS = {
    bias: (draw(5, 39, dtype=torch.bfloat16), draw(39, dtype=torch.bfloat16)),
    cross_entropy: (draw(6, 37), labels(6, 37)),
    mean_of_counted: (draw(6, 37), labels(6, 37)),
    modulated_norm: (draw(3, 5, 33), draw(3, 33), draw(3, 34)[:, 1:].detach().requires_grad_()),
    interleaved_swiglu: (draw(5, 34),),
    softmax_by_hand: (draw(5, 33),),
    causal: (draw(2, 7, 7),),
    log_probability: (draw(6, 37), labels(6, 37).clamp(min=-1)),
    interleaved_rope: (draw(2, 3, 16), draw(3, 8, grad=False), draw(3, 8, grad=False)),
    layer_norm_by_hand: (draw(4, 39), draw(39)),
    absolute: (draw(5, 33), draw(5, 33).detach() * 2),
    rms_by_norm: (draw(5, 37), draw(37)),
    group_norm_by_hand: (draw(3, 6, 3, 5), draw(6)),
    shifted_rows: (draw(4, 3, 5),),
    polynomial: (draw(6, 11), draw(3)),
    masked_to_nothing: (draw(2, 3, 5, 7), _hidden_rows()),
    preference: (draw(13), draw(14)[1:].detach().requires_grad_()),
    rolled_rope: (draw(2, 3, 16), draw(3, 16, grad=False), draw(3, 16, grad=False)),
    gates: (draw(5, 34),),
    activations: (draw(6, 21),),
    side_by_side: (draw(5, 3, 33),),
    added_logarithms: (draw(5, 33), draw(5, 34)[:, 1:].detach().requires_grad_()),
    parametric: (draw(4, 5, 7), draw(5)),
    between_extremes: (draw(5, 33),),
    peak_and_shares: (draw(5, 33),),
    peaks_of_columns: (draw(5, 33),),
}

# ---- what they are compared at ----


def variants(given):
    """Inputs like those of the example, in other layouts, with other numbers and more rows."""
    yield given
    yield [_turned(x) for x in given]
    yield [x.detach() * -2 if x.is_floating_point() else x for x in given]
    for value in (float("inf"), float("-inf"), float("nan")):
        yield [_with(x, value) if x is given[0] else x for x in given]
    rows = len(given[0])
    for count in (2 * rows + 1, 1):
        yield [torch.cat([x.detach()] * 3)[:count] if len(x) == rows else x for x in given]


def wider(given):
    """Inputs of other widths, where the last dimensions are the same in all of them."""
    width = given[0].shape[-1]
    return [torch.cat([x.detach()] * 3, -1) if x.shape[-1] == width else x for x in given]


def _turned(x):
    return x.detach().transpose(0, -1).contiguous().transpose(0, -1)


def _with(x, value):
    changed = x.detach().clone()
    changed.view(-1)[changed.numel() // 2] = value
    return changed


def results(function, given):
    """Outputs and gradients."""
    outputs = function(*given)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    wanted = [x for x in given if x.requires_grad]
    cotangents = [torch.linspace(-1, 2, y.numel()).reshape(y.shape).to(y.dtype) for y in outputs]
    return [y.detach() for y in (*outputs, *torch.autograd.grad(outputs, wanted, cotangents))]


def like(given, other):
    """`other`, with gradients where `given` has them."""
    pairs = zip(given, other, strict=True)
    return [x.detach().requires_grad_(one.requires_grad) for one, x in pairs]


DRIVER = f"""
import runpy, sys, torch
sys.modules["pullback"] = None  # an import of it raises
{chr(10).join(__import__("inspect").getsource(results).splitlines())}

folder = sys.argv[1]
found = {{}}
for name, trials in torch.load(f"{{folder}}/trials.pt").items():
    space = runpy.run_path(f"{{folder}}/{{name}}.py")
    function = next(v for v in space.values() if isinstance(v, type)).apply
    found[name] = [results(function, given) for given in trials]
torch.save(found, f"{{folder}}/found.pt")
"""


def interpreted(folder, programs):
    """What the files of some programs give in Triton's interpreter, beside PyTorch."""
    trials = {}
    for program, given in programs.items():
        text = pb.emit(program, "triton", examples=given, verify=False)
        (folder / f"{program.__name__}.py").write_text(text, encoding="utf-8")
        more = [wider(given)] if program in (cross_entropy, mean_of_counted, bias) else []
        trials[program.__name__] = [like(given, one) for one in (*variants(given), *more)]
    torch.save(trials, folder / "trials.pt")
    command = [sys.executable, "-W", "ignore", "-c", DRIVER, str(folder)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    return trials, torch.load(folder / "found.pt")


HALVES = ([*PROGRAMS][:9], [*PROGRAMS][9:])


@pytest.mark.needs_triton
@pytest.mark.parametrize("chosen", HALVES, ids=("nine", "others"))
def test_kernels_compute_what_the_programs_compute(chosen, tmp_path):
    programs = {program: PROGRAMS[program] for program in chosen}
    trials, found = interpreted(tmp_path, programs)

    for program in programs:
        for place, given in enumerate(trials[program.__name__]):
            tolerance = 4e-2 if given[0].dtype is torch.bfloat16 else 2e-4
            expected, got = results(program, given), found[program.__name__][place]
            torch.testing.assert_close(
                got,
                expected,
                rtol=tolerance,
                atol=tolerance,
                equal_nan=True,
                msg=lambda said, p=program, n=place: f"{p.__name__}, inputs {n}: {said}",
            )


# ---- sizes that break what a program implies of them ----


def half_turn(x, inv):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * inv.cos() - b * inv.sin(), b * inv.cos() + a * inv.sin()), -1)


def first_eight(x):
    return x[:, :8].sin()


def up_to_eight(x):
    return x[:, :8].sin()


def first_two(x):
    return x[:, :2].sin()


def middle(x):
    return x[:, 2:6].sin()


def last_four(x):
    return x[:, -4:].sin()


def sixth(x):
    return x[:, 5].sin()


def newest(x):
    return x[:, -1].sin()


def packed(x):
    a, b = x.chunk(2, -1)
    return a * b


def in_fours(x):
    return x.view(x.shape[0], 4, -1).sum(-1)


def twice_as_long(x, y):
    return torch.cat((y, y)) * x


def pairs_of_rows(x, y):
    return x.view(-1, 2, y.shape[0]) * y


def as_many_as(x, y):
    return y[:, : x.shape[0]].sin() * x.sum()


def stacked(x, y):
    return torch.stack((x, y)).sin()


def decided_by_rows(x):
    return x.sin() if x.shape[0] > 3 else x.cos()


def rows_of_mean_zero(x, w):
    return x / (x.mean(-1, keepdim=True) + 3) * w[0]


def spread(x):
    return x.var(-1)


def rotated(x):
    return x.roll(2, 1).sin()


BROKEN = {
    half_turn: (
        [(3, 16), (8,)],
        [(3, 14), (8,)],
        r"`inv` must be .* \(7,\), got .*\(8,\)",
    ),
    first_eight: ([(3, 16)], [(3, 5)], r"x.shape\[1\] must be at least 8, got 5"),
    up_to_eight: ([(3, 5)], [(3, 16)], r"x.shape\[1\] <= 7 must hold, got x.shape\[1\] = 16"),
    first_two: ([(3, 16)], [(3, 1)], r"x.shape\[1\] must be at least 2, got 1"),
    middle: ([(3, 16)], [(3, 5)], r"x.shape\[1\] must be at least 6, got 5"),
    last_four: ([(3, 16)], [(3, 3)], r"x.shape\[1\] must be at least 4, got 3"),
    sixth: ([(3, 16)], [(3, 5)], r"x.shape\[1\] must be at least 6, got 5"),
    newest: ([(3, 16)], [(3, 0)], r"x.shape\[1\] must be at least 1, got 0"),
    packed: ([(3, 16)], [(3, 15)], r"x.shape\[1\] % 2 == 0 must hold, got x.shape\[1\] = 15"),
    in_fours: ([(3, 16)], [(3, 18)], r"x.shape\[1\] % 4 == 0 must hold, got x.shape\[1\] = 18"),
    twice_as_long: ([(3, 6), (3,)], [(3, 6), (4,)], r"`x` must be torch.float32 \(3, 8\), got"),
    pairs_of_rows: ([(4, 6), (6,)], [(3, 6), (6,)], r"x.shape\[0\] % 2 == 0 must hold"),
    as_many_as: ([(9, 3), (3, 5)], [(4, 3), (3, 5)], r"got x.shape\[0\] = 4, y.shape\[1\] = 5"),
    stacked: ([(3, 5), (3, 5)], [(3, 5), (3, 6)], r"`y` must be torch.float32 \(3, 5\), got"),
    decided_by_rows: ([(5, 6)], [(2, 6)], r"x.shape\[0\] must be at least 4, got 2"),
    rows_of_mean_zero: ([(3, 16), (2,)], [(3, 0), (2,)], r"x.shape\[1\] must be at least 1, got 0"),
    spread: ([(3, 16)], [(3, 1)], r"x.shape\[1\] != 1 must hold, got x.shape\[1\] = 1"),
    rotated: ([(3, 16)], [(3, 1)], r"x.shape\[1\] must be at least 2, got 1"),
}
"""Programs with sizes that they are emitted for, sizes that must be refused, and the words."""

REFUSED = """
import json, runpy, sys, torch
sys.modules["pullback"] = None  # an import of it raises
folder, found = sys.argv[1], {}
for name, shapes in json.loads(sys.argv[2]).items():
    space = runpy.run_path(f"{folder}/{name}.py")
    function = next(v for v in space.values() if isinstance(v, type)).apply
    try:
        function(*(torch.randn(shape) for shape in shapes))
        found[name] = "no error"
    except ValueError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


@pytest.mark.needs_triton
def test_sizes_that_kernels_would_read_past_are_refused(tmp_path):
    for program, (shapes, _, _) in BROKEN.items():
        given = tuple(draw(*shape) for shape in shapes)
        text = pb.emit(program, "triton", examples=given, verify=False)
        (tmp_path / f"{program.__name__}.py").write_text(text, encoding="utf-8")
    others = {program.__name__: broken for program, (_, broken, _) in BROKEN.items()}
    command = [sys.executable, "-W", "ignore", "-c", REFUSED, str(tmp_path), json.dumps(others)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout)

    for program, (_, _, said) in BROKEN.items():
        assert re.search(said, found[program.__name__]), (program.__name__, found)


FITTING = {
    half_turn: [(5, 6), (3,)],
    first_eight: [(2, 8)],
    last_four: [(1, 4)],
    packed: [(1, 2)],
    in_fours: [(2, 4)],
    twice_as_long: [(1, 2), (1,)],
    pairs_of_rows: [(2, 3), (3,)],
    rotated: [(2, 2)],
}


@pytest.mark.needs_triton
def test_sizes_that_just_fit_are_computed(tmp_path):
    trials = {}
    for program, shapes in FITTING.items():
        given = tuple(draw(*shape) for shape in BROKEN[program][0])
        text = pb.emit(program, "triton", examples=given, verify=False)
        (tmp_path / f"{program.__name__}.py").write_text(text, encoding="utf-8")
        trials[program.__name__] = [[draw(*shape) for shape in shapes]]
    torch.save(trials, tmp_path / "trials.pt")
    command = [sys.executable, "-W", "ignore", "-c", DRIVER, str(tmp_path)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run(command, env=environment, check=True, capture_output=True)
    found = torch.load(tmp_path / "found.pt")

    for program in FITTING:
        (given,) = trials[program.__name__]
        (got,) = found[program.__name__]
        torch.testing.assert_close(got, results(program, given), rtol=2e-4, atol=2e-4)


# ---- elements that lie 2**31 and more elements from the first ----

FAR = f"""
import runpy, sys, torch
sys.modules["pullback"] = None  # an import of it raises
{chr(10).join(__import__("inspect").getsource(results).splitlines())}

folder = sys.argv[1]
memory = torch.empty(2**31 + 2**20, dtype=torch.bfloat16)  # the system gives what is written
for name, given in torch.load(f"{{folder}}/trials.pt").items():
    space = runpy.run_path(f"{{folder}}/{{name}}.py")
    function = next(v for v in space.values() if isinstance(v, type)).apply
    x, *others = given
    for dim in (0, x.dim() - 1):
        strides = list(x.stride())
        strides[dim] = 2**31 // (x.shape[dim] - 1)
        far = memory.as_strided(x.shape, strides).copy_(x.detach()).detach().requires_grad_()
        pairs = zip(results(function, [far, *others]), results(function, given))
        assert all(torch.equal(a, b) for a, b in pairs), (name, dim)
"""


@pytest.mark.needs_triton
def test_elements_far_from_each_other_are_read_where_they_lie(tmp_path):
    half = torch.bfloat16
    programs = {
        bias: (draw(5, 39, dtype=half), draw(39, dtype=half)),
        softmax_by_hand: (draw(5, 33, dtype=half),),
        group_norm_by_hand: (draw(3, 6, 3, 5, dtype=half), draw(6, dtype=half)),
    }
    for program, given in programs.items():
        text = pb.emit(program, "triton", examples=given, verify=False)
        (tmp_path / f"{program.__name__}.py").write_text(text, encoding="utf-8")
    torch.save(
        {program.__name__: given for program, given in programs.items()}, tmp_path / "trials.pt"
    )
    command = [sys.executable, "-W", "ignore", "-c", FAR, str(tmp_path)]
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)

    assert (done.returncode, done.stderr) == (0, "")
