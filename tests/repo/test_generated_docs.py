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
