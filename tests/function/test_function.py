"""`pb.Function` in place of `torch.autograd.Function`: the same program, the same outcome.

Each program below runs on both base classes. What it gives, as text, must be equal: values,
gradients, flags, names, and the builtin class of an exception.
"""

import asyncio
import copy
import functools
import gc
import pickle
import threading
import traceback
import typing
import warnings
import weakref

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.profiler import profile
from torch.utils._pytree import tree_map

import pullback as pb
from tests.function.everywhere.compare import TORCH_TAKES_KEYWORDS

PROGRAMS = []


def program(function):
    """Have `function` run on both base classes."""
    PROGRAMS.append(function)
    return function


def program_with_keywords(function):
    """As `program`, where PyTorch's own `apply` takes keywords, too."""
    return program(function) if TORCH_TAKES_KEYWORDS else function


def leaf(*values):
    return torch.tensor(values, dtype=torch.float64, requires_grad=True)


def shown(value):
    """A value as text, with everything about a tensor that a program can see."""
    if isinstance(value, torch.Tensor):
        node = type(value.grad_fn).__name__ if value.grad_fn is not None else None
        version = None if value.is_inference() else value._version
        flags = value.requires_grad, value.is_leaf, version, value._is_view()
        return f"{type(value).__name__} {value.detach().tolist()} {value.dtype} {node} {flags}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__}({', '.join(map(shown, value))})"
    return repr(value)


def attempt(function, *args, **kwargs):
    """What a call gives, or the builtin class of what it raises."""
    try:
        return shown(function(*args, **kwargs))
    except Exception as error:
        return next(c.__name__ for c in type(error).__mro__ if c.__module__ == "builtins")


def outcome(run, base):
    """What `run` gives, and the warnings on the way."""
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = attempt(run, base)
    return result, [w.category.__name__ for w in caught if w.category is not DeprecationWarning]


def slope(function, *args, at=3.0, **kwargs):
    """The derivative of `function.apply`, or what it raises."""
    x = leaf(at)
    return attempt(lambda: torch.autograd.grad(function.apply(x, *args, **kwargs), x)[0])


