"""A page for each figure, which leads back: to its table, the code that measured and drew it, chapters and claims."""

from functools import cache

import report_page

from bppsa_nb.machine import files
from bppsa_nb.papers import experiments, explain, figures, provenance


@cache
def facts():
    """Say of each figure that is there where it comes from: a dict, by name, of `explain.Explained`."""
    there = [name for name in experiments.names() if (files.root() / f"figures/{name}.json").is_file()]
    return {name: explain.explain(name) for name in there}


@cache
def kind(name):
    """Draw a figure from its table once more, such that it scales; return "svg", or "png" where only the picture is."""
    found, path, drawn = facts()[name], files.root() / f"figures/{name}.svg", None
    if found.drawn_from_it:
        with experiments.references(found.origin["reference"]):
            drawn = experiments.vector(experiments.table(name, found.origin["scale"], found.origin["device"]))
    if drawn is None:
        path.unlink(missing_ok=True)
        return "png"
    with files.atomic_write(path, "w") as file:
        file.write(drawn)
    return "svg"


def figure(name, up=""):
    """Write a figure with its caption, and the line that says where it was run; on a page of its own, `up` is "../"."""
    described = files.read_json(files.root() / f"figures/{name}.json")
    origin = described["provenance"]
    return [
        f":::{{figure}} {up}figures/{name}.{kind(name)}",
        *([] if up else [f":name: figure-{name}"]),
        f":alt: {described['alt']}", "", described["caption"], "",
        f"*{figures.provenance_line(origin, described['origin'])} · {origin['date']}, "
        f"commit {provenance.commit(origin)}*",
        ":::", "",
    ]


def decided(name):
    """Return the claims that a figure's table decides."""
    return [each for each in report_page.evaluated() if each.entry.experiment == name]


def text(name, chapters, repository):
    """Compose a figure's page, as MyST Markdown; `chapters` are the cells of notebooks that ran, by figure."""
    found = facts()[name]
    lines = ["---", "orphan: true", "---", "", f"# {found.title}", ""]
    lines += [f"[All figures](../figures.md#figure-{name.replace('_', '-')})", "", *figure(name, "../")]
    lines += ["## Where it comes from", "", *_origin(found, repository), ""]
    lines += ["## The table", "", *_table(found), ""]
    lines += ["## The code", "", *_code(found, repository)]
    lines += ["## The notebook", "", *_cells(found, chapters.get(name, [])), ""]
    lines += ["## The claims", "", *_claims(decided(name))]
    return "\n".join(lines) + "\n"


def _origin(found, repository):
    origin = found.origin
    if origin is None:
        return [f"Its table is not here any more: {found.lacking}."]
    commit = f"`{provenance.commit(origin)}`"
    if repository:
        commit = f"[{commit}]({repository}/commit/{origin['commit']})"
    lines = []
    if not found.drawn_from_it:
        lines += ["The table was recorded anew after the picture was drawn; this is what the table says.", ""]
    if found.kind == "collected":
        made = f"Put together on {origin['date']} from recordings, by the code"
        again = "To put it together again, and to draw it again from that:"
    else:
        made = f"Measured on {origin['date']}, on {provenance.machine(origin)}, by the code"
        again = "To measure it again, and to draw it again from what was recorded:"
    how = f"scale {origin['scale']}, seed {origin['seed']}, {origin['data']} data"
    commands = "\n".join(found.commands)
    return [*lines, f"{made} of commit {commit}; {how}. {again}", "", f"```sh\n{commands}\n```"]


def _table(found):
    lines = []
    if found.table:
        described = found.table.removesuffix(".csv") + ".json"
        lines += [
            f"[{found.table}](../{found.table}), and [the JSON beside it](../{described}), which says where it comes "
            "from. Its columns:",
            "",
            "| column | unit | what it is |",
            "| --- | --- | --- |",
            *(f"| `{each['name']}` | {each['unit'] or ''} | {_cell(each['means'])} |" for each in found.columns),
            "",
        ]
    return lines + [f"- Rows are taken from [{path}](../{path})." for path in found.sources]


def _code(found, repository):
    lines = []
    for does, where in (("measures", found.measured), ("draws", found.drawn)):
        place = f"[{where.path}](../{where.path}), line {where.first}"
        if repository:
            place = f"[{place}]({repository}/blob/HEAD/{where.path}#L{where.first}-L{where.last})"
        lines += [
            f"What {does} it: {place}.", "",
            f"```{{literalinclude}} ../{where.path}\n:lines: {where.first}-{where.last}\n:lineno-match:\n```", "",
        ]
    return lines


def _cells(found, ran):
    if not found.cells:
        return ["No notebook has it: `make figures` draws it from recordings."]
    lines = []
    for cell in found.cells:
        if cell.draws:
            chapter = f"chapter {cell.notebook.split('_')[0]}"
            if (cell.notebook, cell.identifier) in [(each.notebook, each.identifier) for each in ran]:
                chapter = f"[{chapter}](../notebooks/{cell.notebook}.ipynb#draws-{found.name.replace('_', '-')})"
            lines.append(
                f"It is drawn in {chapter}, by cell {cell.number}. In JupyterLab (`make lab`), open "
                f"`notebooks/{cell.notebook}.ipynb`, and put `#cell-id={cell.identifier}` at the end of the address: "
                "that goes to the cell."
            )
    return lines


def _claims(decided):
    if not decided:
        return ["It decides no claim of a paper."]
    return [
        f"- [{each.entry.claim.where}](../REPRODUCTION.md#claim-{each.entry.number}): {each.entry.claim.says} "
        f"**{each.verdict}**"
        for each in decided
    ]


def _cell(text):
    return text.replace("|", "\\|")
