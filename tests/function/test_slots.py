"""PyTorch's private parts are where `slots.py` looks for them, and do what it says.

When a new release fails here, `src/pullback/function/slots.py` is the file to mend.
"""

import inspect
import pathlib
import re

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.function import BackwardCFunction, FunctionMeta
from torch.fx.experimental.proxy_tensor import make_fx

import pullback as pb
from pullback.function import slots


class Square(torch.autograd.Function):
    """Shows each context in forward and in backward to whoever put a function here."""

    look = staticmethod(lambda ctx: None)
    later = staticmethod(lambda ctx: None)

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        Square.look(ctx)
        return x * x

    @staticmethod
    def backward(ctx, cotangent):
        Square.later(ctx)
        (x,) = ctx.saved_tensors
        return 2 * x * cotangent


class Plain(torch.autograd.Function):
    """Saves nothing by itself."""

    @staticmethod
    def forward(ctx, x, *rest):
        Square.look(ctx)
        return x * 1

    @staticmethod
    def backward(ctx, cotangent):
        Square.later(ctx)
        return (cotangent, *[None] * (len(ctx.needs_input_grad) - 1))


@pytest.fixture
def look(monkeypatch):
    """Have a function look at the context in forward, or later in backward."""

    def put(look=lambda ctx: None, later=lambda ctx: None):
        monkeypatch.setattr(Square, "look", staticmethod(look))
        monkeypatch.setattr(Square, "later", staticmethod(later))

    return put


def leaf():
    return torch.ones(2, requires_grad=True)


# ---- the slots of a context ----


def test_to_save_is_readable_in_forward(look):
    seen, x = [], leaf()
    look(lambda ctx: seen.append(slots.get_to_save(ctx)))
    Square.apply(x)
    Plain.apply(x)

    assert seen[0][0] is x
    assert seen[1] is None


def test_to_save_is_what_backward_gets(look):
    seen, x = [], leaf()
    look(
        lambda ctx: slots.set_to_save(ctx, (x, None)),
        lambda ctx: seen.extend(slots.get_saved_tensors(ctx)),
    )
    Plain.apply(x).sum().backward()

    assert seen[0] is x
    assert seen[1] is None


def test_to_save_is_empty_after_forward(look):
    y = Square.apply(leaf())
    node = y.grad_fn

    assert slots.get_to_save(node) is None
    assert len(slots.get_saved_tensors(node)) == 1


def test_dirty_slot_names_what_changed(look):
    seen, x = [], torch.ones(2)

    class Changing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(slots.get_dirty(ctx))
            slots.set_dirty(ctx, (x,))
            seen.append(slots.get_dirty(ctx))
            return x

    y = Changing.apply(x)

    assert seen[0] is None
    assert seen[1][0] is x
    assert y is x
    assert x._version == 1


