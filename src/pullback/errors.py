"""Every error and warning of pullback, in one form: the rule that was broken, labelled facts.

An error names the user's thing, shows the value, says what must hold and what to do. Each class is
also the builtin that PyTorch raises for the same mistake, so that existing `except` clauses keep
working, and where PyTorch has a sentence of its own for it, the line `torch:` repeats it.
"""

from __future__ import annotations

from typing import ClassVar


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its type where it says nothing.

    >>> first_line(ValueError("no rows\\nat all")), first_line(ValueError())
    ('no rows', 'ValueError')
    """
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def type_and_line(error: BaseException) -> str:
    """The type of an error, and the first line of what it says.

    >>> type_and_line(ValueError("no rows")), type_and_line(ValueError())
    ('ValueError: no rows', 'ValueError')
    """
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


class PullbackError(Exception):
    """Base class: a rule that was broken, and up to five labelled facts."""

    code: ClassVar[str] = ""
    name: ClassVar[str] = ""

    def __init__(
        self,
        rule: str,
        *,
        at: str = "",
        expected: str = "",
        got: str = "",
        fix: str = "",
        torch: str = "",
    ) -> None:
        self.rule = rule
        self.facts: dict[str, str] = {
            "at": at,
            "expected": expected,
            "got": got,
            "fix": fix,
            "torch": torch,
        }
        Exception.__init__(self, rule)

    def __str__(self) -> str:
        return _message(self.code, self.name, self.rule, self.facts)


class PullbackWarning(UserWarning):
    """Base class: something that runs and is surely a slip, said once per Function class."""

    code: ClassVar[str] = ""
    name: ClassVar[str] = ""

    def __init__(
        self, rule: str, *, at: str = "", expected: str = "", got: str = "", fix: str = ""
    ) -> None:
        self.rule = rule
        self.facts: dict[str, str] = {"at": at, "expected": expected, "got": got, "fix": fix}
        UserWarning.__init__(self, rule)

    def __str__(self) -> str:
        return _message(self.code, self.name, self.rule, self.facts)


def _message(code: str, name: str, rule: str, facts: dict[str, str]) -> str:
    lines = [f"{code} {name}: {rule}"]
    for label, fact in facts.items():
        lines += [f"  {label + ':':<10}{fact}"] if fact else []
    return "\n".join(lines)


# ---- what backward is and returns ----


class MissingBackwardError(PullbackError, NotImplementedError):
    """A gradient was asked that is written nowhere and cannot be derived.

    Without a `backward`, or with `pb.derived` in the place of a gradient, it is derived from
    `forward`. That needs a `forward` that autograd can follow: not through numpy, a kernel of its
    own, `detach` or `no_grad`; that leaves its inputs as they are; and, for `pb.derived`, that
    draws no random numbers. Otherwise define `backward(ctx, *cotangents)`, or `vjp` under its
    other name. If the outputs carry no gradient by nature (indices, masks), say so with
    `ctx.mark_non_differentiable` in `forward`.
    """

    code = "E101"
    name = "missing-backward"


class GradientNameError(PullbackError, TypeError):
    """`backward` returned a mapping with a name that is no input of `forward`.

    The keys of the mapping are the parameter names of `forward`, without `ctx`. A name that is
    left out means no gradient for that input.
    """

    code = "E102"
    name = "gradient-name"


class BackwardArityError(PullbackError, RuntimeError):
    """`backward` returned the wrong number of gradients.

    Return exactly one value per input of `forward`, in the same order, and `None` for every input
    that needs no gradient; or return a mapping from input name to gradient and leave the rest out.
    """

    code = "E103"
    name = "backward-arity"


class GradientShapeError(PullbackError, RuntimeError):
    """`backward` returned a gradient whose shape cannot be reduced to its input's.

    A gradient has the shape of its input. One with extra broadcast dimensions is summed down to
    it; any other shape is a mistake, most often a missing transpose or two gradients swapped.
    """

    code = "E104"
    name = "gradient-shape"


class NonTensorGradientError(PullbackError, RuntimeError):
    """`backward` returned a gradient for an input that is not a tensor.

    Numbers, strings, `None` and containers have no gradient: return `None` in their places. A
    tensor inside a list has none either, unless the class sets `traverse_lists = True`.
    """

    code = "E105"
    name = "non-tensor-gradient"


class GradientTypeError(PullbackError, RuntimeError):
    """`backward` returned something that is neither a tensor nor `None` as a gradient.

    Return a tensor or `None` for each input: one value, a tuple of them, or a mapping by name.
    """

    code = "E106"
    name = "gradient-type"


class BothBackwardAndVjpError(PullbackError, RuntimeError):
    """A Function defines `backward` and `vjp`, which are two names of one thing.

    Keep one of them.
    """

    code = "E107"
    name = "both-backward-and-vjp"


class DoubleBackwardError(PullbackError, RuntimeError):
    """A second derivative needs the history of a saved tensor that has none.

    A tensor computed inside `forward` and saved for `backward` is neither input nor output, so
    nothing links it to the inputs, and PyTorch differentiates `backward` as if it were a constant:
    silently wrong. pullback recomputes it from the inputs when they are still there. When they
    are not, it raises this error. Three ways out:

    1. save the inputs and recompute the tensor from them in `backward`;
    2. return the tensor as one more output of `forward` and save it as an output;
    3. decorate `backward` with `torch.autograd.function.once_differentiable`, if no second
       derivative is meant to exist.
    """

    code = "E108"
    name = "double-backward"


# ---- forward, apply and the context ----


class ApplyArgumentsError(PullbackError, TypeError):
    """The arguments given to `apply` do not fit the parameters of `forward`."""

    code = "E201"
    name = "apply-arguments"


class DirtyNotReturnedError(PullbackError, RuntimeError):
    """An input marked dirty is not among the outputs.

    An input that `forward` changes in place is also what `forward` gives back: return it. If it was
    only scratch space, change a clone instead and do not mark it.
    """

    code = "E202"
    name = "dirty-not-returned"


class SavedNonTensorError(PullbackError, TypeError):
    """`save_for_backward` was given something that is neither a tensor nor `None`.

    Numbers, strings and other data go on `ctx` as attributes or into `ctx.saved_data`.
    """

    code = "E203"
    name = "saved-non-tensor"


class MarkedNonTensorError(PullbackError, RuntimeError):
    """`mark_dirty` or `mark_non_differentiable` was given something that is no tensor."""

    code = "E204"
    name = "marked-non-tensor"


class ReturnedInputSavedError(PullbackError, RuntimeError):
    """With `setup_context`, an input was returned as it is and saved as well.

    It is then undecided whether the saved tensor is the input or the output. Return a view of it
    (`x.view_as(x)`), or write `forward(ctx, ...)` in one piece.
    """

    code = "E205"
    name = "returned-input-saved"


class InputIndexError(PullbackError, IndexError):
    """`ctx.needs_input_grad(i)` was asked about an input that does not exist.

    Called as in C++, the index counts the tensor inputs only. Indexed as in Python,
    `ctx.needs_input_grad[i]` counts every argument of `forward`.
    """

    code = "E206"
    name = "input-index"


# ---- capture, graphs and derivation ----


class CaptureError(PullbackError, RuntimeError):
    """A program cannot be captured as one graph.

    Capture runs the program once on tensors without values and records every op. It cannot record
    a decision that depends on values (`if x.sum() > 0`), a value read out of a tensor (`.item()`),
    a size that depends on values (`x[x > 0]`, `nonzero`), or work done outside PyTorch (numpy).
    Write the decision with `torch.where`, move the reading out of the program, or put the part that
    cannot be captured into a custom op (`torch.library.custom_op` with `register_fake`).
    """

    code = "E301"
    name = "capture"


class UnsupportedOpError(PullbackError, NotImplementedError):
    """A graph holds an op that cannot be printed or emitted."""

    code = "E302"
    name = "unsupported-op"


class KernelError(PullbackError, NotImplementedError):
    """A program holds something that a Triton kernel of rows and columns cannot compute.

    Kernels compute element by element, sum along rows or columns, and read one element per row.
    Matrix products, convolutions, scans, sorts and indices that depend on data are left to PyTorch:
    take them out of the function that becomes a kernel, or compose it with backend="inductor".
    """

    code = "E307"
    name = "kernel"


class PolicyError(PullbackError, ValueError):
    """`save=` is neither a known policy nor a byte budget that can be met."""

    code = "E303"
    name = "save-policy"


class DifferingCaptureError(PullbackError, RuntimeError):
    """The captured graph does not compute what the program computes.

    After capture the graph is run against the program on fresh inputs. A difference means that the
    program depends on something that capture cannot see: a global that changes, the value of an
    input, or a random state of its own.
    """

    code = "E304"
    name = "differing-capture"


class DifferingTextError(PullbackError, RuntimeError):
    """A text does not compute what the program computes, so it is not handed out.

    Every text is run in a fresh namespace when it is written, beside the program: outputs, which of
    them require grad, and gradients, on the example, with ties, zeros and other values, and at
    other sizes. A text that differs is first written without the formulas that only make it easier
    to read. If it still differs, pullback wrote something wrong: please report it with the program.
    """

    code = "E306"
    name = "differing-text"


class BatchError(PullbackError, ValueError):
    """Batch dimensions do not fit the arguments."""

    code = "E305"
    name = "batch"


class FunctionNameError(PullbackError, ValueError):
    """`name` cannot be the name of a Function.

    It becomes the name of a class, of its node in the graph, and, if it is emitted, of a file and
    an op: letters, digits and underscores, as for a function in Python.
    """

    code = "E310"
    name = "function-name"


class TargetError(PullbackError, ValueError):
    """A target such as `module:name` cannot be found or used.

    The part before the colon is a module that Python can import from here, or a file; the part
    after it is a name in it.
    """

    code = "E401"
    name = "target"


class DeclarationError(PullbackError, ValueError):
    """What a class declares about itself cannot be understood.

    `declares` is a mapping: `{"surrogate": "x"}`, `{"donates": ("logits",)}`,
    `{"once_differentiable": True}` or `{"nondeterministic": 1e-6}`, or several of them.
    """

    code = "E402"
    name = "declaration"


class ExamplesError(PullbackError, ValueError):
    """A function cannot be checked, or emitted, with the inputs that were given.

    Inputs are a tuple of arguments, a list of such tuples, or a function without arguments that
    gives one of these. Forward must accept each of them.
    """

    code = "E403"
    name = "examples"


class RuleNameError(PullbackError, ValueError):
    """No rule has this name, code or group."""

    code = "E404"
    name = "rule-name"


class UnsoundError(PullbackError, AssertionError):
    """`assert_sound` found something: the text of the error lists the findings."""

    code = "E405"
    name = "unsound"


class RecordingError(PullbackError, ValueError):
    """A file cannot be read as a recording.

    Recordings are written by `Recording.save` and by `pullback record`. They are loaded with
    `weights_only=True`: a file that holds anything but tensors and plain values is refused.
    """

    code = "E406"
    name = "recording"


class SettingsError(PullbackError, ValueError):
    """A settings file has a key that pullback does not know, or a value of the wrong form.

    Settings stand in `[tool.pullback]` of `pyproject.toml`, or in `pullback.toml` without that
    heading. `docs/ci.md` lists the keys; `pullback check --show-settings` prints what holds, and
    where each value comes from. What is on the command line wins over the file.
    """

    code = "E420"
    name = "settings"


class BaselineError(PullbackError, ValueError):
    """A file cannot be read as a baseline.

    A baseline lists the findings that are known and do not count. The option `--write-baseline`
    writes it; one that was damaged is removed first.
    """

    code = "E421"
    name = "baseline"


# ---- composition ----


class GroupingError(PullbackError, ValueError):
    """The groups given to `hybrid` cannot be nodes of the program.

    A group is a collection of unit numbers, as `explain()` prints them. Each unit is in one group
    at most, and no two groups may wait for each other: where one unit of a group needs what another
    group makes of this group's outputs, there is no order to run them in. Units that draw random
    numbers keep their order, too.
    """

    code = "E501"
    name = "grouping"


class BackendError(PullbackError, ValueError):
    """`backend` is not the name of a backend that is there."""

    code = "E502"
    name = "backend"


class ChunkingError(PullbackError, ValueError):
    """A program cannot be run in chunks of its rows by `chunked`.

    Its rows are those of the arguments that `over` names. What is large must be computed for each
    row alone, as `linear`, `log_softmax` over classes and every elementwise op do, or summed over
    rows. A softmax, sort or running sum along the rows, and a product of each row with each other,
    need all rows at once. What is no larger than the arguments (a loss for each row, say) may be
    mixed in any way.
    """

    code = "E503"
    name = "chunking"


# ---- planning ----


class PlanError(PullbackError, ValueError):
    """What `plan` was asked for cannot be planned.

    It needs examples of the program's arguments, of one size or of several different ones; an
    objective ("time", "memory", or a number from 0 to 1 between them); and a budget in seconds.
    """

    code = "E510"
    name = "plan"


class PlanFileError(PullbackError, ValueError):
    """The file of a plan cannot be used for this program.

    A plan holds for the program that it was measured with. Where the program, or a Function that it
    calls, was written anew, where the program makes other calls, or where the file is not what
    `save` wrote, plan again: `pb.plan(program, *examples).save(path)`.
    """

    code = "E511"
    name = "plan-file"


# ---- emitting ----


class EmitTargetError(PullbackError, ValueError):
    """There is no emitter for this language.

    `pb.emit` writes "python", a module that imports only torch; "cpp", a
    `torch::autograd::Function` that is registered as an op; and "triton", kernels
    and the Function around them, a module that imports only torch and triton.
    """

    code = "E601"
    name = "emit-target"


class EmitPathError(PullbackError, OSError):
    """A file cannot be written, or would replace one that holds another text.

    The folder that it is to stand in must be there. A file with the same text is left as it is;
    one with another text is replaced only by `force=True`, or `--force` on the command line.
    """

    code = "E602"
    name = "emit-path"


class BuildError(PullbackError, RuntimeError):
    """A C++ file cannot be compiled or loaded.

    `pb.build` calls the C++ compiler (`$CXX`, else `g++`, `clang++` or `c++`) with the headers that
    came with torch. The first errors of the compiler are shown with the lines that they are about;
    all that it said is in the file that `fix:` names.
    """

    code = "E603"
    name = "build"


class EmitMismatchError(PullbackError, RuntimeError):
    """What was written does other things than the program, so it is not handed out.

    Emitted text is compared with the program before anyone gets it: outputs, which of them require
    grad, and gradients, at the sizes of the examples and at others. A difference is a defect of
    pullback, or of a program that does not do the same in every call.
    """

    code = "E604"
    name = "emit-mismatch"


# ---- of our own ----


class InternalError(PullbackError, AssertionError):
    """An invariant of pullback was broken: please report it, with the text of this error."""

    code = "E900"
    name = "internal"


# ---- what runs, and is surely a slip ----


class HiddenTensorWarning(PullbackWarning):
    """A tensor that requires grad sits inside a list, tuple or dict given to `apply`.

    Only tensors passed directly are registered, so no gradient flows to this one.
    """

    code = "W301"
    name = "hidden-tensor"


class RepeatedSaveWarning(PullbackWarning):
    """`save_for_backward` was called a second time: it replaces what the first call saved."""

    code = "W302"
    name = "repeated-save"


class RepeatedDirtyWarning(PullbackWarning):
    """`mark_dirty` was called a second time: it replaces what the first call marked."""

    code = "W303"
    name = "repeated-dirty"


class GradientDtypeWarning(PullbackWarning):
    """`backward` returned a gradient of another dtype than its input's: the engine casts it."""

    code = "W305"
    name = "gradient-dtype"


class UncompiledWarning(PullbackWarning):
    """A call of something composed for a compiling backend ran without compiled code.

    It is right, and slower than it could be. Said once for each reason; `explain()` counts the
    calls. To hear nothing of it: `warnings.simplefilter("ignore", UncompiledWarning)`.
    """

    code = "W501"
    name = "uncompiled-call"


class WrongCodeWarning(PullbackWarning):
    """Compiled code was seen to compute something else than the program, and is not used.

    Each node is compared with its eager recipe at its first call (`verify=False` switches that
    off). Calls of that kind run eagerly from then on, so their results are right.
    """

    code = "W502"
    name = "wrong-code"
