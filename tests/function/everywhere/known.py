"""Where PyTorch itself fails a custom Function, and what it does there.

Every pair of a route and an entry that is not listed here works with `torch.autograd.Function`.
Each listed pair is pinned by a test which fails when PyTorch mends it.
"""

from dataclasses import dataclass

from torch._dynamo.exc import InternalTorchDynamoError, Unsupported
from torch.autograd.gradcheck import GradcheckError

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
    """

    because: str
    routes: tuple[str, ...]
    entries: tuple[str, ...]
    raises: type[Exception] | tuple[type[Exception], ...]
    match: str = ""
    ours: str = "works or raises"

    def covers(self, route: str, entry: str) -> bool:
        return route in self.routes and (entry in self.entries or self.entries == EVERY)


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
        "`torch.func` builds a class of its own with a `backward` only: a backward that is named"
        " `vjp` is not found.",
        (
            "func_grad",
            "func_grad_twice",
            "func_vjp",
            "func_jacrev",
            "gradient_of_vmap",
            "vmap_of_gradient",
            "reverse_hessian",
        ),
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
        "Compiled autograd looks for `backward` only, not for `vjp`.",
        (*COMPILED_AUTOGRAD, "compiled_both_ways"),
        ("names-it-vjp",),
        (Unsupported, NotImplementedError),
        match="",
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
        "Dynamo does not fill in the defaults of `forward` with `setup_context`.",
        (*COMPILE, "compile_no_grad", "compile_func_grad", "compile_vmap", "strict_export"),
        ("takes-defaults",),
        Unsupported,
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
        (InternalTorchDynamoError, TypeError),
        match="missing required argument: 'factor'",
    ),
    Known(
        "Dynamo cannot read a number from an attribute of a Function class.",
        (*COMPILE, *COMPILED_AUTOGRAD, "compile_no_grad", "strict_export"),
        ("reads-class-attribute",),
        Unsupported,
        match=r"python_type\(\)",
    ),
    Known(
        "Dynamo cannot trace a Function with `setup_context` applied inside another Function.",
        COMPILE,
        ("applies-another-with-rules",),
        Unsupported,
        match="setup_context",
    ),
    Known(
        "Dynamo crashes on a backward that calls the backward of another Function, also where it"
        " may break the graph.",
        (*COMPILE, "compile_with_breaks", "compiled_both_ways"),
        ("calls-parents-backward",),
        AssertionError,
        match="Expected FakeBackwardCFunction",
        ours="anything",
    ),
    Known(
        "Dynamo does not know `boxed_grads_call`.",
        COMPILE,
        ("takes-boxed-gradients",),
        Unsupported,
        match="failed to bind arguments",
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
    ),
    Known(
        "Dynamo ignores `set_materialize_grads(False)`: backward sees zeros instead of None.",
        (*COMPILE, "compile_with_breaks", "compiled_both_ways"),
        ("tells-none-from-zeros",),
        WRONG,
        ours="anything",
    ),
    Known(
        "Dynamo traces through `forward` under `torch.func` and silently drops the custom"
        " backward.",
        ("compile_func_grad", "compile_vmap"),
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
