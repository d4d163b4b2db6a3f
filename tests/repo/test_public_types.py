"""The public names are typed: a user's file passes `mypy --strict`, and wrong uses are flagged."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pullback as pb
from docs.api import VERBS, public_names

ROOT = Path(__file__).resolve().parents[2]

RIGHT = '''
"""What a user writes with all five verbs."""

from pathlib import Path

import torch
from torch import Tensor

import pullback as pb


class Square(pb.Function):
    @staticmethod
    def forward(ctx: pb.AutogradContext, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: pb.AutogradContext, cotangent: Tensor) -> Tensor:
        (x,) = ctx.get_saved_variables()
        assert x is not None
        return 2 * x * cotangent


def program(x: Tensor, y: Tensor) -> Tensor:
    z: Tensor = Square.apply(x)
    return z * torch.sin(y)


x, y = torch.randn(3), torch.randn(3)
with pb.below_autograd():
    x.sin()

derived = pb.derive(program, x, y, save="inputs", name="my_program")
source: str = derived.source()
called: Tensor = derived(x, y)
applied: Tensor = derived.apply(x, y=y)
work: list[int] = [point.flops for point in derived.frontier(x, y)]
gate: pb.DerivedFunction[[Tensor, Tensor], Tensor] = derived
of_class = pb.derive(Square, x)(x)
outputs, tangents = pb.jvp_of(derived)((x, y), (x, y))
batch = pb.vmap_of(derived, in_dims=0)(x, y)

combined = pb.combine(program, x, y, backend="eager")
said: str = combined.explain()
again = pb.combine(combined, x, y)(x, y).sin()
nested = pb.nest(program)(x, y).sin()
hybrid = pb.hybrid(program, x, y, groups=[(0, 1)])(x, y).sin()
chunks = pb.chunked(program, over=("x", "y"), chunks=4)(x, y).sin()
layer: torch.nn.Linear = pb.combine(torch.nn.Linear(3, 3), x)
width: int = pb.plan(layer, x).best.in_features
plan = pb.plan(program, x, y, objective="time")
table: str = plan.table()
plan.save(Path("plan.json"))
judged = pb.judge("kernels.py:F", program, (x, y), seconds=1.0)
is_fine: bool = judged.right and judged.honest
faster: float = judged.speedup.low if judged.speedup else 0.0
rows: list[str] = [str(one) for one in pb.judge_all([program], program, (x, y))]
verdict: str = pb.prove(pb.Function, x, seconds=1.0).verdict
best: Tensor = pb.load_plan("plan.json", program).best(x, y)

report = pb.check(Square, (x,), select=["gradient"])
ok: bool = report.ok
for finding in report.findings:
    name: str = finding.rule.name
pb.assert_sound(Square, (x,), allow=("wrong-gradient",))
with pb.recording() as recorded:
    program(x, y)

page = pb.draw(program, x, y)
page.save(Path("page.html"))
html: str = page.html
pb.load_ipython_extension(object())
paths: tuple[str, ...] = pb.check(layer, (x,)).functions[0].places
text: str = pb.emit(Square, "python", examples=(x,), path=Path("square.py"), force=True)
op = pb.build("square.cpp")
try:
    pb.emit(Square, "rust")
except pb.PullbackError as error:
    code: str = error.code
'''

# Each line that is to be flagged names the kind of error at its end.
WRONG = '''
"""What a type checker is to find in a user's file."""

import torch

import pullback as pb


