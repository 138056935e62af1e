"""Build the book: `make book`, which opens from a file, without the internet.

Its pages are written once, and live where they are of use without it, too: README.md, the notebooks as `make figures`
ran them, docstrings, claims. Here they are put together in `build/book/source`, for Sphinx to make `build/book/html`.
"""

import shutil
import sys
import time
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path.insert(0, str(ROOT))

from bppsa_nb.papers import explain, notebooks  # noqa: E402

KEPT, BOOK = ROOT / "build/notebooks", ROOT / "build/book"
HOW_TO = (
    "own_chain",
    "own_cell",
    "train",
    "pytorch",
    "own_data",
    "more_than_chains",
    "calibrate",
    "speed",
    "measure",
    "gpu",
    "machines",
    "without_make",
    "environments",
)
PAGES = ("CONTRIBUTING.md", "docs/extend.md", "docs/maintain.md", "CHANGELOG.md", "docs/reference.md")
PAGES += ("docs/artifact.md", "warpwatch/README.md", "warpwatch/PROGRAMS.md", "warpwatch/SCORE.md")
LESSON = ("notebooks/README.md", "notebooks/GLOSSARY.md", "notebooks/TEACH.md", "docs/after_puzzles.md")
LINKED = ("figures", "data", "benchmarks", "bppsa_nb", "examples", "tests")
LINKED += ("LICENSE", "CITATION.cff", "pyproject.toml", "Makefile", "warpwatch/score.csv")


def main():
    """Put the pages together, and have Sphinx make them HTML; a warning is an error."""
    try:
        from sphinx.cmd.build import main as sphinx
    except ModuleNotFoundError as error:
        sys.exit(f"{error.name} is missing: `pip install 'bppsa-nb[docs]'` installs it")
    start = time.perf_counter()
    source, html = BOOK / "source", BOOK / "html"
    missing = [name for name in notebooks.names() if not (KEPT / f"{name}.ipynb").is_file()]
    if missing:
        sys.exit(f"{KEPT.relative_to(ROOT)} lacks {', '.join(missing)}: run `make figures`, which keeps what it runs")
    for folder in (source, html):
        shutil.rmtree(folder, ignore_errors=True)
    assemble(source)
    failed = sphinx(
        ["-q", "-W", "--keep-going", "-j", "2", "-c", str(HERE), "-d", str(BOOK / "doctrees"), str(source), str(html)]
    )
    if failed:
        sys.exit(failed)
    size = sum(path.stat().st_size for path in html.rglob("*") if path.is_file())
    print(f"{(html / 'index.html').relative_to(ROOT)}: {time.perf_counter() - start:.0f} s, {size / 1e6:.0f} MB")


def assemble(source):
    """Put the pages together in a folder, as they lie in the checkout, so that links among them hold."""
    import chapters
    import figure_page
    import gallery
    import puzzle_page
    import report_page

    static = BOOK / "static"
    static.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "bppsa_nb/schedule/scan.css", static)
    (static / "puzzle_worker.js").write_text(puzzle_page.worker(), encoding="utf-8")
    (source / "notebooks").mkdir(parents=True)
    (source / "docs").mkdir()
    (source / "warpwatch").mkdir()
    for name in LINKED:
        (source / name).symlink_to(ROOT / name)
    for name in (*PAGES, *LESSON, *(f"docs/{page}.md" for page in HOW_TO)):
        shutil.copy(ROOT / name, source / name)
    drawn = explain.cells(KEPT)
    drawn = {name: cells for name, cells in drawn.items() if name in figure_page.facts()}
    written = {name: chapters.written(KEPT / f"{name}.ipynb", repository(), drawn) for name in notebooks.names()}
    for name, (_, text) in written.items():
        (source / f"notebooks/{name}.ipynb").write_text(text, encoding="utf-8")
    script = '\n<script defer src="_static/puzzles.js"></script>\n'
    (source / "puzzles.md").write_text(puzzle_page.text() + script, encoding="utf-8")
    (source / "figure").mkdir()
    for name in figure_page.facts():
        (source / f"figure/{name}.md").write_text(figure_page.text(name, drawn, repository()), encoding="utf-8")
    (source / "figures.md").write_text(gallery.text(), encoding="utf-8")
    (source / "REPRODUCTION.md").write_text(report_page.text(), encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    readme = readme.replace(f"(notebooks/{puzzle_page.NOTEBOOK})", "(puzzles.md)", 1)  # which run in the page
    (source / "index.md").write_text(readme + _contents(written), encoding="utf-8")


def _contents(written):
    chapters = [f"{name.split('_')[0]} {title} <notebooks/{name}>" for name, (title, _) in written.items()]
    parts = {
        "Read": ["All chapters <notebooks/README>", "Puzzles, in the page <puzzles>", *chapters],
        "Use": [*(f"docs/{page}" for page in HOW_TO), "warpwatch/README", "warpwatch/PROGRAMS", "warpwatch/SCORE"],
        "Look up": [
            "figures",
            "REPRODUCTION",
            "docs/reference",
            "docs/artifact",
            "notebooks/GLOSSARY",
            "notebooks/TEACH",
            "docs/after_puzzles",
            "CONTRIBUTING",
            "docs/extend",
            "docs/maintain",
            "CHANGELOG",
        ],
    }
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n" + "\n".join(pages) + "\n```\n"
        for caption, pages in parts.items()
    )


def repository():
    """Return the project's address, where pyproject.toml has one: what links to services need; else None."""
    with open(ROOT / "pyproject.toml", "rb") as file:
        return tomllib.load(file)["project"].get("urls", {}).get("Repository")


if __name__ == "__main__":
    main()
