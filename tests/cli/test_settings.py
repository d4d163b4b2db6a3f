"""Settings come from the command line, then the file, then the default; a target has its own."""

import pickle
from functools import partial
from pathlib import Path

from pullback.check.kernels.sending import sent_by_value
from pullback.check.target.target import target_of
from pullback.cli.check import _inside
from pullback.cli.settings import COMMAND_LINE, Chosen, Settings, merged
from tests.check import functions as f

FILE = Path("/project/pyproject.toml")


def test_command_line_wins_over_file_over_default():
    settings = merged({"profile": "deep", "jobs": 2}, FILE, {"profile": "quick", "time": None})

    assert (settings.profile, settings.jobs, settings.time) == ("quick", 2, 0.0)
    assert settings.origins == {"profile": COMMAND_LINE, "jobs": "pyproject.toml"}


def test_root_is_the_folder_of_the_file():
    assert merged({}, FILE, {}).root == Path("/project")
    assert merged({}, None, {}).root == Path.cwd()


def test_target_wins_over_its_file():
    settings = Settings(
        profile="standard",
        per_file={"src/*.py": {"profile": "quick", "time": 5.0}},
        per_target={"ops:Swish": {"profile": "deep"}},
    )

    assert settings.of(["ops:Swish"], "src/ops.py") == Chosen(profile="deep", time=5.0)
    assert settings.of(["ops:Other"], "src/ops.py") == Chosen(profile="quick", time=5.0)
    assert settings.of(["ops:Other"], "lib/ops.py") == Chosen()


def test_named_target_wins_over_pattern():
    table = {"ops:Swish": {"profile": "deep"}, "ops:*": {"profile": "quick"}}

    assert Settings(per_target=table).of(["ops:Swish"]).profile == "deep"


def test_command_line_wins_over_target():
    settings = merged({"per_target": {"a:B": {"select": ("gradient",)}}}, FILE, {"select": ("X",)})

    assert settings.of(["a:B"]).select == ("X",)


def test_allowances_add_up():
    settings = merged(
        {"per_file": {"*.py": {"allow": ("a", "b")}}, "per_target": {"m:F": {"allow": ("c", "a")}}},
        FILE,
        {"allow": ("z",)},
    )

    assert settings.of(["m:F"], "m.py").allow == ("z", "a", "b", "c")


def test_declarations_are_for_every_name_of_a_target():
    settings = Settings(declare={"package.ops:Spike": {"surrogate": ("x",)}})

    assert settings.of(["ops.py:Spike", "package.ops:Spike"]).declares == {"surrogate": ("x",)}
    assert settings.of(["ops.py:Spike"]).declares is None


def test_settings_are_shown_with_their_origins():
    declared = {"ops:Spike": {"once_differentiable": True, "domain": {"x": (0.0, float("inf"))}}}
    settings = merged({"declare": declared, "allow": ("a b",)}, FILE, {"time": 2.5})

    assert settings.shown() == (
        "targets = []                        # default\n"
        "exclude = []                        # default\n"
        "select = []                         # default\n"
        'allow = ["a b"]                     # pyproject.toml\n'
        'profile = "standard"                # default\n'
        "time = 2.5                          # command line\n"
        'inputs = ""                         # default\n'
        'fail-on = "fragile"                 # default\n'
        'baseline = ""                       # default\n'
        "jobs = 1                            # default\n"
        "cache = true                        # default\n"
        "output-format = []                  # default\n"
        "\n"
        '[declare."ops:Spike"]               # pyproject.toml\n'
        "once-differentiable = true\n"
        'domain = { "x" = [0, inf] }'
    )


def test_what_settings_say_of_functions_inside_can_be_sent_to_a_worker():
    options_of = partial(_inside, Settings(declare={"*:Square": {"surrogate": "x"}}))
    sent = pickle.loads(sent_by_value(options_of))

    assert sent(target_of(f.Square)) == {"allow": (), "declares": {"surrogate": "x"}}
    assert sent(target_of(f.Product))["declares"] is None
