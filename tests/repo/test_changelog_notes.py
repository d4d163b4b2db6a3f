"""The notes of a release are made of the entries, once, and stand above those before."""

from docs.changelog import notes, release


def entry(folder, name, text):
    (folder / "changelog.d").mkdir(exist_ok=True)
    (folder / "changelog.d" / name).write_text(text)


def test_notes_have_every_kind_newest_first(tmp_path):
    entry(tmp_path, "1.added.md", "One\nis there.\n")
    entry(tmp_path, "12.added.md", "Twelve is there.\n")
    entry(tmp_path, "3.fixed.md", "Three works.\n")
    entry(tmp_path, "README.md", "no entry")

    text = notes(tmp_path / "changelog.d", "0.2.0", "2026-01-02")

    assert text == (
        "## 0.2.0 (2026-01-02)\n\n### Added\n\n- Twelve is there.\n- One is there.\n\n"
        "### Fixed\n\n- Three works.\n"
    )


def test_release_adds_to_the_file_and_empties_the_folder(tmp_path):
    entry(tmp_path, "1.added.md", "One is there.")
    entry(tmp_path, "README.md", "no entry")
    release(tmp_path, "0.1.0", "2026-01-01")
    entry(tmp_path, "2.fixed.md", "Two works.")

    text = release(tmp_path, "0.2.0", "2026-01-02").read_text()

    assert text.startswith("# Changelog\n\n## 0.2.0")
    assert text.index("Two works.") < text.index("## 0.1.0") < text.index("One is there.")
    assert [path.name for path in (tmp_path / "changelog.d").iterdir()] == ["README.md"]
