"""Generated pages are what the code says today."""

import pytest

from docs import generate


@pytest.mark.parametrize(("path", "text"), list(generate.pages()), ids=lambda value: "")
def test_generated_page_is_up_to_date(path, text):
    assert path.read_text("utf-8") == text, "run: python -m docs.generate"


def test_every_error_has_a_page():
    page = generate.errors_page()

    assert all(f"## {cls.code} {cls.name}" in page for cls in generate.error_classes())
    assert len(generate.error_classes()) > 15


def test_every_rule_has_a_page():
    names = {path.name for path in (generate.HERE / "rules").glob("*.md")}

    assert names == {"README.md", *(f"{r.rule.name}.md" for r in generate.own_rules())}


def test_index_lists_every_rule():
    index = generate.rules_index()

    assert len(generate.own_rules()) > 40
    assert all(f"| [{r.rule.code} {r.rule.name}]" in index for r in generate.own_rules())


def test_page_of_rule_keeps_its_sections():
    page = "It must hold.\n\nWhat it checks\n    This.\n\n    That.\n\nFails\n    return g\n"

    assert list(generate.sections_of(page)) == [
        ("What it checks", "This.\n\nThat."),
        ("Fails", "return g"),
    ]
