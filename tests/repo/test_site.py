"""The site: every page is in its navigation, every link leads somewhere, on it and in the clone."""

import re
from pathlib import Path

import pytest
import yaml

from docs.site import SECTIONS, pages, title_of

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
READMES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```\s*?$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def named_in(nav):
    """The pages that a navigation names, at any depth."""
    for entry in nav:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from named_in(value)


def links_of(text):
    """The links of a page to other places of this repository."""
    links = LINK.findall(CODE.sub("", FENCE.sub("", text)))
    return [link for link in links if not re.match(r"[a-z]+:", link)]


def anchors_of(text):
    """The anchors that headings make, as Python-Markdown makes them."""
    headings = HEADING.findall(FENCE.sub("", text))
    plain = [re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in headings]
    return {re.sub(r"[-\s]+", "-", heading) for heading in plain}


def broken_in(path, root):
    """The links of a page that lead out of `root` or nowhere."""
    found = []
    for link in links_of(path.read_text("utf-8")):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        is_there = target.exists() and target.is_relative_to(root)
        if is_there and anchor:
            is_there = anchor in anchors_of(target.read_text("utf-8"))
        found += [] if is_there else [link]
    return found


def test_every_page_is_in_navigation():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]

    assert sorted(named_in(nav)) == [path.relative_to(DOCS).as_posix() for path in PAGES]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_links_of_page_stay_on_site(path):
    assert broken_in(path, DOCS) == []


@pytest.mark.parametrize("path", READMES, ids=lambda path: path.stem)
def test_links_of_readme_lead_somewhere(path):
    assert links_of(path.read_text("utf-8"))
    assert broken_in(path, ROOT) == []


def test_ordered_pages_are_there():
    ordered = [name for names in SECTIONS.values() for name in names]

    assert [path.stem for path in pages()][: len(ordered)] == ordered


# ---- the readers themselves ----


def test_nested_navigation_is_read():
    assert [*named_in([{"A": "a.md"}, {"B": [{"C": "b/c.md"}]}])] == ["a.md", "b/c.md"]


def test_code_is_not_searched_for_links():
    text = "[a](a.md) `x[0](y)` [b](https://b)\n```\n[c](c.md)\n```\n[d](#d)\n"

    assert links_of(text) == ["a.md", "#d"]


def test_planted_broken_links_are_found(tmp_path):
    (tmp_path / "other.md").write_text("# Two words: `code`\n")
    page = tmp_path / "page.md"
    page.write_text("[a](other.md#two-words-code) [b](other.md#no) [c](none.md) [d](../out.md)\n")
    (tmp_path.parent / "out.md").touch()

    assert broken_in(page, tmp_path) == ["other.md#no", "none.md", "../out.md"]


def test_title_ends_at_the_colon(tmp_path):
    (tmp_path / "page.md").write_text("\n# Emit: `files`\n\n## More\n")

    assert title_of(tmp_path / "page.md") == "Emit"
