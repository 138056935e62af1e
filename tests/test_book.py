"""The book, as `make book` built it: walked in Chromium as a reader would, from a file and over http."""

import html
import importlib
import json
import re
from datetime import UTC, datetime
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote

import on_browser
import puzzle_answers
import pytest
from texts import beside

from bppsa_nb.machine import files
from bppsa_nb.papers import experiments, explain, notebooks

SITE = files.root() / "build/book/html"
built = pytest.mark.skipif(not (SITE / "index.html").is_file(), reason="needs what `make book` builds")
pytestmark = [pytest.mark.full, built]
in_browser = pytest.mark.skipif(on_browser.CHROMIUM is None, reason="needs Chromium")
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
READ = [name for name in PAGES if not name.startswith("_modules")]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with on_browser.browser(tmp_path_factory.mktemp("browser")) as page:
        for domain in ("Network", "Log"):
            page.call(f"{domain}.enable")
        yield page


@pytest.fixture(params=["file", "http"])
def root(request, tmp_path, monkeypatch):
    """Where the book is, or the page of puzzles alone; nothing from anywhere else may be asked for."""
    if request.param == "alone":
        monkeypatch.syspath_prepend(files.root() / "docs")
        (tmp_path / "puzzles.html").write_text(importlib.import_module("puzzle_page").alone(), encoding="utf-8")
    if request.param != "http":
        yield f"file://{SITE if request.param == 'file' else tmp_path}/"
        return
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(browser, root):
    """A page; what it did must have asked for nothing from elsewhere, and raised nothing."""
    browser.open("about:blank")
    browser.requests.clear()
    browser.errors.clear()
    yield browser
    assert [url for url in browser.requests if not url.startswith((root, "data:", "blob:"))] == []
    # Where search results are excerpts of pages, and a page from a file may fetch no other.
    assert [error for error in browser.errors if root.startswith("http") or "Failed to fetch" not in error] == []


LOOK = beside(__file__)["LOOK"]


@in_browser
@pytest.mark.parametrize("width, dark", [(1200, False), (390, True)])
def test_every_page_is_whole(page, root, width, dark):
    wrong = {}
    for name in READ:
        page.logged.clear()
        page.open(root + name, width, dark)
        found = {what: seen for what, seen in page.run(LOOK).items() if seen} | {"logged": list(page.logged)}
        if name.startswith("search.") or not found["logged"]:
            del found["logged"]
        if found:
            wrong[name] = found
    assert wrong == {}


def test_every_link_leads_somewhere():
    ids, broken, count = {}, [], 0
    for name in PAGES:
        for href in set(re.findall(r'<a\b[^>]*\bhref="([^"]+)"', (SITE / name).read_text(encoding="utf-8"))):
            href = html.unescape(href)
            if re.match(r"(https?|mailto):", href):
                continue
            count += 1
            path, _, anchor = href.partition("#")
            target = ((SITE / name).parent / unquote(path)).resolve() if path else SITE / name
            if not target.is_file():
                broken.append((name, href))
            elif anchor and target.suffix == ".html":
                if target not in ids:
                    ids[target] = set(re.findall(r'\bid="([^"]+)"', target.read_text(encoding="utf-8")))
                if unquote(anchor) not in ids[target]:
                    broken.append((name, href))
    assert broken == [] and count > 3000


FIGURES = sorted(path.stem for path in (SITE / "figure").glob("*.html"))


def links(page):
    """List what the links of a page say, and where they lead."""
    found = re.findall(r'<a\b[^>]*\bhref="([^"]+)"[^>]*>(.*?)</a>', page.read_text(encoding="utf-8"), re.DOTALL)
    return [(re.sub(r"<[^>]+>", "", said), html.unescape(href)) for href, said in found]


def test_every_figure_has_a_page_one_click_from_its_captions():
    shown = re.findall(r'<figure\b[^>]*\bid="figure-([\w-]+)"', (SITE / "figures.html").read_text(encoding="utf-8"))
    assert {name.replace("-", "_") for name in shown} == set(FIGURES) and len(FIGURES) > 40
    pages = [SITE / "figures.html", *(SITE / "notebooks").glob("*.html")]
    clicks = {page: {Path(href).stem for _, href in links(page) if "figure/" in href} for page in pages}
    assert clicks[pages[0]] == set(FIGURES)
    for name in FIGURES:
        for cell in explain.cells().get(name, []):
            assert name in clicks[SITE / f"notebooks/{cell.notebook}.html"]


