"""Lines that are too long, broken."""

from pullback.triton_codegen.wrapping import wrapped_line, wrapped_signature


def test_long_lines_are_wrapped_at_their_call():
    line = (
        "    total = tl.load(" + ", ".join(f"argument_{i}" for i in range(12)) + ").to(tl.float32)"
    )

    first, *_, last = wrapped_line(line)

    assert first == "    total = tl.load("
    assert last == "    ).to(tl.float32)"


def test_short_lines_stay():
    assert wrapped_line("x = tl.load(x_ptr)") == ["x = tl.load(x_ptr)"]
    assert wrapped_signature("run(", ["x", "y"], ")") == ["run(x, y)"]


def test_arguments_fill_their_lines():
    names = [f"argument_{i}" for i in range(12)]

    first, *rows, last = wrapped_signature("run(", names, "):")

    assert (first, last) == ("run(", "):")
    assert len(rows) == 2
    assert " ".join(row.strip() for row in rows) == ", ".join(names) + ","