def square(base):
    class Square(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            return 2 * x * cotangent

    return Square


def doubled(base):
    """4 x**2, from a saved intermediate."""

    class Doubled(base):
        @staticmethod
        def forward(ctx, x):
            double = x * 2
            ctx.save_for_backward(double)
            return double * double

        @staticmethod
        def backward(ctx, cotangent):
            (double,) = ctx.saved_tensors
            return 4 * double * cotangent

    return Doubled


# ---- how a class is written ----


@program
def base_has_no_forward(base):
    return attempt(base.apply, leaf(1.0))


@program
def class_has_no_forward(base):
    return attempt(type("Empty", (base,), {}).apply, leaf(1.0))


@program
def class_is_made_by_type(base):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    def backward(ctx, cotangent):
        return 2 * ctx.saved_tensors[0] * cotangent

    made = type("Made", (base,), {"forward": forward, "backward": backward})
    y = made.apply(leaf(1.0))
    return slope(made), y.grad_fn.name(), type(made) is type(base)


@program
def methods_are_class_methods(base):
    class Bound(base):
        factor = 3

        @classmethod
        def forward(cls, ctx, x):
            return x * cls.factor

        @classmethod
        def backward(cls, ctx, cotangent):
            return cotangent * cls.factor

    class Child(Bound):
        factor = 5

    y = Child.apply(leaf(1.0))
    return slope(Bound), slope(Child), y.grad_fn.name()


@program
def methods_are_partials(base):
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    def backward(ctx, cotangent, times):
        return cotangent * ctx.factor * times

    class Partial(base):
        pass

    Partial.forward = staticmethod(functools.partial(forward, factor=3))
    Partial.backward = staticmethod(functools.partial(backward, times=1))
    space = {
        "forward": staticmethod(functools.partial(forward, factor=3)),
        "backward": staticmethod(functools.partial(backward, times=1)),
    }
    return slope(Partial), slope(type("Made", (base,), space))


def remembering(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


def forgetting(function):
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)

    return wrapper


@program
def methods_are_decorated(base):
    found = []
    for decorate in (remembering, forgetting, torch.no_grad(), torch.enable_grad()):

        class Decorated(base):
            @staticmethod
            @decorate
            def forward(ctx, x, factor=2.0):
                ctx.factor, ctx.count = factor, len(ctx.needs_input_grad)
                return x * factor

            @staticmethod
            @decorate
            def backward(ctx, cotangent):
                return (cotangent * ctx.factor, None)[: ctx.count]

        found += [slope(Decorated), slope(Decorated, 3.0)]
    return found


@program_with_keywords
def methods_are_assigned_later(base):
    class Late(base):
        pass

    Late.forward = staticmethod(lambda ctx, x: x * 2)
    Late.backward = staticmethod(lambda ctx, cotangent: cotangent * 2)
    first = slope(Late)
    Late.forward = staticmethod(lambda ctx, x, factor: x * factor)
    Late.backward = staticmethod(lambda ctx, cotangent: (cotangent * 7, None))
    return first, slope(Late, 5), slope(Late, factor=5)


@program
def mixins_come_before_and_after(base):
    class Backward:
        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 5

    class Forward:
        @staticmethod
        def forward(ctx, x):
            return x * 5

    class Before(Backward, Forward, base):
        pass

    class After(base, Backward, Forward):
        pass

    return slope(Before), slope(After)


@program
def bases_form_a_diamond(base):
    class Forward(base):
        @staticmethod
        def forward(ctx, x):
            return x * 5

    class Backward(base):
        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 5

    return slope(type("A", (Forward, Backward), {})), slope(type("B", (Backward, Forward), {}))


@program
def subclasses_are_registered(base):
    seen = []

    class Registry:
        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            seen.append(cls.__name__)

    class Before(Registry, base):
        forward = square(base).forward
        backward = square(base).backward

    class After(base, Registry):
        forward = square(base).forward
        backward = square(base).backward

    class Own(base):
        def __init_subclass__(cls, **kwargs):
            super().__init_subclass__(**kwargs)
            seen.append(cls.__name__)

    class Child(Own):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent

    slopes = slope(Before), slope(After), slope(Child)
    return seen, slopes, [cls.__name__ for cls in Own.__subclasses__()]


@program
def class_is_generic(base):
    kind = typing.TypeVar("kind")

    class General(base, typing.Generic[kind]):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 2

    return slope(General), slope(General[int]), General.__parameters__ == (kind,)


@program
def abstract_base_conflicts(base):
    import abc

    return attempt(lambda: type("Abstract", (base, abc.ABC), {}))


@program
def apply_is_overridden(base):
    class Counting(square(base)):
        count = 0

        @classmethod
        def apply(cls, *args, **kwargs):
            cls.count += 1
            return super().apply(*args, **kwargs)

    return slope(Counting), Counting.count


@program
def parent_methods_are_called(base):
    parent = square(base)

    class Child(parent):
        @staticmethod
        def forward(ctx, x, factor):
            ctx.factor = factor
            return parent.forward(ctx, x) * factor

        @staticmethod
        def backward(ctx, cotangent):
            return parent.backward(ctx, cotangent) * ctx.factor, None

    return slope(Child, 4.0)


@program
def methods_of_another_class_are_borrowed(base):
    lender = square(base)

    class Borrower(base):
        @staticmethod
        def forward(ctx, x):
            return lender.forward(ctx, x)

        @staticmethod
        def backward(ctx, cotangent):
            return lender.backward(ctx, cotangent)

    return slope(Borrower), slope(lender)


@program
def class_has_a_cache(base):
    class Caching(base):
        cache: typing.ClassVar[dict] = {}

        @staticmethod
        def forward(ctx, x):
            Caching.cache["x"] = x
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            return 2 * Caching.cache["x"] * cotangent

    x = leaf(3.0)
    y = Caching.apply(x)
    return Caching.cache["x"] is x, torch.autograd.grad(y, x)


@program
def methods_are_called_with_any_context(base):
    class Any:
        def save_for_backward(self, *tensors):
            self.saved_tensors = tensors

    cls, ctx = square(base), Any()
    return cls.forward(ctx, leaf(3.0)), cls.backward(ctx, torch.ones(1))


# ---- arguments and outputs ----


@program
def no_arguments_at_all(base):
    class Constant(base):
        @staticmethod
        def forward(ctx):
            return torch.ones(2)

    return attempt(Constant.apply)


@program
def no_tensor_among_arguments(base):
    class Plain(base):
        @staticmethod
        def forward(ctx, number, text):
            return torch.ones(2) * number

    return attempt(Plain.apply, 3, "text")


@program
def wrong_arguments_raise(base):
    class Two(base):
        @staticmethod
        def forward(ctx, x, factor=2.0):
            return x * factor

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent, None

    class Split(base):
        @staticmethod
        def forward(x, factor=2.0):
            return x * factor

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent, None

    x, found = leaf(1.0), []
    for cls in (Two, Split):
        found += [attempt(cls.apply), attempt(cls.apply, x, 1, 2), attempt(cls.apply, x, x=x)]
        found += [attempt(cls.apply, x, power=2), attempt(cls.apply, x, 3, factor=2)]
    return found


@program_with_keywords
def keywords_bind(base):
    class Two(base):
        @staticmethod
        def forward(ctx, x, factor=2.0):
            ctx.factor, ctx.count = factor, len(ctx.needs_input_grad)
            return x * factor

        @staticmethod
        def backward(ctx, cotangent):
            return (cotangent * ctx.factor, None)[: ctx.count]

    x = leaf(1.0)
    calls = [((x,), {}), ((x, 3.0), {}), ((x,), {"factor": 3.0}), ((), {"x": x, "factor": 3.0})]
    return [torch.autograd.grad(Two.apply(*args, **kwargs), x) for args, kwargs in calls]


@program
def forward_sees_the_very_inputs(base):
    seen = []

    class Looking(base):
        @staticmethod
        def forward(ctx, x, thing):
            seen.append((x is given, thing is box, x.requires_grad, torch.is_grad_enabled()))
            return x * 1

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent, None

    given, box = leaf(1.0), object()
    Looking.apply(given, box)
    given = given * 1
    Looking.apply(given, box)
    return seen


@program
def named_tuples_come_and_go(base):
    class Pair(typing.NamedTuple):
        first: typing.Any
        second: typing.Any

    class Named(base):
        @staticmethod
        def forward(ctx, x, y):
            return Pair(x * 2, y * 3)

        @staticmethod
        def backward(ctx, first, second):
            return Pair(first * 2, second * 3)

    x, y = leaf(1.0), leaf(1.0)
    output = Named.apply(x, y)
    return output, torch.autograd.grad(output[0] + output[1], (x, y))


@program
def plain_values_come_out(base):
    seen = []

    class Mixed(base):
        @staticmethod
        def forward(ctx, x):
            return x * 2, "text", None, {"k": 1}, (1, 2)

        @staticmethod
        def backward(ctx, *cotangents):
            seen.append([type(c).__name__ for c in cotangents])
            return cotangents[0] * 2

    x = leaf(1.0)
    output = Mixed.apply(x)
    return output, torch.autograd.grad(output[0], x), seen


@program
def nothing_comes_out(base):
    found = []
    for output in ((), None, "text", 3):

        class Nothing(base):
            @staticmethod
            def forward(ctx, x, output=output):
                return output

            @staticmethod
            def backward(ctx, *cotangents):
                return None

        found.append(attempt(Nothing.apply, leaf(1.0)))
    return found


@program
def input_is_returned(base):
    class Identity(base):
        @staticmethod
        def forward(ctx, x):
            return x

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 2

    x = leaf(1.0)
    y = Identity.apply(x)
    return y, y is x, y._base is x, attempt(y.add_, 1), slope(Identity)


@program
def views_are_returned(base):
    class Flat(base):
        @staticmethod
        def forward(ctx, x):
            return x.view(-1)

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent.view(2, 2)

    class Rows(base):
        @staticmethod
        def forward(ctx, x):
            return x[0], x[1]

        @staticmethod
        def backward(ctx, first, second):
            return torch.stack([first, second])

    found = []
    for make in (lambda x: x, lambda x: x * 1, lambda x: x[:]):
        x = make(torch.ones(2, 2, requires_grad=True))
        y, (first, second) = Flat.apply(x), Rows.apply(x)
        found += [y, first, second, y.data_ptr() == x.data_ptr()]
        found += [attempt(y.add_, 1), attempt(first.add_, 1)]
    return found


@program
def input_changes_in_place(base):
    class Doubling(base):
        @staticmethod
        def forward(ctx, x):
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 2

    found = []
    whole = leaf(1.0, 2.0) * 1
    for x in (leaf(1.0) * 1, torch.ones(1), whole[:1], leaf(1.0)):
        found += [attempt(lambda x=x: Doubling.apply(x) is x), x, x.grad_fn is None]
    with torch.no_grad():
        x = leaf(1.0)
        found += [Doubling.apply(x), x]
    return found, whole


@program
def one_tensor_comes_out_twice(base):
    class Twice(base):
        @staticmethod
        def forward(ctx, x):
            y = x.clone()
            return y, y

        @staticmethod
        def backward(ctx, first, second):
            return first + 2 * second

    x = leaf(1.0)
    first, second = Twice.apply(x)
    return first is second, torch.autograd.grad(first + second, x)


@program
def results_of_backward_are_judged(base):
    results = {
        "()": lambda g: (),
        "g": lambda g: g,
        "(g,)": lambda g: (g,),
        "g, g": lambda g: (g, g),
        "g, None": lambda g: (g, None),
        "None": lambda g: None,
        "None, None": lambda g: (None, None),
        "[g]": lambda g: [g],
        "number": lambda g: 3.0,
        "text": lambda g: "text",
        "array": lambda g: g.numpy(),
        "size": lambda g: g.shape,
        "shape": lambda g: g[:1],
        "expanded": lambda g: g.expand(3, 2),
        "subclass": torch.nn.Parameter,
    }
    found = {}
    for name, result in results.items():

        class Returning(base):
            @staticmethod
            def forward(ctx, x):
                return x * 1

            @staticmethod
            def backward(ctx, cotangent, result=result):
                return result(cotangent)

        x = leaf(1.0, 2.0)
        y = Returning.apply(x).sum()
        found[name] = attempt(torch.autograd.grad, y, x, allow_unused=True)
    return found


# ---- contexts ----


@program
def anything_goes_on_the_context(base):
    class Keeping(base):
        @staticmethod
        def forward(ctx, x):
            ctx.number, ctx.text, ctx.box = 2, "text", [x * 2]
            ctx.__dict__.update(direct=5)
            del ctx.text
            return x * 1

        @staticmethod
        def backward(ctx, cotangent):
            Keeping.seen = [ctx.number, hasattr(ctx, "text"), ctx.box[0], ctx.direct]
            Keeping.seen.append(attempt(lambda: ctx.absent))
            return cotangent

    return slope(Keeping), Keeping.seen


@program
def slots_are_set_directly(base):
    found = []
    for name in ("needs_input_grad", "to_save", "materialize_grads", "dirty_tensors"):

        class Setting(base):
            @staticmethod
            def forward(ctx, x, name=name):
                setattr(ctx, name, {"needs_input_grad": (True,), "to_save": (x,)}.get(name))
                return x * 2

            @staticmethod
            def backward(ctx, cotangent):
                return cotangent * 2

        found.append(slope(Setting))
    return found


@program
def context_is_a_node(base):
    y = square(base).apply(leaf(3.0) * 1)
    node = y.grad_fn
    names = [type(edge[0]).__name__ for edge in node.next_functions]
    edge = torch.autograd.graph.get_gradient_edge(y)
    return (
        node.name(),
        node.metadata,
        names,
        isinstance(node, torch.autograd.graph.Node),
        isinstance(node, torch.autograd.function.FunctionCtx),
        edge.output_nr,
        edge.node is node,
        len(node._raw_saved_tensors),
        vars(node),
        attempt(node.apply, torch.ones(1, dtype=torch.float64)),
        attempt(node),
    )


@program
def hooks_raise(base):
    def fail(*_):
        raise ValueError

    found = []
    for register in (
        lambda y: y.register_hook(fail),
        lambda y: y.grad_fn.register_hook(fail),
        lambda y: y.grad_fn.register_prehook(fail),
    ):
        x = leaf(3.0)
        y = square(base).apply(x)
        handle = register(y)
        found.append(attempt(y.backward, retain_graph=True))
        handle.remove()
        y.backward()
        found += [x.grad, torch.is_grad_enabled()]
    return found


@program
def methods_raise(base):
    class Failing(base):
        @staticmethod
        def forward(ctx, x, where):
            ctx.where = where
            if where == "forward":
                raise KeyError
            return x * 1

        @staticmethod
        def backward(ctx, cotangent):
            if ctx.where == "backward":
                raise LookupError
            return cotangent, None

    return [slope(Failing, where) for where in ("forward", "backward", "")]


# ---- graphs in graphs ----


@program
def functions_nest(base):
    inner = square(base)

    class Outer(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return inner.apply(x) * x

        @staticmethod
        def backward(ctx, cotangent):
            return 3 * inner.apply(ctx.saved_tensors[0]) * cotangent

    return slope(Outer), attempt(torch.autograd.gradgradcheck, Outer.apply, (leaf(2.0),))


@program
def functions_recurse(base):
    class Power(base):
        @staticmethod
        def forward(ctx, x, n):
            ctx.save_for_backward(x)
            ctx.n = n
            return x if n == 1 else Power.apply(x, n - 1) * x

        @staticmethod
        def backward(ctx, cotangent):
            (x,) = ctx.saved_tensors
            below = 1 if ctx.n == 1 else Power.apply(x, ctx.n - 1)
            return ctx.n * below * cotangent, None

    check = attempt(torch.autograd.gradgradcheck, lambda x: Power.apply(x, 4), (leaf(2.0),))
    return slope(Power, 4), check


@program
def graph_is_built_in_forward(base):
    inner = square(base)

    class Inside(base):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.y = inner.apply(ctx.x)
            return ctx.y.detach()

        @staticmethod
        def backward(ctx, cotangent):
            with torch.enable_grad():
                return torch.autograd.grad(ctx.y, ctx.x, cotangent)[0]

    return slope(Inside)


@program
def forward_is_recomputed_in_backward(base):
    class Recomputing(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.exp()

        @staticmethod
        def backward(ctx, cotangent):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                x.exp().backward(cotangent)
            return x.grad

    return slope(Recomputing)


@program
def backward_runs_in_every_mode(base):
    seen = []

    class Looking(square(base)):
        @staticmethod
        def backward(ctx, cotangent):
            seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
            return square(base).backward(ctx, cotangent)

    x = leaf(3.0)
    y = Looking.apply(x)
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            seen.append(attempt(torch.autograd.grad, y, x, retain_graph=True))
            seen.append(attempt(torch.autograd.grad, y, x, create_graph=True))
            seen.append(Looking.apply(x))
    return seen


@program
def inference_tensors_come_in(base):
    with torch.inference_mode():
        made = torch.full((1,), 2.0, dtype=torch.float64)

    class Product(base):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x * 1)
            ctx.y = y
            return x * y

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * ctx.y, None

    class Saving(base):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(y)
            return x * y

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent, None

    return slope(Product, made), slope(Saving, made), attempt(square(base).apply, made)


@program
def gradients_are_batched(base):
    function = square(base).apply
    x = leaf(1.0, 2.0)
    eye = torch.eye(2, dtype=torch.float64)
    rows = torch.autograd.grad(function(x), x, eye, is_grads_batched=True)
    hessian = torch.autograd.functional.hessian(lambda x: function(x).sum(), x, vectorize=True)
    check = torch.autograd.gradcheck(function, (x,), check_batched_grad=True)
    return rows, hessian, check


# ---- kinds of tensors ----


class Listening(torch.Tensor):
    """Notes every torch function."""

    calls: typing.ClassVar[list] = []

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Listening.calls.append(getattr(func, "__name__", str(func)))
        return super().__torch_function__(func, types, args, kwargs or {})


class Two(torch.Tensor):
    """Two tensors that go through every operator side by side."""

    @staticmethod
    def __new__(cls, a, b):
        return torch.Tensor._make_wrapper_subclass(
            cls, a.shape, dtype=a.dtype, device=a.device, requires_grad=a.requires_grad
        )

    def __init__(self, a, b):
        self.a, self.b = a, b

    def tolist(self):
        return [self.a.tolist(), self.b.tolist()]

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        def run(part):
            def pick(value):
                return getattr(value, part) if isinstance(value, Two) else value

            return func(*tree_map(pick, args), **tree_map(pick, kwargs or {}))

        a, b = run("a"), run("b")
        return Two(a, b) if isinstance(a, torch.Tensor) else a


def kinds(base):
    yield from (square(base), doubled(base))


@program
def parameter_comes_in(base):
    found = []
    for function in kinds(base):
        parameter = torch.nn.Parameter(torch.full((2,), 3.0))
        y = function.apply(parameter)
        y.sum().backward()
        found += [y, parameter.grad]
    return found


@program
def torch_function_subclass_comes_in(base):
    found = []
    for function in kinds(base):
        x = torch.tensor([3.0]).as_subclass(Listening).requires_grad_()
        Listening.calls.clear()
        y = function.apply(x)
        found.append(list(Listening.calls))
        found.append(torch.autograd.grad(y, x)[0].tolist())
        found.append(type(y).__name__)
    return found


@program
def wrapper_subclass_comes_in(base):
    found = []
    for function in kinds(base):
        x = Two(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])).requires_grad_()
        for make in (lambda x: x, lambda x: x * 1):
            y = function.apply(make(x))
            (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
            found += [type(y).__name__, y.tolist(), type(gradient).__name__, gradient.tolist()]
    return found


@program
def sparse_tensor_comes_in(base):
    class Dense(base):
        @staticmethod
        def forward(ctx, sparse):
            dense = sparse.to_dense()
            ctx.save_for_backward(dense)
            return dense * dense

        @staticmethod
        def backward(ctx, cotangent):
            return 2 * ctx.saved_tensors[0] * cotangent

    found = []
    for make in (lambda x: x, lambda x: x * 2):
        sparse = torch.eye(2).to_sparse().requires_grad_()
        (gradient,) = torch.autograd.grad(Dense.apply(make(sparse)).sum(), sparse)
        found.append(gradient.to_dense())
    return found


@program
def nested_tensor_comes_in(base):
    class Twice(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * 2

    rows = [torch.ones(2, 3), torch.ones(4, 3)]
    x = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    y = Twice.apply(x)
    (gradient,) = torch.autograd.grad(y, x, torch.ones_like(y))
    return [row.tolist() for row in gradient.unbind()]


@program
def fake_and_meta_tensors_come_in(base):
    found = []
    for function in kinds(base):
        for mode in (FakeTensorMode(), torch.device("meta")):
            with mode:
                x = torch.ones(2, 3, requires_grad=True)
                y = function.apply(x)
                (gradient,) = torch.autograd.grad(y.sum(), x)
                found += [type(y).__name__, y.shape, y.requires_grad, gradient.shape]
    return found


@program
def complex_tensors_come_in(base):
    class Square(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * (2 * ctx.saved_tensors[0]).conj()

    x = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128, requires_grad=True)
    return torch.autograd.gradcheck(Square.apply, (x,)), Square.apply(x)


# ---- tools that look at programs ----


@program
def program_is_traced_by_make_fx(base):
    def gradient(function, x):
        return torch.autograd.grad(function.apply(x).sum(), x)[0]

    found = []
    for function in kinds(base):
        for mode in ("real", "fake", "symbolic"):
            trace = make_fx(functools.partial(gradient, function), tracing_mode=mode)
            found.append(trace(torch.ones(3, requires_grad=True)).code)
    return found


@program
def program_is_traced_by_symbolic_trace(base):
    class Module(torch.nn.Module):
        def forward(self, x):
            return square(base).apply(x) + 1

    return str(torch.fx.symbolic_trace(Module()).graph)


@program
def program_is_traced_by_jit(base):
    function = square(base)
    graph = torch.jit.trace(lambda x: function.apply(x) + 1, torch.ones(2)).graph
    return [
        (n.kind(), n.pyname()) if n.kind() == "prim::PythonOp" else n.kind() for n in graph.nodes()
    ]


@program
def program_is_profiled(base):
    with profile(acc_events=True) as profiler:
        square(base).apply(leaf(3.0)).backward()
    return sorted({event.name for event in profiler.events() if "Square" in event.name})


@program
def anomaly_is_found(base):
    class Bad(base):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent * float("nan")

    with torch.autograd.set_detect_anomaly(True), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            Bad.apply(leaf(1.0)).backward()
        except RuntimeError as error:
            return str(error), ["Bad.apply(leaf(1.0))" in str(w.message) for w in caught]


@program
def traceback_ends_in_users_code(base):
    class Bad(base):
        @staticmethod
        def forward(ctx, x):
            raise ValueError("here")

    try:
        Bad.apply(leaf(1.0))
    except ValueError as error:
        frames = traceback.extract_tb(error.__traceback__)
    return frames[0].line, frames[-1].line, frames[-1].name


@program
def things_are_copied(base):
    function = square(base)
    y = function.apply(leaf(3.0))
    return (
        copy.deepcopy(function) is function,
        attempt(copy.deepcopy, y),
        copy.copy(y),
        attempt(pickle.dumps, y.grad_fn),
        attempt(pickle.dumps, function),
        pickle.loads(pickle.dumps(y)),
    )


# ---- where a program runs ----


@program
def calls_are_in_a_generator(base):
    def calls():
        x = leaf(3.0)
        with torch.no_grad():
            yield square(base).apply(x)
        yield square(base).apply(x)

    return list(calls())


@program
def calls_are_asynchronous(base):
    function = square(base)

    async def one(value):
        x = leaf(value)
        await asyncio.sleep(0)
        y = function.apply(x)
        await asyncio.sleep(0)
        y.backward()
        return x.grad

    async def every():
        return await asyncio.gather(*[one(float(i)) for i in range(5)])

    return asyncio.run(every())


@program
def calls_are_in_threads(base):
    function, found = doubled(base), {}

    def work(i):
        x = leaf(float(i))
        for _ in range(20):
            function.apply(x).backward()
        found[i] = x.grad

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [found[i] for i in range(4)]


@program
def argument_refers_to_the_output(base):
    """A module that passes itself and keeps the result is freed all the same."""

    class Called(base):
        @staticmethod
        def forward(ctx, x, module):
            ctx.save_for_backward(x * 2)
            return x * 2

        @staticmethod
        def backward(ctx, cotangent):
            return cotangent, None

    class Module(torch.nn.Module):
        def forward(self, x):
            self.last = Called.apply(x, self)
            return self.last

    module = Module()
    module(leaf(1.0))
    dead = weakref.ref(module)
    del module
    gc.collect()
    return dead() is None


@program
def state_is_left_alone(base):
    before = torch.get_rng_state()
    square(base).apply(leaf(3.0)).backward()
    return torch.equal(before, torch.get_rng_state()), torch.is_grad_enabled()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("run", PROGRAMS, ids=lambda run: run.__name__)
def test_program_has_the_same_outcome(run):
    assert outcome(run, pb.Function) == outcome(run, torch.autograd.Function)


# ---- what is ours alone ----


def test_function_is_a_torch_function():
    assert issubclass(pb.Function, torch.autograd.Function)
    assert type(pb.Function) is type(torch.autograd.Function)


def test_instance_warns_as_in_torch():
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        instance = square(pb.Function)()
    with pytest.raises(RuntimeError, match="Legacy autograd function"):
        instance(torch.ones(1))


def test_no_program_fails_on_torch():
    results = {run.__name__: outcome(run, torch.autograd.Function)[0] for run in PROGRAMS}

    assert [name for name, result in results.items() if result.endswith("Error")] == []