@pytest.fixture(scope="module")
def facts():
    """Say of each figure where it comes from, which may be what was measured here: other tests do not see that."""
    return {name: explain.explain(name) for name in FIGURES}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_leads_back_to_its_table_its_chapter_and_its_claims(facts, name):
    page, found = SITE / f"figure/{name}.html", facts[name]
    clicks = dict(links(page))
    targets = [found.table, found.measured.path, found.drawn.path, *found.sources]
    for target in targets:
        assert (page.parent / clicks[target]).resolve().read_bytes() == (files.root() / target).read_bytes()
    told = (page.parent / clicks["the JSON beside it"]).resolve()
    assert files.read_json(told)["provenance"] | {"reference": found.origin["reference"]} == found.origin
    for cell in found.cells:
        if cell.draws:
            anchor = f"draws-{name.replace('_', '-')}"
            assert clicks[f"chapter {cell.notebook.split('_')[0]}"] == f"../notebooks/{cell.notebook}.html#{anchor}"
    with experiments.references():
        decided = {f"../REPRODUCTION.html#claim-{each.entry.number}" for each in explain.evaluated({name})}
    assert decided == {href for _, href in links(page) if "#claim-" in href}


@in_browser
@pytest.mark.parametrize("words, best", [("down-sweep", "notebooks/"), ("backprop", "docs/reference/")])
def test_search_finds(page, root, words, best):
    page.open(f"{root}search.html?q={words}")
    page.wait("document.querySelectorAll('#search-results li a').length")
    found = page.run("[...document.querySelectorAll('#search-results li a')].map((link) => link.href)")
    assert any(link.startswith(root + best) for link in found[:5]), found[:5]


@in_browser
def test_the_stepper_steps(page, root):
    page.open(f"{root}notebooks/01_see_backprop_as_a_scan.html")
    figure = "[...document.querySelectorAll('figure.scan')].find((figure) => figure.querySelector('input'))"
    caption = f"{figure}.querySelector('figcaption').textContent"
    page.click(f"{figure}.querySelectorAll('button')[2]")  # one level on
    assert page.run(caption).startswith("Level 1 of 5 (up-sweep, d = 0)")
    page.run(f"{figure}.querySelector('input').focus()")
    page.key("ArrowRight", 39)
    assert page.run(caption).startswith("Level 2 of 5")
    levels = f"[...{figure}.querySelectorAll('[data-level]')]"
    hidden = page.run(f"{levels}.map((group) => getComputedStyle(group).visibility == 'hidden')")
    assert hidden == [False] * 3 + [True] * (len(hidden) - 3)


everywhere = pytest.mark.parametrize("root", ["file", "http", "alone"], indirect=True)


def ask(page, name, code, expected):
    """Give a puzzle an answer; wait for a verdict that says what is expected."""
    puzzle = f"document.querySelector('[data-name={name}]')"
    page.run(f"{puzzle}.querySelector('textarea').value = {code!r}")
    page.click(f"{puzzle}.querySelector('button')")
    page.wait(f"{puzzle}.querySelector('.verdict').ariaBusy == 'false'", 30)
    said = page.run(f"{puzzle}.querySelector('.verdict').textContent")
    assert expected in said, (code, said)
    return puzzle


@pytest.fixture
def puzzles(page, root):
    """The page of puzzles, as somebody sees it who has never been there."""
    page.open(f"{root}puzzles.html")
    page.run("localStorage.clear()")
    page.open(f"{root}puzzles.html?again")
    return page


DOWN = "def down_sweep(a, op, pairs, levels):\n    "


@in_browser
@everywhere
def test_a_puzzle_answers_back(puzzles, root):
    page, count = puzzles, puzzles.run("document.querySelectorAll('.puzzle').length")
    wrong = DOWN + "for d in reversed(range(levels)):\n        for l, r in pairs(d):\n"
    wrong += "            a[l], a[r] = a[r], op(a[l], a[r])\n        yield"
    puzzle = ask(page, "down_sweep", wrong, "right letters, wrong order")
    assert page.run(f"{puzzle}.querySelectorAll('.verdict g.wrong').length") >= 1
    assert page.run(f"{puzzle}.querySelectorAll('.verdict svg[role=img][aria-label]').length") == 2
    ask(page, "down_sweep", DOWN + "while True: pass\n    yield", "stopped after 5 million lines. Does every loop")
    ask(page, "down_sweep", "def down_sweep(a, op)\n    yield", "line 1: expected ':'")
    right = wrong.replace("op(a[l], a[r])", "op(a[r], a[l])")
    puzzle = ask(page, "down_sweep", right, "Right for every list of up to 33")
    assert page.run(f"{puzzle}.classList.contains('solved')")
    assert page.run("document.getElementById('told').textContent").startswith("down_sweep is right: Right for every")
    page.open(f"{root}puzzles.html?later#puzzle-down_sweep")
    assert page.run("document.getElementById('solved').textContent").startswith(f"1 of {count}")
    assert page.run(f"{puzzle}.querySelector('label').textContent").endswith("solved")


