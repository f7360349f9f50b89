"""Writes docs/reference.md out of the code, so that it says what is there.

python docs/reference.py            # writes it
python docs/reference.py --check    # exit code 1 if it is not up to date
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

# The package need not be installed.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "vllm"))

from vllm_ashutdown import errors, exit_code, settings
from vllm_ashutdown.cli.main import build_parser
from vllm_ashutdown.core.phase import Phase
from vllm_ashutdown.seams.registry import SEAMS
from vllm_ashutdown.telling.metrics import ShutdownMetrics

PAGE = Path(__file__).resolve().parent / "reference.md"

HEAD = """\
# Reference

`docs/reference.py` has made this page out of the code; a test holds the two together.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the page, or looks whether it is up to date; gives the exit code."""
    parser = argparse.ArgumentParser(description="Write the reference out of the code.")
    parser.add_argument(
        "--check", action="store_true", help="write nothing: exit code 1 if it differs"
    )
    text = page()
    if not parser.parse_args(argv).check:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print(f"{PAGE} is not up to date: run `python docs/reference.py`", file=sys.stderr)
    return 1


def page() -> str:
    """The whole page."""
    parts = (HEAD, variables(), commands(), codes(), raised(), phases(), metrics())
    return "\n".join([*parts, seams()])


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """One in Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def variables() -> str:
    """The environment."""
    rows = (
        (f"`{one.name}`", f"`{one.default}`", one.allowed, one.meaning)
        for one in settings.VARIABLES
    )
    headings = ("variable", "default", "takes", "meaning")
    return f"## Environment variables\n\n{table(headings, rows)}".replace("``", "")


def commands() -> str:
    """What stands behind `vllm-ashutdown`."""
    text = "## Commands\n"
    for name, command in _subcommands(build_parser()):
        text += f"\n### `vllm-ashutdown {name}`\n"
        if command.description:
            text += f"\n{command.description}\n"
        rows = [
            (f"`{_spelled(action)}`", action.help or "")
            for action in command._actions
            if action.dest != "help"
        ]
        if name == "serve":
            text += "\nvLLM's own `serve` with this package on; all options are its.\n"
        elif rows:
            text += "\n" + table(("option", "meaning"), rows)
        if command.epilog:
            text += f"\n{command.epilog}\n"
    return text


def _subcommands(
    parser: argparse.ArgumentParser,
) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _spelled(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    if action.choices is not None and not action.metavar:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    return " ".join(filter(None, (", ".join(action.option_strings), str(value or ""))))


def codes() -> str:
    """With what code a process leaves."""
    said = _attribute_docs(exit_code.ExitCode)
    rows = ((str(int(one)), one.name, said[one.name]) for one in exit_code.ExitCode)
    return f"## Exit codes\n\n{table(('code', 'name', 'meaning'), rows)}"


def raised() -> str:
    """What a program may catch."""
    rows = []
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, errors.AShutdownError):
            base = value.__bases__[0].__name__
            rows.append((f"`{name}`", f"`{base}`", _first_line(value)))
    return f"## Errors\n\n{table(('error', 'is a', 'when'), rows)}"


def phases() -> str:
    """Of a stop, in their order."""
    return f"## Phases\n\n{', '.join(f'`{phase}`' for phase in Phase)}\n"


def metrics() -> str:
    """At `/metrics`."""
    rows = []
    for metric in vars(ShutdownMetrics()).values():
        (family,) = metric.collect()
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(metric._labelnames)
        rows.append((f"`{name}`", family.type, labels, family.documentation))
    return f"## Metrics\n\n{table(('metric', 'type', 'labels', 'meaning'), rows)}"


def seams() -> str:
    """Each attribute of vLLM's that is touched."""
    rows = (
        (f"`{one.name}`", str(one.how), one.why, one.reference, one.until)
        for one in SEAMS
    )
    headings = ("attribute", "how", "why", "reference", "can go when")
    return f"## Seams\n\n{table(headings, rows)}"


def _attribute_docs(cls: type) -> dict[str, str]:
    """The texts that stand below the members of a class."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    found, last = {}, ""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            last = node.targets[0].id
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found[last] = " ".join(str(node.value.value).split())
    return found


def _first_line(cls: type) -> str:
    return (inspect.getdoc(cls) or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
