"""`import pullback` is light: at most 0.1 s on top of torch, and nothing heavy comes with it."""

import json

import pytest

LIMIT = 0.1  # seconds on top of `import torch`

# Each of these waits until something asks for it.
HEAVY = (
    "pullback.plan.planning",
    "pullback.plan.search",
    "pullback.report.graphs",
    "pullback.report.html",
    "pullback.cli",
    "triton",
    "matplotlib",
    "torch._dynamo",
    "torch._inductor",
    "sympy",
    "networkx",
    "jinja2",
    "rich",
    "click",
)

# Processor time, so that what else the machine does is not counted.
PROBE = """
import json, sys, time
import torch
before, start = set(sys.modules), time.process_time()
{statement}
seconds = time.process_time() - start
print(json.dumps([seconds, sorted(set(sys.modules) - before)]))
"""


@pytest.fixture
def cost_of(run_python):
    """Seconds and modules that a statement adds to a fresh process which has torch."""

    def cost(statement):
        run = run_python("-c", PROBE.format(statement=statement))
        assert run.returncode == 0, run.stderr
        return json.loads(run.stdout)

    return cost


def heavy_of(modules):
    """The modules that must not come with `import pullback`."""
    return [name for name in modules if any(f"{name}.".startswith(f"{h}.") for h in HEAVY)]


def test_import_adds_a_tenth_of_a_second(cost_of):
    assert any(cost_of("import pullback")[0] <= LIMIT for _ in range(5))


def test_import_brings_nothing_heavy(cost_of):
    _, modules = cost_of("import pullback")

    assert "pullback" in modules
    assert heavy_of(modules) == []


def test_planted_slow_import_is_measured(cost_of):
    seconds, _ = cost_of(f"while time.process_time() - start < {LIMIT}: pass")

    assert seconds > LIMIT


def test_planted_heavy_import_is_found(cost_of):
    _, modules = cost_of("import sympy")

    assert "sympy" in heavy_of(modules)


def test_heavy_names_match_whole_words():
    names = ["pullback.cli", "pullback.cli.derive", "pullback.clients", "richer", "rich.text"]

    assert heavy_of(names) == ["pullback.cli", "pullback.cli.derive", "rich.text"]
