"""Where PyTorch itself fails a custom Function, and what it does there.

Every pair of a route and an entry that is not listed here works with `torch.autograd.Function`.
Each listed pair is pinned by a test which fails when PyTorch mends it. The versions were found
by running every pair on torch 2.11.0, 2.12.1, 2.13.0, 2.14.1 and 2.15.0.
"""

from dataclasses import dataclass

from torch._dynamo.exc import InternalTorchDynamoError, Unsupported, UserError
from torch.autograd.gradcheck import GradcheckError

from tests.function.everywhere.compare import TORCH
from tests.function.everywhere.routes.eager import EAGER

# What a route raises when the numbers differ.
WRONG = (AssertionError, GradcheckError)

EVERY = ("*",)
COMPILE = (
    "compile_aot_eager",
    "compile_aot_eager_dynamic",
    "compile_inductor",
    "compile_inductor_dynamic",
)
COMPILED_AUTOGRAD = ("compiled_autograd", "compiled_autograd_inductor")
TWICE = ("double_backward", "gradgradcheck", "checkpoint_double_backward")
FUNC_REVERSE = (
    "func_grad",
    "func_grad_twice",
    "func_vjp",
    "func_jacrev",
    "vmap_of_gradient",
    "reverse_hessian",
)
# Where PyTorch runs `apply` as it stands.
APPLIED = (
    *EAGER,
    *COMPILED_AUTOGRAD,
    "make_fx",
    "symbolic_make_fx",
    "export",
    "export_gradients",
)
PUSHED = (
    "writes-in-place-with-rules",
    "adds-a-jvp",
    "writes-its-rules",
    "returns-indices-with-jvp",
    "bends-the-tangent",
)
ON_CTX = ("keeps-input-on-ctx", "keeps-intermediate-on-ctx")
BENT = ("bends-the-gradient", "bends-the-tangent")


@dataclass(frozen=True)
class Known:
    """One failure of PyTorch, at every pair of its routes and entries.

    Attributes
    ----------
    because
        What happens, in one sentence.
    raises, match
        The error, and a part of its text; `WRONG` where PyTorch gives a wrong result.
    ours
        What `pullback.Function` must do there: "works", "works or raises", or
        "anything" where the fault lies in PyTorch's tracer and no class can mend it.
    since, before
        The first version that has the failure, and the first that has it no more; `since` is
        not given where torch 2.11, the oldest one supported, has it.
    """

    because: str
    routes: tuple[str, ...]
    entries: tuple[str, ...]
    raises: type[Exception] | tuple[type[Exception], ...]
    match: str = ""
    ours: str = "works or raises"
    since: tuple[int, int] = (2, 11)
    before: tuple[int, int] = (99, 0)

    def covers(self, route: str, entry: str) -> bool:
        return (
            self.since <= TORCH < self.before
            and route in self.routes
            and (entry in self.entries or self.entries == EVERY)
        )