def test_non_differentiable_slot_names_outputs(look):
    seen = []

    class Marking(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(slots.get_non_differentiable(ctx))
            y = x * 2
            slots.set_non_differentiable(ctx, (y,))
            seen.append(slots.get_non_differentiable(ctx)[0] is y)
            return y

    y = Marking.apply(leaf())

    assert seen == [None, True]
    assert not y.requires_grad


@pytest.mark.parametrize("value", [True, False])
def test_materialize_slot_decides_about_zeros(value):
    seen = []

    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            slots.set_materialize(ctx, value)
            return x * 1, x * 2

        @staticmethod
        def backward(ctx, first, second):
            seen.append(second is not None)
            return first

    Two.apply(leaf())[0].sum().backward()

    assert seen == [value]


def test_needs_slot_has_one_flag_per_argument(look):
    seen = []
    look(lambda ctx: seen.append(slots.get_needs(ctx)))
    Plain.apply(leaf(), 3, torch.ones(1), None)

    assert seen == [(True, False, False, False)]


def test_needs_slot_may_be_replaced(look):
    seen = []
    look(
        lambda ctx: slots.set_needs(ctx, (False,)),
        lambda ctx: seen.append(slots.get_needs(ctx)),
    )
    Plain.apply(leaf()).sum().backward()

    assert seen == [(False,)]


def test_saved_slot_checks_changes(look):
    x = leaf() * 1
    y = Square.apply(x)
    node = y.grad_fn
    x.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        slots.get_saved_tensors(node)


def test_every_context_has_every_slot(look):
    names = [
        "to_save",
        "dirty_tensors",
        "non_differentiable",
        "materialize_grads",
        "saved_tensors",
        "saved_for_forward",
        "needs_input_grad",
        "next_functions",
        "metadata",
    ]

    assert [name for name in names if not hasattr(BackwardCFunction, name)] == []


# ---- the methods nobody wrote ----


def test_unwritten_methods_are_torchs_own():
    assert Plain.setup_context is slots.no_setup_context
    assert Plain.vjp is slots.no_vjp
    assert Plain.vmap is slots.no_vmap
    assert torch.autograd.Function.backward is slots.no_backward
    assert Plain.backward is not slots.no_backward


# ---- apply ----


def test_c_apply_runs_without_the_python_one(monkeypatch):
    x = leaf()
    apply = slots.c_apply(Square)
    monkeypatch.setattr(Square, "apply", lambda *args: pytest.fail("Python's apply was called"))
    y = apply(x)

    assert torch.equal(y, x * x)
    assert type(y.grad_fn) is Square._backward_cls


def test_c_apply_goes_to_its_class():
    x = leaf()

    assert type(slots.c_apply(Square)(x).grad_fn) is Square._backward_cls
    assert type(slots.c_apply(Plain)(x).grad_fn) is Plain._backward_cls


def test_torch_apply_fills_defaults():
    class Split(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, factor=3):
            return x * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            _, ctx.factor = inputs

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.factor, None

    apply = slots.torch_apply(Split)

    assert apply(torch.ones(2)).tolist() == [3.0, 3.0]
    assert torch.func.grad(lambda x: apply(x).sum())(torch.ones(2)).tolist() == [3.0, 3.0]


def test_new_class_is_a_function_class():
    cls = slots.new_class("Made", torch.autograd.Function, {"forward": Plain.forward})

    assert type(cls) is FunctionMeta
    assert cls.__name__ == "Made"
    assert cls._backward_cls.__name__ == "MadeBackward"
    assert isinstance(cls._backward_cls._autograd_function_id, int)


# ---- questions to the engine ----


def test_context_is_built_after_forward(look):
    seen = []
    look(
        lambda ctx: seen.append(slots.forward_is_over(ctx)),
        lambda ctx: seen.append(slots.forward_is_over(ctx)),
    )
    Square.apply(leaf()).sum().backward()

    assert seen == [False, True]


def test_node_tells_what_it_gave():
    x = torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
    y = Square.apply(x * 1)
    node = y.grad_fn
    (before, number) = node.next_functions[0]
    metadata = slots.inputs_like(before)[number]

    assert list(metadata.shape) == [2, 3]
    assert metadata.dtype is torch.float64
    assert list(slots.inputs_like(before.next_functions[0][0])[0].shape) == [2, 3]
    assert slots.inputs_like(None) == ()


def test_engine_says_which_nodes_run(look):
    seen = []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * y

        @staticmethod
        def backward(ctx, cotangent):
            seen.append([slots.will_run(node) for node, _ in ctx.next_functions])
            return cotangent, cotangent

    x, y = leaf(), leaf()
    for inputs in ((x,), (y,), (x, y)):
        torch.autograd.grad(Product.apply(x, y).sum(), inputs)
        torch.autograd.grad(Product.apply(x * 1, y * 1).sum(), inputs)
        Product.apply(x * 1, y * 1).sum().backward(inputs=inputs)

    only = {0: [True, False], 1: [False, True], 2: [True, True]}
    assert seen == [only[i] for i in range(3) for _ in range(3)]


def test_engine_tells_nothing_of_leaves_asked_for():
    seen = []

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, cotangent):
            seen.append(slots.engine_runs(ctx.next_functions[0][0]))
            return cotangent * 2

    x = leaf()
    torch.autograd.grad(Double.apply(x).sum(), x)
    Double.apply(x).sum().backward()

    assert seen == [None, True]


def test_outside_of_backward_every_node_runs():
    assert slots.will_run((leaf() * 2).grad_fn) is True


# ---- functorch and dispatch ----


def test_transforms_are_noticed():
    seen = [slots.transforms_active()]
    torch.func.vmap(lambda x: seen.append(slots.transforms_active()) or x)(torch.ones(2))
    torch.func.grad(lambda x: seen.append(slots.transforms_active()) or x)(torch.ones(()))
    seen.append(slots.transforms_active())

    assert seen == [False, True, True, False]


def test_dead_wrapper_is_taken_off():
    leaked = []
    torch.func.grad(lambda x: leaked.append(x) or x.sum())(torch.ones(2))
    x = torch.ones(2)

    assert slots.unwrap_if_dead(x) is x
    assert slots.unwrap_if_dead(leaked[0]) is not leaked[0]
    assert type(slots.unwrap_if_dead(leaked[0])) is torch.Tensor