@in_browser
@everywhere
def test_right_answers_are_right_on_the_page_which_has_no_numpy(puzzles):
    for answer in puzzle_answers.read("scans"):
        if answer.right and "numpy" not in answer.source:
            ask(puzzles, answer.name, answer.source, "Right")


@in_browser
@everywhere
def test_answers_are_saved_and_loaded(puzzles, root, tmp_path):
    page = puzzles
    page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(tmp_path))
    name, right = "totals", puzzle_answers.source("totals")
    ask(page, name, right, "Right")
    ask(page, "diamond", "def diamond(a, b): return a", "each once")
    page.click("document.getElementById('save')")
    path, said = tmp_path / "bppsa-nb-answers.json", "document.getElementById('kept').textContent"
    saved = json.loads(on_browser.appears(path))["puzzles"]
    assert page.run(said) == "Saved 2 answers as bppsa-nb-answers.json."
    assert sorted(saved) == ["diamond", name] and saved[name]["answer"] == right and saved["diamond"]["solved"] is None
    assert datetime.fromisoformat(saved[name]["solved"]) <= datetime.now(UTC)
    page.run("localStorage.clear()")
    page.open(f"{root}puzzles.html?empty")
    for text, expected in [
        (path.read_text(), "Loaded 2 answers."),
        (json.dumps({"puzzles": saved | {"up_level": {"answer": ""}}}), "Left out 1 answer to puzzles that"),
        ("nothing", "other.json is not a file of answers, and nothing was loaded: "),
        ("[]", 'nothing was loaded: it has no "puzzles".'),
        ('{"puzzles": {"totals": "x"}}', "nothing was loaded: the answer to totals is no text."),
        ('{"puzzles": {"totals": {"answer": "x", "solved": 3.5}}}', "totals was not solved at 3.5."),
    ]:
        (tmp_path / "other.json").write_text(text)
        page.run("document.getElementById('kept').textContent = ''")
        found = page.call("Runtime.evaluate", expression="document.querySelector('[type=file]')")["result"]
        page.call("DOM.setFileInputFiles", objectId=found["objectId"], files=[str(tmp_path / "other.json")])
        page.wait(f"{said}.includes({expected!r})", 5)
    assert page.run(f"document.querySelector('[data-name={name}] textarea').value") == right
    assert page.run("document.getElementById('solved').textContent").startswith("1 of")


SPOTS = ["figures.html#figure-figure-08", "figures.html#figure-micro-batches"]
SPOTS += ["notebooks/05_speed_up_a_long_rnn.html#draws-figure-08", "notebooks/10_reorder_backprop.html#draws-staleness"]


@in_browser
@pytest.mark.parametrize("place", SPOTS)
def test_links_to_figures_land_on_them(page, root, place):
    page.open(root + place)
    anchor = place.partition("#")[2]
    where = f"document.getElementById({anchor!r}).getBoundingClientRect().top"
    few = 3 if place.startswith("figures") else 0
    page.wait(f"[...document.images].filter((image) => image.complete && image.naturalWidth).length > {few}")
    page.wait(f"Math.abs({where}) < 300", 10)
    page.run("new Promise((done) => setTimeout(done, 1000))")
    assert abs(page.run(where)) < 300


@in_browser
def test_claims_are_filtered(page, root):
    page.open(f"{root}REPRODUCTION.html")
    shown = "[...document.querySelectorAll('article tbody tr')].filter((row) => row.offsetParent).length"
    every = page.run(shown)
    page.run("document.querySelector('.filter select').value = 'missed'")
    page.run("document.querySelector('.filter select').dispatchEvent(new Event('change'))")
    assert 0 < page.run(shown) < every
    page.run("document.querySelector('.filter input').value = 'no such words'")
    page.run("document.querySelector('.filter input').dispatchEvent(new Event('input'))")
    assert page.run(shown) == 0 and page.run("[...document.querySelectorAll('h2')].every((h) => !h.offsetParent)")


WEIGHTS = {"index.html": 400, "figure/figure_08.html": 400}  # kB
WEIGHTS |= {f"notebooks/{name}.html": 800 for name in notebooks.names()}


@in_browser
def test_pages_are_light(page, root):
    heavy = {}
    for name, most in WEIGHTS.items():
        page.open("about:blank")
        page.requests.clear()
        page.open(root + name)
        loaded = weight(page, root)
        page.run(LOOK)  # all the pictures, too
        if loaded > most or weight(page, root) > most + 200:
            heavy[name] = loaded, weight(page, root)
    assert heavy == {}


def weight(page, root):
    asked = {SITE / unquote(url.removeprefix(root).split("?")[0]) for url in page.requests if url.startswith(root)}
    return sum(path.stat().st_size for path in asked if path.is_file()) / 1000
