"""Who catches any exception and says nothing of it says beside it why."""

import ast

import pytest

from tests.repo.figures import PACKAGE, parsed

ANY = {"Exception", "BaseException"}


def catches_any(handler):
    """Whether a handler takes any exception."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or getattr(kind, "id", "") in ANY for kind in kinds)


def silent_handlers(text):
    """The lines of handlers of any exception that drop it, with no comment in or above them."""
    lines = text.splitlines()
    for handler in ast.walk(parsed(text)):
        if not isinstance(handler, ast.ExceptHandler) or not catches_any(handler):
            continue
        inside = [node for statement in handler.body for node in ast.walk(statement)]
        is_used = any(
            isinstance(node, ast.Raise) or (isinstance(node, ast.Name) and node.id == handler.name)
            for node in inside
        )
        around = lines[handler.lineno - 2 : handler.end_lineno]
        if not is_used and not any("#" in line for line in around):
            yield handler.lineno


def test_silent_handler_has_its_reason():
    paths = sorted(PACKAGE.rglob("*.py"))
    found = [(path, line) for path in paths for line in silent_handlers(path.read_text("utf-8"))]

    assert [f"{path.relative_to(PACKAGE)}:{line}" for path, line in found] == []


@pytest.mark.parametrize(
    ("handler", "is_silent"),
    [
        ("except Exception:\n    pass", True),
        ("except (ValueError, BaseException) as e:\n    x = 1", True),
        ("except:\n    pass", True),
        ("except Exception:  # the reason\n    pass", False),
        ("except Exception:\n    raise", False),
        ("except Exception as e:\n    print(e)", False),
        ("except ValueError:\n    pass", False),
    ],
)
def test_silence_is_seen(handler, is_silent):
    assert bool(list(silent_handlers(f"try:\n    f()\n{handler}\n"))) == is_silent
