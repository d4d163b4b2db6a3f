"""`pullback derive`: print a function with its derived backward, or judge the one it has."""

from __future__ import annotations

from typing import Any

import click
from torch.autograd.function import Function as TorchFunction

from pullback.cli.complete import complete_targets
from pullback.cli.mistakes import of_users_code, require_call
from pullback.cli.target import example_option, examples_of, load
from pullback.cli.waiting import waiting
from pullback.derive.backward import derive_function
from pullback.errors import PullbackError, TargetError
from pullback.prove import prove
from pullback.prove.verdicts import PROVED, REFUTED

_UNDECIDED = 2


@click.command("derive")
@click.argument("target", metavar="MODULE:FUNCTION", shell_complete=complete_targets)
@example_option
@click.option(
    "--save",
    default="auto",
    show_default=True,
    metavar="POLICY",
    help="What forward keeps: auto, factors, inputs, everything, or a number of bytes.",
)
@click.option(
    "--prove",
    "is_proof",
    is_flag=True,
    help="Decide whether the hand-written backward of a Function class is the derived one.",
)
@click.option(
    "--seconds",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="How long to try to prove it.",
)
def command(
    target: str, expressions: tuple[str, ...], save: str, is_proof: bool, seconds: float
) -> None:
    """Print the Function of MODULE:FUNCTION with a derived backward.

    The text is a module that imports only torch, and is yours.

    With --prove, MODULE:FUNCTION is a Function class with a backward of its own. That is compared
    with the derived one for all inputs, and proved (exit code 0) or refuted by numbers (1); what
    cannot be decided is unknown (2).

    \b
    Examples:
      pullback derive my_ops:swish --example "torch.randn(8, requires_grad=True)"
      pullback derive my_ops.py:swish --save inputs > swish_function.py
      pullback derive my_ops:Swish --prove --example "torch.randn(8)"
    """
    program = load(target)
    if is_proof:
        _require_class(program, target)
    arguments = examples_of(program, target, expressions)
    require_call(program, target, arguments)
    if is_proof:
        _prove(program, arguments, seconds)
        return
    with waiting(f"deriving {target}"):
        derived = derive_function(program, *arguments, save=int(save) if save.isdigit() else save)
        source = derived.source()
    click.echo(source, nl=False)


def _require_class(program: Any, target: str) -> None:
    if isinstance(program, type) and issubclass(program, TorchFunction):
        return
    kind = "a class" if isinstance(program, type) else f"a {type(program).__name__}"
    raise TargetError(
        f"`{target}` must be a Function class, for --prove to judge its backward",
        expected="a subclass of torch.autograd.Function",
        got=kind,
        fix="leave out --prove to derive a backward",
    )


def _prove(program: Any, arguments: tuple[Any, ...], seconds: float) -> None:
    try:
        with waiting(f"proving {program.__name__}, for at most about {seconds:g} s"):
            proof = prove(program, *arguments, seconds=seconds)
    except PullbackError:
        raise
    except Exception as error:  # of the class itself: a traceback would end in the code of refuted
        known = of_users_code(error)
        place = f" ({known.facts['at']})" if known else ""
        click.echo(
            f"{program.__name__}: unknown\n  it raises {type(error).__name__}: {error}{place}"
        )
        click.get_current_context().exit(_UNDECIDED)
    click.echo(str(proof))
    code = {PROVED: 0, REFUTED: 1}.get(proof.verdict, _UNDECIDED)
    click.get_current_context().exit(code)
