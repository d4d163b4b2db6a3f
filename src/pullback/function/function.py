"""`Function`: write a forward and a backward, call `apply`.

A drop-in for `torch.autograd.Function`, and a subclass of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from torch.autograd.function import Function as TorchFunction

from pullback.function import dispatch
from pullback.function.info import FunctionInfo
from pullback.function.signature import forward_signature, has_setup_context
from pullback.function.slots import SeenMeta, be_seen, hidden_from_dynamo
from pullback.function.translation import translated
from pullback.function.unwritten import lacks_backward, leaves_some


class Function(TorchFunction):
    """Base class of custom differentiable functions: the whole documented contract, traps closed.

    Define `forward(ctx, *args)` and `backward(ctx, *cotangents)` as static methods and call
    `YourFunction.apply(*args)`; or `forward(*args)` with `setup_context(ctx, inputs, output)`.
    `ctx` is a `pullback.AutogradContext`. `backward` returns one gradient per input, as a tuple or
    as a mapping from input name to gradient; `pullback.derived` stands for one that is derived
    from `forward`, and without a `backward` all are.

    Class attributes:
        is_traceable: whether `torch.compile` and compiled autograd may trace through the methods.
            False makes each call one opaque node, at the price of a graph break.
        traverse_lists: whether a list or tuple of tensors given to `apply` is taken apart, so that
            each element is an input. `backward` then returns a list in that place.

    >>> import torch
    >>> class Square(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         ctx.save_for_backward(x)
    ...         return x * x
    ...
    ...     @staticmethod
    ...     def backward(ctx, cotangent):
    ...         (x,) = ctx.saved_tensors
    ...         return {"x": 2 * x * cotangent}
    >>> x = torch.tensor(3.0, requires_grad=True)
    >>> Square.apply(x).backward()
    >>> x.grad
    tensor(6.)
    """

    is_traceable: ClassVar[bool] = True
    traverse_lists: ClassVar[bool] = False

    _pb_info: ClassVar[FunctionInfo | None] = None
    _pb_is_base: ClassVar[bool] = True
    _pb_parameters: ClassVar[tuple[Any, ...]] = ()

    apply = dispatch.apply

    if TYPE_CHECKING:
        # Type checkers take any signature for these: PyTorch declares some that no Function has.
        @staticmethod
        def backward(*args: Any, **kwargs: Any) -> Any: ...
        @staticmethod
        def jvp(*args: Any, **kwargs: Any) -> Any: ...
        @staticmethod
        def vmap(*args: Any, **kwargs: Any) -> Any: ...

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)  # users mix in bases of their own
        cls._pb_info = None
        if cls.forward is TorchFunction.forward:
            return
        for name, method in translated(cls, forward_signature(cls)).items():
            setattr(cls, name, method)
        if not cls.is_traceable or cls.traverse_lists or leaves_some(cls):
            _hide(cls)
        cls._pb_choose_apply()

    @classmethod
    def _pb_choose_apply(cls) -> None:
        """Take the `apply` that fits: without `backward`, Dynamo is to trace `forward` itself."""
        if getattr(cls.apply, "__func__", None) not in dispatch.OURS:
            return  # the user's own
        hides = not cls.is_traceable or cls.traverse_lists
        is_plain = lacks_backward(cls) and not hides
        if is_plain:
            signature = forward_signature(cls)
            cls._pb_parameters = (
                signature.names,
                signature.defaults,
                signature.keyword_only,
                signature.has_setup,
            )
        if is_plain or "apply" in vars(cls) or type(cls) is SeenMeta:
            cls.apply = dispatch.apply_plainly if is_plain else dispatch.apply
            be_seen(cls, seen=is_plain)


def _hide(cls: Any) -> None:
    """Keep the compiler out of `cls`: it breaks its graph at each call of `apply`."""
    names = ["forward", "setup_context"] if has_setup_context(cls) else ["forward"]
    for name in names:
        method = getattr(cls, name)

        def opaque(*args: Any, _method: Any = method, **kwargs: Any) -> Any:
            return _method(*args, **kwargs)

        opaque.__wrapped__ = method  # type: ignore[attr-defined]
        setattr(cls, name, staticmethod(hidden_from_dynamo(opaque)))
