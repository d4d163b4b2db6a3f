"""Arguments and targets as Python that somebody else can run: literals, layouts, imports."""

from __future__ import annotations

import contextlib
import sys
import sysconfig
from keyword import iskeyword
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from pullback.check.target.registration import body_of, near, overload_of, place_of

if TYPE_CHECKING:
    from pullback.check.target.target import Target

LARGEST = 32  # elements of a tensor that are spelled out


class UnspeakableError(Exception):
    """A value has no short spelling."""


# ---- values ----


def spelled(value: Any) -> str:
    """An expression that gives `value`, or `UnspeakableError`."""
    if isinstance(value, Tensor):
        return _tensor(value)
    if isinstance(value, float) and value != value:
        return 'float("nan")'
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return f'float("{value}")'
    if value is None or isinstance(value, (bool, int, float, complex, str)):
        return repr(value)
    if isinstance(value, torch.dtype):
        return str(value)
    if type(value) is list:
        return f"[{', '.join(spelled(item) for item in value)}]"
    if type(value) is tuple:
        inner = ", ".join(spelled(item) for item in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    raise UnspeakableError(type(value).__name__)


def _tensor(tensor: Tensor) -> str:
    if type(tensor) is not Tensor and type(tensor) is not torch.nn.Parameter:
        raise UnspeakableError(type(tensor).__name__)
    tensor = tensor.detach()
    if tensor.layout != torch.strided or tensor.is_neg() or tensor.device.type != "cpu":
        raise UnspeakableError("of another layout or device")
    if tensor.is_conj():
        return f"{_tensor(tensor.conj())}.conj()"
    count = tensor.numel()
    dtype = "" if tensor.dtype in (torch.float32, torch.int64, torch.bool) else tensor.dtype
    kind = f", dtype={dtype}" if dtype else ""
    if count == 0:
        return f"torch.zeros({tuple(tensor.shape)}, dtype={tensor.dtype})"
    if not tensor.is_contiguous() or tensor.storage_offset():
        return _view(tensor, kind)
    flat = tensor.flatten()
    if count > 1 and bool((flat == flat[0]).all()):
        return f"torch.full({tuple(tensor.shape)}, {spelled(flat[0].item())}{kind})"
    if count > (LARGEST if tensor.is_floating_point() or tensor.is_complex() else 2 * LARGEST):
        raise UnspeakableError(f"{count} elements")
    return f"torch.tensor({_nested(tensor)}{kind})"


def _view(tensor: Tensor, kind: str) -> str:
    """A tensor in its layout: the storage, and how it is looked at."""
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    if size > 2 * LARGEST:
        raise UnspeakableError(f"{size} elements")
    memory = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        tensor.untyped_storage(), 0, (size,), (1,)
    )
    where = f", {tensor.storage_offset()}" if tensor.storage_offset() else ""
    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    return f"torch.tensor({_nested(memory)}{kind}).as_strided({shape}, {strides}{where})"


def _nested(tensor: Tensor) -> str:
    if tensor.dim() == 0:
        return _number(tensor)
    return f"[{', '.join(_nested(part) for part in tensor)}]"


def _number(tensor: Tensor) -> str:
    """The shortest decimals that give the very same number in its dtype."""
    value = tensor.item()
    if not isinstance(value, float) or value != value or abs(value) == float("inf"):
        return spelled(value)
    for digits in (3, 5, 7, 9):
        short = float(f"{value:.{digits}g}")
        if bool(torch.tensor(short, dtype=tensor.dtype) == tensor):
            return repr(short)
    return repr(value)


# ---- targets ----


def imported(target: Target) -> tuple[str, str]:
    """The lines that bring `target` in, and the expression to call it by."""
    call = ".apply" if target.is_function else ""
    if target.is_op and (body := _module_with(target.thing)) is not None:
        whole = _whole_name(sys.modules[body.__module__])
        lines = [*_path(body, whole), _import(whole)]
        return "\n".join(lines), f"torch.ops.{overload_of(target.thing)}"
    if type(target.thing).__name__ in ("OpOverload", "OpOverloadPacket"):
        paths = _libraries_of(str(target.thing))
        loads = [f'torch.ops.load_library("{near(path)}")' for path in paths]
        return "\n".join(sorted(loads)), f"torch.ops.{target.thing}"
    thing = target.function if target.is_function else target.thing
    module, name = _whereabouts(thing)
    if not module:
        place = place_of(thing)
        lost = f"# `{target.name}` ({place or 'no file'}) is no name of a module: put it here"
        return lost, f"{target.name.rpartition('.')[2]}{call}"
    return "\n".join([*_path(thing, module), _import(module, name)]), f"{name}{call}"


def _import(module: str, name: str = "") -> str:
    """The lines that import `name`; the file of a module may be called what no module can be."""
    if all(part.isidentifier() and not iskeyword(part) for part in module.split(".")):
        return f"from {module} import {name}" if name else f"import {module}"
    found = f"importlib.import_module({module!r})"
    return f"import importlib\n{name} = {found}.{name}" if name else f"import importlib\n{found}"


def _module_with(op: Any) -> Any:
    """The body of an op that is made in Python, if importing its module registers the op."""
    body = body_of(op)
    module = sys.modules.get(getattr(body, "__module__", "") or "")
    return body if getattr(module, "__file__", None) else None


def _libraries_of(op: str) -> list[str]:
    """Of the libraries that are loaded, those that hold the names of an op; else all of them."""
    space, name = (part.encode() for part in op.split(".")[:2])
    loaded = sorted(map(str, torch.ops.loaded_libraries))
    found = []
    for path in loaded:
        with contextlib.suppress(OSError):
            content = Path(path).read_bytes()
            found += [path] if space in content and name in content else []
    return found or loaded


def _whereabouts(thing: Any) -> tuple[str, str]:
    """The module and the name under which `thing` can be imported; empty where it cannot."""
    module = sys.modules.get(getattr(thing, "__module__", "") or "")
    if module is None:
        return "", ""
    names = [n for n, v in vars(module).items() if v is thing and n.isidentifier()]
    file = getattr(module, "__file__", None)
    if not names or not file:
        return "", ""
    return _whole_name(module), names[0]


def _whole_name(module: Any) -> str:
    """The name by which another program imports a module that has a file."""
    if module.__name__ != "__main__":
        return str(module.__name__)
    spec = getattr(module, "__spec__", None)
    return spec.name if spec else Path(module.__file__).stem


def _path(thing: Any, module: str) -> list[str]:
    """The lines that let Python find `module`; none where it is installed."""
    file = Path(str(sys.modules[thing.__module__].__file__)).resolve()
    depth = module.count(".") + (file.name == "__init__.py")
    root = file.parents[depth]
    installed = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    if any(path == root or path in root.parents for path in installed):
        return []
    return ["import sys", f'sys.path.insert(0, "{Path(near(str(root))).as_posix()}")']