def program(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


x = torch.randn(3)
pb.derive(program, x, save=1.5)  # call-overload
pb.derive(3, x)  # call-overload
pb.derive(program, x)(3)  # arg-type
pb.derive(program, x).apply(x, x)  # call-arg
pb.derive(program, x).sources()  # attr-defined
pb.derive(program, x)(x).no_such  # attr-defined
pb.plan(program, x).best(3)  # arg-type
pb.vmap_of(program, in_dims="x")  # arg-type
pb.combine(program, x, backend=3)  # call-overload
pb.hybrid(program, x, groups=[0, 1])  # list-item
pb.plan(program, x).tabel()  # attr-defined
pb.check(program, (x,)).findigs  # attr-defined
pb.check(program, (x,), profil="quick")  # call-arg
pb.emit(program, "python", path=3)  # arg-type
pb.emit(program, examples=(x,), overwrite=True)  # call-arg
number: int = pb.emit(program)  # assignment
pb.build()  # call-arg
pb.no_such_verb  # attr-defined
pb.PullbackError("rule", why="no")  # call-arg
'''


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What mypy says about both files, as a user's file sees an installed package."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "right.py").write_text(RIGHT, encoding="utf-8")
    (folder / "wrong.py").write_text(WRONG, encoding="utf-8")
    # Errors inside an imported package are not the user's; the cache makes it 20 times faster.
    options = ["--strict", "--config-file=", "--follow-imports=silent", "--no-error-summary"]
    options += [f"--cache-dir={ROOT / '.mypy_cache' / 'public'}", "--no-pretty"]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "right.py", "wrong.py"],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode in (0, 1), run.stdout + run.stderr
    return run.stdout


def flagged(output, file):
    """The lines of a file that mypy has an error for, each with the kind of its last one."""
    rows = re.findall(rf"^{file}:(\d+): error: .*\[([a-z-]+)\]$", output, re.MULTILINE)
    return {int(line): kind for line, kind in rows}


def expected_in(text):
    """The lines that name an error at their end."""
    rows = ((i, re.search(r"  # ([a-z-]+)$", line)) for i, line in enumerate(text.splitlines(), 1))
    return {i: match[1] for i, match in rows if match}


@pytest.mark.slow
def test_users_file_passes_strictly(found):
    assert [line for line in found.splitlines() if line.startswith("right.py")] == []


@pytest.mark.slow
def test_wrong_uses_are_flagged(found):
    assert expected_in(WRONG)
    assert flagged(found, "wrong.py") == expected_in(WRONG)


def test_users_file_has_every_name():
    public = [name for name in vars(pb) if not name.startswith("_")]
    verbs = [name for name in public if callable(getattr(pb, name))]
    missing = [name for name in verbs if f"pb.{name}" not in RIGHT]

    assert missing == ["PullbackWarning"]


@pytest.mark.slow
def test_users_file_passes_pyright(tmp_path):
    pyright = shutil.which("pyright") or shutil.which("basedpyright")  # which PyPI has whole
    if pyright is None:
        pytest.skip("needs pyright or basedpyright")
    (tmp_path / "right.py").write_text(RIGHT, encoding="utf-8")
    settings = {"extraPaths": [str(ROOT / "src")], "typeCheckingMode": "standard"}
    settings |= {"pythonPlatform": "Linux", "include": ["right.py"]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    run = subprocess.run(
        [pyright, "--pythonpath", sys.executable], cwd=tmp_path, capture_output=True, text=True
    )

    assert run.returncode == 0, run.stdout


def test_no_public_function_takes_or_gives_just_anything():
    loose = []
    for name in public_names():
        function = getattr(pb, name)
        if inspect.isfunction(function):
            types = {**function.__annotations__}
            loose += [f"{name}: {key}" for key, kind in types.items() if kind == "Any"]

    assert loose == []


def test_every_public_function_has_an_example():
    functions = [name for name in public_names() if inspect.isfunction(getattr(pb, name))]
    without = [name for name in functions if ">>>" not in (getattr(pb, name).__doc__ or "")]

    assert without == ["load_ipython_extension"]  # which IPython calls


def test_reference_has_every_public_name():
    assert sorted(name for names in VERBS.values() for name in names) == sorted(public_names())


def test_package_says_that_it_is_typed():
    assert (ROOT / "src" / "pullback" / "py.typed").exists()


def test_planted_error_is_read():
    said = ['wrong.py:3: error: No "x" [a]  [attr-defined]', "wrong.py:3: note: so"]
    said.append("right.py:1: error: b  [x]")

    assert flagged("\n".join(said), "wrong.py") == {3: "attr-defined"}
