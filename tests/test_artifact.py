"""The page for reviewers, docs/artifact.md: what it names is here, and what no other test shows of it holds."""

import importlib
import inspect
import re
import shlex
import tomllib
from pathlib import Path

import yaml

REPO = Path(__file__).parents[1]
PAGE = (REPO / "docs" / "artifact.md").read_text(encoding="utf-8")


def spans():
    """List what stands in code spans, and the commands in blocks, without their comments."""
    blocks = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    inline = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL))
    return lines + [" ".join(each.split()) for each in inline]


def test_what_the_page_names_is_here():
    """Tests, programs and files; commands are test_cli's to check, links the book's."""
    made = ("build/", "data/measured/", "data/downloads/", ".venv/")
    for span in spans():
        program, *arguments = shlex.split(span)
        if "::" in span:
            file, _, name = span.partition("::")
            assert f"\ndef {name}(" in (REPO / file).read_text(encoding="utf-8"), span
        elif program == "python" and arguments:
            assert (REPO / arguments[0]).is_file(), span
        elif re.fullmatch(r"[\w.-]+(/[\w.-]*)+|\w[\w-]*\.(md|toml|txt|yml|cff)", span) and not span.startswith(made):
            assert (REPO / span).exists(), span


def test_the_license_is_one_and_the_same():
    project = tomllib.loads((REPO / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    cited = yaml.safe_load((REPO / "CITATION.cff").read_text(encoding="utf-8"))
    assert (REPO / "LICENSE").read_text(encoding="utf-8").startswith("MIT License\n")
    assert project["license"] == cited["license"] == "MIT" and project["license-files"] == ["LICENSE"]


def public_names():
    """Yield whatever docs/reference.md lists: module, name, object."""
    for part in (REPO / "docs/reference.md").read_text(encoding="utf-8").split("currentmodule:: ")[1:]:
        for name in re.findall(r"^   (\w+)$", part, re.MULTILINE):
            yield part.split()[0], name, getattr(importlib.import_module(part.split()[0]), name)


def test_public_names_say_what_they_take():
    """Each argument, or whose arguments they are; what nobody builds has attributes."""
    names = list(public_names())
    texts = {name: inspect.getdoc(what) for _, name, what in names}
    assert len(names) > 80 and all(texts.values())
    for module, name, what in names:
        if "\nAttributes\n" not in texts[name] or "\nParameters\n" in texts[name]:
            others = re.findall(r"`[\w.]*?(\w+)`", texts[name])
            text = "\n".join([inspect.getdoc(what), *(texts[other] for other in others if other in texts)])
            missing = [each for each in inspect.signature(what).parameters if not re.search(rf"\b{each}\b", text)]
            assert missing == [], f"{module}.{name}"
