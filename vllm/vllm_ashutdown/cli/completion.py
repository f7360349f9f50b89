"""``vllm-ashutdown completion``: what a shell offers behind the command.

The script is made from the parser, so that it knows every option that there is. zsh
reads bash's through a module of its own.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

SHELLS = ("bash", "zsh")

_FUNCTION = """\
_vllm_ashutdown() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}
    local command=${{COMP_WORDS[1]}} words='' word
    COMPREPLY=()
    # Behind -- stands somebody else's command.
    for word in "${{COMP_WORDS[@]:0:COMP_CWORD}}"; do
        [ "$word" != -- ] || return 0
    done
    if [ "$COMP_CWORD" -eq 1 ]; then
        command='' previous=''
    fi
    case "$command $previous" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _vllm_ashutdown vllm-ashutdown
"""

_ZSH = """\
autoload -U +X compinit && compinit
autoload -U +X bashcompinit && bashcompinit
"""


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """What ``shell`` reads at its start.

    Args:
        shell: One of :data:`SHELLS`.
        parser: The command's.
    """
    function = _FUNCTION.format(cases="\n".join(_cases(parser)))
    return _ZSH + function if shell == "zsh" else function


def _cases(parser: argparse.ArgumentParser) -> Iterator[str]:
    commands = commands_of(parser)
    yield _case('" "', [*commands, *options_of(parser)])
    for name, command in commands.items():
        for action in command._actions:
            if action.choices is not None and not action.option_strings:
                yield _case(f"'{name} {name}'", action.choices)
            elif action.choices is not None:
                for option in action.option_strings:
                    yield _case(f"'{name} {option}'", action.choices)
            elif action.nargs != 0:
                # A file, a number: the shell's own way is the best there is.
                for option in action.option_strings:
                    yield f"        '{name} {option}') return 0 ;;"
        yield _case(f"'{name} '*", options_of(command))


def _case(pattern: str, words: object) -> str:
    said = " ".join(map(str, words)) if isinstance(words, list | tuple) else ""
    return f"        {pattern}) words='{said}' ;;"


def commands_of(
    parser: argparse.ArgumentParser,
) -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, by its name."""
    # argparse keeps what it was told to itself; all who complete for it look there.
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """The long names of all of its options."""
    return [
        option
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    ]