def test_guard_dispatches_below_autograd():
    x = leaf()
    with slots.below_ad_guard():
        below = x * 2
    above = x * 2

    assert not below.requires_grad
    assert above.requires_grad


def test_torch_functions_can_be_disabled():
    calls = []

    class Listening(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            calls.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    x = torch.ones(2).as_subclass(Listening)
    calls.clear()
    with slots.no_torch_function():
        _ = x.requires_grad
        quiet = len(calls)
    _ = x.requires_grad

    assert quiet == 0
    assert len(calls) == 1


def test_inference_tensor_is_known_quietly():
    calls = []

    class Listening(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            calls.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    with torch.inference_mode():
        made = torch.ones(2)
    listening = torch.ones(2).as_subclass(Listening)
    calls.clear()

    assert slots.is_inference(made)
    assert not slots.is_inference(torch.ones(2))
    assert not slots.is_inference(listening)
    assert calls == []


def test_version_counts_changes():
    x = torch.ones(2)
    before = slots.version_of(x)
    x.add_(1)
    with torch.inference_mode():
        made = torch.ones(2)

    assert slots.version_of(x) == before + 1
    assert slots.version_of(made) == 0


def test_traced_tensors_are_known():
    seen = [slots.has_no_values([torch.ones(2), torch.nn.Parameter(torch.ones(2))])]
    seen.append(slots.has_no_values([torch.ones(2, device="meta")]))
    with FakeTensorMode():
        seen.append(slots.has_no_values([torch.ones(2)]))
    make_fx(lambda x: seen.append(slots.has_no_values([x])) or x)(torch.ones(2))

    assert seen == [False, True, True, True]


def test_forward_mode_is_noticed():
    x = torch.ones(1)
    seen = [slots.has_tangent([x])]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(1))
        seen += [slots.has_tangent([x, 2]), slots.has_tangent([2, dual])]
        with forward_ad._set_fwd_grad_enabled(False):  # as PyTorch does around forward
            seen.append(slots.has_tangent([dual]))
    seen.append(slots.has_tangent([x]))

    assert seen == [False, False, True, True, False]


# ---- the compiler ----


def test_frames_of_unseen_function_are_left_alone():
    def compiled_frames(function):
        frames = []

        def backend(graph, examples):
            frames.append(graph)
            return graph.forward

        @torch._dynamo.disable(recursive=False)
        def call(x):
            return function(x)

        torch.compile(lambda x: call(x), backend=backend)(torch.ones(2))
        return len(frames)

    def seen(x):
        return x + 1

    def marked(x):
        return x + 1

    assert compiled_frames(seen) == 1
    assert compiled_frames(slots.unseen(marked)) == 0
    assert marked.__code__.co_filename == __file__


def test_error_in_a_context_is_shown_at_its_line():
    class Marks(pb.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(3)

    with pytest.raises(pb.errors.MarkedNonTensorError) as raised:
        Marks.apply(torch.ones(2))

    files = [pathlib.Path(entry.path) for entry in raised.traceback]
    assert "context.py" in {file.name for file in files}
    assert {file.name for file in files if not file.exists()} == {"dispatch.py"}  # `torchs_own`


def test_torchs_own_function_is_in_torchs_folder():
    def function(x):
        return x + 1

    home = str(pathlib.Path(torch.autograd.function.__file__).parent)
    marked = slots.torchs_own(function)

    assert marked(1) == 2
    assert marked.__code__.co_filename.startswith(home)


def test_torchs_own_function_is_skipped_by_dynamo():
    skipped = pytest.importorskip("torch._dynamo.trace_rules")

    def seen(x):
        return x

    def marked(x):
        return x

    slots.torchs_own(marked)

    assert skipped.check_file(marked.__code__.co_filename).skipped
    assert not skipped.check_file(seen.__code__.co_filename).skipped


def test_hidden_function_is_not_inlined():
    def seen(x):
        return x + 1

    @slots.hidden_from_dynamo
    def hidden(x):
        return x + 1

    def compiled(function):
        return torch.compile(lambda x: function(x * 2), backend="eager", fullgraph=True)

    assert compiled(seen)(torch.ones(2)).tolist() == [3.0, 3.0]
    with pytest.raises(torch._dynamo.exc.Unsupported, match="is_traceable is False"):
        compiled(hidden)(torch.ones(2))


# ---- nothing is left out ----


def test_every_private_name_is_in_this_file():
    """A name that `slots.py` gains and nobody tests is caught here."""
    text = pathlib.Path(__file__).read_text("utf-8")
    names = [name for name in vars(slots) if not name.startswith("_")]
    ours = [name for name in names if inspect.getmodule(vars(slots)[name]) is slots]
    bound = re.findall(r"^(\w+)(?:: [^=]+)? = ", inspect.getsource(slots), re.MULTILINE)
    wanted = {name for name in [*ours, *bound, "unwrap_if_dead"] if not name.startswith("_")}

    assert [name for name in sorted(wanted) if f"slots.{name}" not in text] == []


def test_tracing_by_jit_is_seen():
    seen = []

    def program(x):
        seen.append(slots.is_jit_tracing())
        return x * 2

    torch.jit.trace(program, (torch.ones(2),), check_trace=False)

    assert seen == [True]
    assert not slots.is_jit_tracing()


def test_moment_is_ordinary_unless_something_is_around():
    around = {
        "a mode of functions": torch.device("cpu"),
        "forward mode": torch.autograd.forward_ad.dual_level(),
    }

    assert slots.is_ordinary_moment()
    assert not slots.in_forward_mode()
    assert not slots.has_autocast()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert slots.is_ordinary_moment()
        assert slots.has_autocast()
    for name, context in around.items():
        with context:
            assert not slots.is_ordinary_moment(), name
            assert slots.in_forward_mode() == (name == "forward mode")


def test_tensor_under_vmap_is_batched():
    seen = []
    torch.func.vmap(lambda x: (seen.append(slots.is_batched(x)), x)[1])(torch.ones(2))
    x = torch.ones(2, requires_grad=True)
    x.register_hook(lambda g: seen.append(slots.is_batched(g)))
    torch.autograd.grad(x * 2, x, torch.eye(2), is_grads_batched=True)

    assert seen == [True, True]
    assert not slots.is_batched(torch.ones(2))


def test_dispatch_mode_sees_every_op():
    seen = []

    class Noting(slots.PlainDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Noting():
        torch.ones(2).sin()

    assert torch.ops.aten.sin.default in seen


def test_no_mode_sees_an_op_without_them():
    seen = []

    class Noting(slots.PlainDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x = torch.ones(2)
    with Noting():
        with slots.without_modes():
            x.sin()
        x.cos()

    assert seen == [torch.ops.aten.cos.default]


# ---- what Dynamo and functorch see ----


def test_metaclass_decides_what_dynamo_sees():
    class Plain(pb.Function):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent

    slots.be_seen(Plain)
    seen = type(Plain)
    slots.be_seen(Plain, seen=False)

    assert seen is slots.SeenMeta
    assert type(Plain) is type(torch.autograd.Function)


def test_class_without_backward_may_be_allowed_in_graphs():
    @torch.compiler.allow_in_graph
    class Branching(pb.Function):
        @staticmethod
        def forward(ctx, x):
            torch._dynamo.graph_break()  # which would be an error if it were read
            return x.sin()

    def program(x):
        return Branching.apply(x).cos()

    x = torch.ones(3, requires_grad=True)
    compiled = torch.compile(program, backend="eager", fullgraph=True)
    (got,) = torch.autograd.grad(compiled(x).sum(), x)
    (expected,) = torch.autograd.grad(x.sin().cos().sum(), x)

    assert torch.allclose(got, expected)
    assert issubclass(Branching, pb.Function)


def test_class_without_backward_is_read_unless_it_is_allowed_in_graphs():
    class Reading(pb.Function):
        @staticmethod
        def forward(ctx, x):
            torch._dynamo.graph_break()
            return x.sin()

    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"):
        torch.compile(Reading.apply, backend="eager", fullgraph=True)(torch.ones(3))


def test_innermost_transform_is_named():
    found = []

    def note(x):
        found.append(slots.top_transform())
        return x.sum()

    torch.func.grad(note)(torch.ones(2))
    torch.vmap(note)(torch.ones(2, 2))
    torch.func.jvp(note, (torch.ones(2),), (torch.ones(2),))

    assert found == ["Grad", "Vmap", "Jvp"]


def test_unwritten_jvp_is_known():
    class Plain(pb.Function):
        pass

    assert Plain.jvp is slots.no_jvp


def test_tensors_that_share_memory_have_one_key():
    x = torch.ones(4)

    assert slots.storage_key(x) == slots.storage_key(x[1:])
    assert slots.storage_key(x) != slots.storage_key(x.clone())


def test_schema_is_that_of_a_registered_op():
    assert slots.op_schema(torch.ops.aten.mul.Tensor).name == "aten::mul"
    assert slots.op_schema(torch.sin) is None