KNOWN_TORCH_FAILURES = (
    Known(
        "A saved intermediate comes back without history: double backward silently drops its term"
        " (pytorch issues 76185 and 104040).",
        TWICE,
        ("saves-intermediate", "keeps-intermediate-on-ctx"),
        WRONG,
    ),
    Known(
        "A tensor on a ctx attribute is invisible to saved-tensor hooks: it is neither offloaded"
        " nor recomputed.",
        ("saved_tensors_hooks", "checkpoint"),
        ON_CTX,
        AssertionError,
        ours="works",
    ),
    Known(
        "`apply` takes no keyword arguments before torch 2.13.",
        APPLIED,
        ("takes-keywords", "takes-defaults-and-keyword"),
        TypeError,
        match="keyword argument",
        ours="works",
        before=(2, 13),
    ),
    Known(
        "`torch.func` takes no keyword arguments for a Function before torch 2.13.",
        FUNC_REVERSE,
        ("takes-defaults-and-keyword",),
        TypeError,
        match="keyword argument",
        before=(2, 13),
    ),
    Known(
        "`torch.func` builds a class of its own with a `backward` only: a backward that is named"
        " `vjp` is not found.",
        (*FUNC_REVERSE, "gradient_of_vmap"),
        ("names-it-vjp",),
        NotImplementedError,
        match="either the backward or vjp",
    ),
    Known(
        "Dynamo refuses a Function whose backward is named `vjp`.",
        COMPILE,
        ("names-it-vjp",),
        Unsupported,
        match="Unsupported custom vjp",
    ),
    Known(
        "Dynamo refuses a Function whose backward is named `vjp` inside `torch.func.grad` too.",
        ("compile_func_grad",),
        ("names-it-vjp",),
        Unsupported,
        match="Unsupported custom vjp",
        since=(2, 15),
    ),
    Known(
        "Compiled autograd looks for `backward` only, not for `vjp`.",
        (*COMPILED_AUTOGRAD, "compiled_both_ways"),
        ("names-it-vjp",),
        (Unsupported, NotImplementedError),
    ),
    Known(
        "Dynamo refuses a Function with a `jvp`, even where no forward mode is asked for.",
        COMPILE,
        PUSHED,
        Unsupported,
        match="Unsupported custom jvp",
    ),
    Known(
        "Dynamo refuses a Function with a `jvp` that writes in place inside `torch.func.grad`.",
        ("compile_func_grad",),
        ("writes-in-place-with-rules",),
        Unsupported,
        match="Unsupported custom jvp",
    ),
    Known(
        "Dynamo refuses a Function with a `jvp` inside `torch.func.grad` too.",
        ("compile_func_grad",),
        PUSHED,
        Unsupported,
        match="Unsupported custom jvp",
        since=(2, 15),
    ),
    Known(
        "Dynamo does not fill in the defaults of `forward` with `setup_context`.",
        (*COMPILE, "compile_func_grad"),
        ("takes-defaults",),
        Unsupported,
    ),
    Known(
        "Dynamo does not fill in the defaults of `forward` with `setup_context`, not even where no"
        " gradient is recorded.",
        ("compile_no_grad", "compile_vmap", "strict_export"),
        ("takes-defaults",),
        Unsupported,
        before=(2, 15),
    ),
    Known(
        "Dynamo does not fill in the defaults before a keyword argument.",
        (
            *COMPILE,
            "compile_with_breaks",
            "compile_no_grad",
            "compile_func_grad",
            "compile_vmap",
            "compiled_both_ways",
            "strict_export",
        ),
        ("takes-defaults-and-keyword", "takes-later-keyword"),
        (InternalTorchDynamoError, TypeError, Unsupported),
    ),
    Known(
        "Dynamo cannot read a number from an attribute of a Function class.",
        (*COMPILE, *COMPILED_AUTOGRAD, "compile_no_grad", "strict_export"),
        ("reads-class-attribute",),
        Unsupported,
        match=r"python_type\(\)|builtin operator",
    ),
    Known(
        "Dynamo cannot trace a Function with `setup_context` applied inside another Function.",
        COMPILE,
        ("applies-another-with-rules",),
        (Unsupported, UserError),
    ),
    Known(
        "Dynamo cannot trace a Function with `setup_context` applied inside another Function, not"
        " inside `torch.func.grad` either.",
        ("compile_func_grad",),
        ("applies-another-with-rules",),
        Unsupported,
        since=(2, 15),
    ),
    Known(
        "Dynamo crashes on a backward that calls the backward of another Function, also where it"
        " may break the graph.",
        (*COMPILE, "compile_with_breaks", "compiled_both_ways"),
        ("calls-parents-backward",),
        AssertionError,
        match="from user code",
        ours="anything",
        before=(2, 15),
    ),
    Known(
        "Dynamo does not know `boxed_grads_call`.",
        COMPILE,
        ("takes-boxed-gradients",),
        Unsupported,
    ),
    Known(
        "Compiled autograd refuses `boxed_grads_call`.",
        (*COMPILED_AUTOGRAD, "compiled_both_ways"),
        ("takes-boxed-gradients",),
        RuntimeError,
        match="not supported with compiled autograd",
    ),
    Known(
        "Dynamo knows `mark_dirty` only where a gradient is recorded.",
        ("compile_no_grad", "strict_export"),
        ("writes-in-place",),
        Unsupported,
        match="mark_dirty",
        since=(2, 13),
    ),
    Known(
        "Dynamo ignores `set_materialize_grads(False)`: backward sees zeros instead of None.",
        (*COMPILE, "compile_with_breaks", "compiled_both_ways"),
        ("tells-none-from-zeros",),
        WRONG,
        ours="anything",
    ),
    Known(
        "Dynamo traces through `forward` under `torch.func.grad` and silently drops the custom"
        " backward.",
        ("compile_func_grad",),
        BENT,
        WRONG,
        ours="anything",
        before=(2, 15),
    ),
    Known(
        "Dynamo traces through `forward` under `torch.vmap` and silently drops the custom"
        " backward.",
        ("compile_vmap",),
        BENT,
        WRONG,
        ours="anything",
    ),
    Known(
        "`torch.export` keeps the operations of `forward` only and silently drops the custom"
        " backward.",
        ("export_gradients",),
        (*BENT, "tells-none-from-zeros"),
        WRONG,
        ours="anything",
    ),
    Known(
        "A strictly exported program with a custom Function gives no gradients.",
        ("strict_export_gradients",),
        EVERY,
        Exception,
    ),
    Known(
        "A compiled function cannot be differentiated twice.",
        ("compile_double_backward",),
        EVERY,
        Exception,
    ),
)


def known_failure(route: str, entry: str) -> Known | None:
    """The failure that is on record for this pair."""
    return next((known for known in KNOWN_TORCH_FAILURES if known.covers(route, entry)), None)
