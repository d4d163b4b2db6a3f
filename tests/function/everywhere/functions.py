"""The custom Functions that every test of this folder runs, one entry for each way to write one.

`make(base)` builds the same text on `torch.autograd.Function` and on `pullback.Function`;
`reference` computes the same values and gradients with plain torch operations.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Call = Callable[..., Any]


@dataclass(frozen=True)
class Entry:
    """One custom Function, what it must equal, and what it is written to support.

    Attributes
    ----------
    make
        Builds the Function class on the base it is given.
    reference
        The same function of the tensors in plain torch operations.
    tensors
        The differentiable inputs for a number of rows.
    call
        How the class is applied to the tensors; adds what is not a tensor.
    transforms, vmaps, pushes
        Written for `torch.func`, with a batching rule, with a `jvp`.
    keeps_intermediate
        Saves a tensor that is neither input nor output.
    exact
        Its backward is the derivative of its forward, not another one on purpose.
    saves
        Keeps a tensor from forward to backward.
    retains
        Can run backward again on a retained graph.
    traceable
        Lets the compilers in, so that it can be in one graph with the code around it.
    ours
        Uses names which only `pullback.Function` has.
    """

    make: Callable[[type], type]
    reference: Call
    tensors: Callable[[int], tuple[Tensor, ...]]
    call: Callable[[type], Call] = field(default=lambda function: function.apply)
    transforms: bool = False
    vmaps: bool = False
    pushes: bool = False
    keeps_intermediate: bool = False
    exact: bool = True
    saves: bool = True
    retains: bool = True
    traceable: bool = True
    ours: bool = False

    def build(self, base: type) -> Call:
        """The Function built on `base`, as a function of the tensors alone."""
        return self.call(self.make(base))


def wave(*shape: int, start: float = 0.3) -> Tensor:
    """Distinct float64 values between 0.25 and 1.75, away from zero and from each other."""
    steps = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (1 + 0.75 * torch.sin(start + 2.399963 * steps)).reshape(shape)


def one(rows: int) -> tuple[Tensor, ...]:
    return (wave(rows, 4),)


def two(rows: int) -> tuple[Tensor, ...]:
    return wave(rows, 4), wave(rows, 4, start=1.1)


def layer(rows: int) -> tuple[Tensor, ...]:
    return wave(rows, 4), wave(4, 2, start=1.1)


def saves_input(base: type) -> type:
    class Square(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    return Square


def saves_output(base: type) -> type:
    class Sigmoid(base):
        @staticmethod
        def forward(ctx, x):
            y = torch.sigmoid(x)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, grad):
            (y,) = ctx.saved_tensors
            return grad * y * (1 - y)

    return Sigmoid


def saves_intermediate(base: type) -> type:
    class Silu(base):
        @staticmethod
        def forward(ctx, x):
            gate = torch.sigmoid(x)
            ctx.save_for_backward(x, gate)
            return x * gate

        @staticmethod
        def backward(ctx, grad):
            x, gate = ctx.saved_tensors
            return grad * gate * (1 + x * (1 - gate))

    return Silu


def keeps_input_on_ctx(base: type) -> type:
    class Sine(base):
        @staticmethod
        def forward(ctx, x):
            ctx.x = x
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.x.cos()

    return Sine


def keeps_intermediate_on_ctx(base: type) -> type:
    class Sine(base):
        @staticmethod
        def forward(ctx, x):
            ctx.slope = x.cos()
            return x.sin()

        @staticmethod
        def backward(ctx, grad):
            return grad * ctx.slope

    return Sine


def writes_in_place(base: type) -> type:
    class Scale(base):
        @staticmethod
        def forward(ctx, x, y):
            ctx.mark_dirty(x)
            ctx.save_for_backward(y)
            x.mul_(3).add_(y.exp())
            return x

        @staticmethod
        def backward(ctx, grad):
            (y,) = ctx.saved_tensors
            return 3 * grad, grad * y.exp()

    return Scale


def writes_in_place_with_rules(base: type) -> type:
    class Exp(base):
        @staticmethod
        def forward(x):
            return x.exp_()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_dirty(inputs[0])
            ctx.save_for_backward(output)
            ctx.save_for_forward(output)

        @staticmethod
        def backward(ctx, grad):
            (y,) = ctx.saved_tensors
            return grad * y

        @staticmethod
        def jvp(ctx, tangent):
            (y,) = ctx.saved_tensors
            return tangent.mul_(y)

        @staticmethod
        def vmap(info, in_dims, x):
            return Exp.apply(x), in_dims[0]

    return Exp


def on_a_copy(function: type) -> Call:
    return lambda x, *rest: function.apply(x.clone(), *rest)


def takes_numbers_and_none(base: type) -> type:
    class Affine(base):
        @staticmethod
        def forward(ctx, x, weight, bias, power, mode):
            ctx.save_for_backward(x, weight, bias)
            ctx.power, ctx.mode = power, mode
            y = x.pow(power) @ weight
            if bias is not None:
                y = y + bias
            return y.neg() if mode == "minus" else y

        @staticmethod
        def backward(ctx, grad):
            x, weight, bias = ctx.saved_tensors
            if ctx.mode == "minus":
                grad = grad.neg()
            inner = grad @ weight.t()
            of_x = inner * ctx.power * x.pow(ctx.power - 1) if ctx.needs_input_grad[0] else None
            of_weight = x.pow(ctx.power).t() @ grad if ctx.needs_input_grad[1] else None
            of_bias = grad.sum(0) if bias is not None and ctx.needs_input_grad[2] else None
            return of_x, of_weight, of_bias, None, None

    return Affine


def takes_keywords(base: type) -> type:
    class Power(base):
        @staticmethod
        def forward(ctx, x, factor=2.0, power=3):
            ctx.save_for_backward(x)
            ctx.factor, ctx.power = factor, power
            return factor * x**power

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * ctx.factor * ctx.power * x ** (ctx.power - 1), None, None

    return Power


def takes_defaults(base: type) -> type:
    class Power(base):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, factor=2.0, power=3):
            return factor * x**power

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, ctx.factor, ctx.power = inputs
            ctx.save_for_backward(x)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * ctx.factor * ctx.power * x ** (ctx.power - 1), None, None

    return Power


def sets_up_context(base: type) -> type:
    class SineProduct(base):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, y):
            return x.sin() * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, grad):
            x, y = ctx.saved_tensors
            of_x = grad * x.cos() * y if ctx.needs_input_grad[0] else None
            of_y = grad * x.sin() if ctx.needs_input_grad[1] else None
            return of_x, of_y

    return SineProduct


def adds_a_jvp(base: type) -> type:
    class Pushed(sets_up_context(base)):
        @staticmethod
        def jvp(ctx, of_x, of_y):
            x, y = ctx.saved_tensors
            return of_x * x.cos() * y + of_y * x.sin()

    return Pushed


def writes_its_rules(base: type) -> type:
    class Tanh(base):
        @staticmethod
        def forward(x):
            return x.tanh()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output)
            ctx.save_for_forward(output)

        @staticmethod
        def backward(ctx, grad):
            (y,) = ctx.saved_tensors
            return grad * (1 - y * y)

        @staticmethod
        def jvp(ctx, tangent):
            (y,) = ctx.saved_tensors
            return tangent * (1 - y * y)

        @staticmethod
        def vmap(info, in_dims, x):
            return Tanh.apply(x.movedim(in_dims[0], 0)), 0

    return Tanh


def returns_indices(base: type) -> type:
    class Sort(base):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, dim):
            order = x.argsort(dim)
            return x.gather(dim, order), order

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.dim = inputs[1]
            ctx.mark_non_differentiable(output[1])
            ctx.save_for_backward(output[1])
            ctx.save_for_forward(output[1])

        @staticmethod
        def backward(ctx, grad, _):
            (order,) = ctx.saved_tensors
            return grad.gather(ctx.dim, order.argsort(ctx.dim)), None

    return Sort


def returns_indices_with_jvp(base: type) -> type:
    class Pushed(returns_indices(base)):
        @staticmethod
        def jvp(ctx, tangent, _):
            (order,) = ctx.saved_tensors
            return tangent.gather(ctx.dim, order), None

    return Pushed


def returns_several(base: type) -> type:
    class Polar(base):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            ctx.set_materialize_grads(False)
            return x * y.cos(), x * y.sin(), (x > 1).sum()

        @staticmethod
        def backward(ctx, along, across, _):
            x, y = ctx.saved_tensors
            along = torch.zeros_like(x) if along is None else along
            across = torch.zeros_like(x) if across is None else across
            return along * y.cos() + across * y.sin(), x * (across * y.cos() - along * y.sin())

    return Polar


def tells_none_from_zeros(base: type) -> type:
    class Two(base):
        @staticmethod
        def forward(ctx, x):
            ctx.set_materialize_grads(False)
            return 2 * x, 3 * x

        @staticmethod
        def backward(ctx, of_first, of_second):
            return 7 * of_first if of_second is None else 2 * of_first + 3 * of_second

    return Two


def returns_a_number(base: type) -> type:
    class Rows(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3, x.dim()

        @staticmethod
        def backward(ctx, grad, _):
            (x,) = ctx.saved_tensors
            return 3 * x * x * grad

    return Rows


def bends_the_gradient(base: type) -> type:
    class Bend(base):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, scale):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.scale = inputs[1]

        @staticmethod
        def backward(ctx, grad):
            return ctx.scale * grad, None

    return Bend


def bends_the_tangent(base: type) -> type:
    class Pushed(bends_the_gradient(base)):
        @staticmethod
        def jvp(ctx, tangent, _):
            return ctx.scale * tangent

    return Pushed


def bent(x: Tensor) -> Tensor:
    return x.detach() + 2.5 * (x - x.detach())


def returns_its_input(base: type) -> type:
    class Keep(base):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(y)
            return x, y * y

        @staticmethod
        def backward(ctx, of_x, of_square):
            (y,) = ctx.saved_tensors
            return of_x, 2 * y * of_square

    return Keep


def is_a_grandchild(base: type) -> type:
    class Parent(base):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.log()

        @staticmethod
        def backward(ctx, grad):
            raise AssertionError("the child's backward must run")

    class Child(Parent):
        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad / x

    class Grandchild(Child):
        @staticmethod
        def forward(ctx, x):
            return Parent.forward(ctx, x)

    return Grandchild


def calls_parents_backward(base: type) -> type:
    parent = saves_input(base)

    class Doubled(parent):
        @staticmethod
        def forward(ctx, x):
            return 2 * parent.forward(ctx, x)

        @staticmethod
        def backward(ctx, grad):
            return 2 * parent.backward(ctx, grad)

    return Doubled


def reads_class_attribute(base: type) -> type:
    class Scaled(base):
        rate = 1.0

        @classmethod
        def slope(cls, x):
            return cls.rate * x.exp()

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return Twice.slope(x)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * Twice.slope(x)

    class Twice(Scaled):
        rate = 2.0

    return Twice


def names_it_vjp(base: type) -> type:
    class Cube(base):
        generate_vmap_rule = True

        @staticmethod
        def forward(x):
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def vjp(ctx, grad):
            (x,) = ctx.saved_tensors
            return 3 * x * x * grad

    return Cube


def applies_another(base: type) -> type:
    inner = saves_input(base)

    class Outer(base):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return inner.apply(x) * y

        @staticmethod
        def backward(ctx, grad):
            x, y = ctx.saved_tensors
            return 2 * x * y * grad, inner.apply(x) * grad

    return Outer


def applies_another_with_rules(base: type) -> type:
    inner = sets_up_context(base)

    class Outer(base):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, y):
            return inner.apply(x, y) + x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, grad):
            x, y = ctx.saved_tensors
            return inner.apply(x + torch.pi / 2, y) * grad + grad, x.sin() * grad

    return Outer


def takes_boxed_gradients(base: type) -> type:
    class Product(base):
        boxed_grads_call = True

        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y, x + y

        @staticmethod
        def backward(ctx, grads):
            of_product, of_sum = grads
            grads.clear()
            x, y = ctx.saved_tensors
            return of_product * y + of_sum, of_product * x + of_sum

    return Product


def clears_saved_on_access(base: type) -> type:
    class Product(base):
        clear_saved_tensors_on_access = True

        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, grad):
            x, y = ctx.saved_tensors
            return grad * y, grad * x

    return Product


def is_traceable(base: type) -> type:
    class Erf(base):
        is_traceable = True

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.erf()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * (2 / torch.pi**0.5) * (-x * x).exp()

    return Erf


def is_opaque(base: type) -> type:
    class Erf(base):
        is_traceable = False

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.erf()

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * (2 / torch.pi**0.5) * (-x * x).exp()

    return Erf


def is_opaque_with_rules(base: type) -> type:
    class Erf(base):
        is_traceable = False
        generate_vmap_rule = True

        @staticmethod
        def forward(x, scale):
            return scale * x.erf()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.scale = inputs[1]
            ctx.save_for_backward(inputs[0])

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return ctx.scale * grad * (2 / torch.pi**0.5) * (-x * x).exp(), None

    return Erf


def uses_cpp_names(base: type) -> type:
    class Product(base):
        @staticmethod
        def forward(ctx, x, power, y):
            ctx.saved_data["power"] = power
            ctx.save_for_backward(x, y)
            return x**power * y

        @staticmethod
        def backward(ctx, grad):
            x, y = ctx.get_saved_variables()
            power = ctx.saved_data["power"]
            of_x = grad * power * x ** (power - 1) * y if ctx.needs_input_grad(0) else None
            of_y = grad * x**power if ctx.needs_input_grad([(1, 2)]) else None
            return of_x, None, of_y

    return Product


def returns_a_mapping(base: type) -> type:
    class Product(base):
        @staticmethod
        def forward(ctx, x, power, y):
            ctx.save_for_backward(x, y)
            ctx.power = power
            return x**power * y

        @staticmethod
        def backward(ctx, grad):
            x, y = ctx.saved_tensors
            return {
                "y": grad * x**ctx.power,
                "x": grad * ctx.power * x ** (ctx.power - 1) * y,
            }

    return Product


def returns_a_mapping_with_rules(base: type) -> type:
    class Product(base):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, power, y):
            return x**power * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, ctx.power, y = inputs
            ctx.save_for_backward(x, y)

        @staticmethod
        def backward(ctx, grad):
            x, y = ctx.saved_tensors
            return {
                "y": grad * x**ctx.power,
                "x": grad * ctx.power * x ** (ctx.power - 1) * y,
            }

    return Product


def cubed_product(x: Tensor, y: Tensor) -> Tensor:
    return x**3 * y


RULES = {"transforms": True, "vmaps": True}
ALL_RULES = {**RULES, "pushes": True}

ENTRIES = {
    "saves-input": Entry(saves_input, lambda x: x * x, one),
    "saves-output": Entry(saves_output, torch.sigmoid, one),
    "saves-intermediate": Entry(
        saves_intermediate, lambda x: x * torch.sigmoid(x), one, keeps_intermediate=True
    ),
    "keeps-input-on-ctx": Entry(keeps_input_on_ctx, torch.sin, one),
    "keeps-intermediate-on-ctx": Entry(
        keeps_intermediate_on_ctx, torch.sin, one, keeps_intermediate=True
    ),
    "writes-in-place": Entry(writes_in_place, lambda x, y: 3 * x + y.exp(), two, call=on_a_copy),
    "writes-in-place-with-rules": Entry(
        writes_in_place_with_rules, torch.exp, one, call=on_a_copy, **ALL_RULES
    ),
    "takes-numbers-and-none": Entry(
        takes_numbers_and_none,
        lambda x, weight: -(x**2 @ weight),
        layer,
        call=lambda function: lambda x, w: function.apply(x, w, None, 2, "minus"),
    ),
    "takes-optional-tensor": Entry(
        takes_numbers_and_none,
        lambda x, weight, bias: x**3 @ weight + bias,
        lambda rows: (*layer(rows), wave(2, start=2.0)),
        call=lambda function: lambda x, w, b: function.apply(x, w, b, 3, "plus"),
    ),
    "takes-keywords": Entry(
        takes_keywords,
        lambda x: 1.5 * x**3,
        one,
        call=lambda function: lambda x: function.apply(x, factor=1.5),
    ),
    "takes-later-keyword": Entry(
        takes_keywords,
        lambda x: 2 * x**4,
        one,
        call=lambda function: lambda x: function.apply(x, power=4),
        ours=True,
    ),
    "takes-defaults": Entry(takes_defaults, lambda x: 2 * x**3, one, **RULES),
    "takes-defaults-and-keyword": Entry(
        takes_defaults,
        lambda x: 2 * x**4,
        one,
        call=lambda function: lambda x: function.apply(x, power=4),
        **RULES,
    ),
    "sets-up-context": Entry(sets_up_context, lambda x, y: x.sin() * y, two, **RULES),
    "adds-a-jvp": Entry(adds_a_jvp, lambda x, y: x.sin() * y, two, **ALL_RULES),
    "writes-its-rules": Entry(writes_its_rules, torch.tanh, one, **ALL_RULES),
    "returns-indices": Entry(
        returns_indices,
        lambda x: tuple(x.sort(-1)),
        one,
        call=lambda function: lambda x: function.apply(x, -1),
        **RULES,
    ),
    "returns-indices-with-jvp": Entry(
        returns_indices_with_jvp,
        lambda x: tuple(x.sort(-1)),
        one,
        call=lambda function: lambda x: function.apply(x, -1),
        **ALL_RULES,
    ),
    "returns-several": Entry(
        returns_several, lambda x, y: (x * y.cos(), x * y.sin(), (x > 1).sum()), two
    ),
    "leaves-an-output-unused": Entry(
        returns_several,
        lambda x, y: x * y.sin(),
        two,
        call=lambda function: lambda x, y: function.apply(x, y)[1],
    ),
    "tells-none-from-zeros": Entry(
        tells_none_from_zeros,
        lambda x: 2 * x.detach() + 7 * (x - x.detach()),
        one,
        call=lambda function: lambda x: function.apply(x)[0],
        exact=False,
        saves=False,
    ),
    "returns-a-number": Entry(returns_a_number, lambda x: (x**3, 2), one),
    "returns-its-input": Entry(returns_its_input, lambda x, y: (x.view_as(x), y * y), two),
    "bends-the-gradient": Entry(
        bends_the_gradient,
        bent,
        one,
        call=lambda function: lambda x: function.apply(x, 2.5),
        exact=False,
        saves=False,
        **RULES,
    ),
    "bends-the-tangent": Entry(
        bends_the_tangent,
        bent,
        one,
        call=lambda function: lambda x: function.apply(x, 2.5),
        exact=False,
        saves=False,
        **ALL_RULES,
    ),
    "is-a-grandchild": Entry(is_a_grandchild, torch.log, one),
    "calls-parents-backward": Entry(calls_parents_backward, lambda x: 2 * x * x, one),
    "reads-class-attribute": Entry(reads_class_attribute, lambda x: 2 * x.exp(), one),
    "names-it-vjp": Entry(names_it_vjp, lambda x: x**3, one, **RULES),
    "applies-another": Entry(applies_another, lambda x, y: x * x * y, two),
    "applies-another-with-rules": Entry(
        applies_another_with_rules, lambda x, y: x.sin() * y + x, two, **RULES
    ),
    "is-traceable": Entry(is_traceable, torch.erf, one),
    "is-opaque": Entry(is_opaque, torch.erf, one, traceable=False),
    "is-opaque-with-rules": Entry(
        is_opaque_with_rules,
        lambda x: 1.5 * torch.erf(x),
        one,
        call=lambda function: lambda x: function.apply(x, 1.5),
        traceable=False,
        **RULES,
    ),
    "uses-cpp-names": Entry(
        uses_cpp_names,
        cubed_product,
        two,
        call=lambda function: lambda x, y: function.apply(x, 3, y),
        ours=True,
    ),
    "returns-a-mapping": Entry(
        returns_a_mapping,
        cubed_product,
        two,
        call=lambda function: lambda x, y: function.apply(x, 3, y),
        ours=True,
    ),
    "returns-a-mapping-with-rules": Entry(
        returns_a_mapping_with_rules,
        cubed_product,
        two,
        call=lambda function: lambda x, y: function.apply(x, 3, y),
        ours=True,
        **RULES,
    ),
}

if hasattr(torch.autograd.Function, "boxed_grads_call"):
    ENTRIES["takes-boxed-gradients"] = Entry(
        takes_boxed_gradients, lambda x, y: (x * y, x + y), two
    )

if hasattr(torch.autograd.Function, "clear_saved_tensors_on_access"):
    ENTRIES["clears-saved-on-access"] = Entry(
        clears_saved_on_access, lambda x, y: x * y, two, retains=False
    )
