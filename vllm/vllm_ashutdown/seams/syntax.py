"""One module's source: what binds a name in it, and the code that it would run."""

from __future__ import annotations

import ast
import inspect
import warnings
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import CodeType


class Module:
    """One module of the sources."""

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.is_package = path.name == "__init__.py"
        self._path = path

    @cached_property
    def tree(self) -> ast.Module:
        """Its syntax tree."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.parse(self._path.read_bytes(), str(self._path))

    @cached_property
    def codes(self) -> dict[str, CodeType]:
        """The code object of each function and class, by its qualified name."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            code = compile(self.tree, str(self._path), "exec", dont_inherit=True)
        return {one.co_qualname: one for one in _nested(code)}

    def statement_for(self, path: str) -> ast.stmt | None:
        """The last statement that binds the dotted name ``path``, if any does."""
        body = self.tree.body
        found: ast.stmt | None = None
        for part in path.split("."):
            found = None
            for statement in _flat(body):
                if part in _bound_by(statement):
                    found = statement
            body = found.body if isinstance(found, ast.ClassDef) else []
        return found


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a body, those under ``if``, ``try`` and ``with`` too."""
    for statement in body:
        yield statement
        for name in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With):
                yield from _flat(getattr(statement, name, []))
        for handler in getattr(statement, "handlers", []):
            yield from _flat(handler.body)


def _bound_by(statement: ast.stmt) -> set[str]:
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {statement.name}
        case ast.Import() | ast.ImportFrom():
            return {one.asname or one.name.partition(".")[0] for one in statement.names}
        case ast.Assign():
            return {one.id for one in statement.targets if isinstance(one, ast.Name)}
        case ast.AnnAssign(target=ast.Name(id=name), value=value) if value:
            return {name}
    return set()


def origin_of(module: Module, statement: ast.ImportFrom) -> str:
    """The module that ``statement`` imports from."""
    parts = module.name.split(".")
    keep = len(parts) - statement.level + module.is_package
    above = parts[:keep] if statement.level else []
    return ".".join([*above, *filter(None, [statement.module])])


def decorators_of(node: ast.stmt) -> set[str]:
    """The last words of the decorators' names."""
    found = set()
    for one in getattr(node, "decorator_list", []):
        called = one.func if isinstance(one, ast.Call) else one
        found.add(ast.unparse(called).rpartition(".")[2])
    return found


def parameters_of(code: CodeType) -> list[str]:
    """The names in the order of :func:`inspect.signature`."""
    names = list(code.co_varnames)
    plain, named = code.co_argcount, code.co_kwonlyargcount
    rest = names[plain + named :]
    starred = [rest.pop(0)] if code.co_flags & inspect.CO_VARARGS else []
    doubled = [rest.pop(0)] if code.co_flags & inspect.CO_VARKEYWORDS else []
    return [*names[:plain], *starred, *names[plain : plain + named], *doubled]
