"""What the sources of a vLLM have in the place of a seam, without importing it.

Several releases cannot be installed side by side, and importing one takes seconds and
a PyTorch. But a guard asks only for a signature and for the names that a body uses, and
both stand in the code object, which compiling makes without running anything.

Not everything can be told that way. What a decorator other than the known ones gives
back, or what a package outside of vLLM has, is known to the running process alone; it
is told apart as :attr:`Fit.UNKNOWN` and never taken for a fit.
"""

from __future__ import annotations

import ast
import enum
from dataclasses import dataclass
from pathlib import Path

from .seam import How, Seam
from .syntax import Module, decorators_of, origin_of, parameters_of

_TRANSPARENT = {
    *("staticmethod", "abstractmethod"),
    *("contextmanager", "asynccontextmanager"),
}
"""Decorators behind which the guard sees the function: they give it back, or have it
as ``__wrapped__``."""


class Fit(enum.StrEnum):
    """What is known of a seam in a release."""

    FITS = "fits"
    ABSENT = "absent"
    """The release has no such module, and need not have it."""
    UNKNOWN = "unknown"
    """Only the running process can tell."""
    MISFIT = "misfit"
    """The plugin would skip it there."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found for one seam, and why where it is not :attr:`Fit.FITS`."""

    fit: Fit
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Definition:
    """What a name stands for in a module of the sources.

    Attributes:
        module: Where it is made.
        path: Its dotted name there.
        node: The statement that makes it; ``None`` for what another package has.
    """

    module: Module
    path: str
    node: ast.stmt | None


class Sources:
    """The sources of one vLLM.

    Args:
        root: The directory that has the package ``vllm`` in it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """The module ``name``, or ``None`` where these sources have none."""
        if name not in self._modules:
            base = self._root.joinpath(*name.split("."))
            paths = (base.with_suffix(".py"), base / "__init__.py")
            found = next((path for path in paths if path.is_file()), None)
            self._modules[name] = None if found is None else Module(name, found)
        return self._modules[name]

    def look(self, seam: Seam) -> Finding:
        """What the installer would do about ``seam`` on these sources.

        It lays a seam on whichever target's module is imported first, so each that
        there is must do.
        """
        findings = []
        for target in seam.targets:
            name, _, path = target.partition(":")
            module = self.module(name)
            if module is not None and not self._hands_on(module, seam):
                findings.append(self._judge(seam, target, module, path))
        if not findings:
            return Finding(Fit.ABSENT, f"no module {' or '.join(seam.modules)}")
        return max(findings, key=lambda one: list(Fit).index(one.fit))

    def has(self, name: str, attribute: str) -> bool:
        """Whether module ``name`` has ``attribute``, or a module of that name in it."""
        module = self.module(name)
        if module is None:
            return False
        return (
            self.module(f"{name}.{attribute}") is not None
            or self._definition(module, attribute) is not None
        )

    def _hands_on(self, module: Module, seam: Seam) -> bool:
        """Whether to import ``module`` is to import another target's module first."""
        others = {name for name in seam.modules if name != module.name}
        return any(
            isinstance(statement, ast.ImportFrom)
            and origin_of(module, statement) in others
            and self.module(origin_of(module, statement)) is not None
            for statement in module.tree.body
        )

    def _judge(self, seam: Seam, target: str, module: Module, path: str) -> Finding:
        found = self._definition(module, path)
        if seam.how is How.ADD:
            if found is None:
                return Finding(Fit.FITS)
            return Finding(Fit.MISFIT, f"this vLLM has its own {path}")
        if found is None:
            return Finding(Fit.MISFIT, f"{target} is gone")
        if not (seam.guard.parameters or seam.guard.reads):
            return Finding(Fit.FITS)
        if found.node is None:
            return Finding(Fit.UNKNOWN, f"{target} comes from outside of vLLM")
        code = found.module.codes.get(found.path)
        if code is None or isinstance(found.node, ast.ClassDef):
            return Finding(Fit.UNKNOWN, f"{target} is not made by a plain `def`")
        opaque = decorators_of(found.node) - _TRANSPARENT
        if opaque - {"classmethod"}:
            return Finding(Fit.UNKNOWN, f"{target} is decorated: {', '.join(opaque)}")
        names = parameters_of(code)[1 if opaque else 0 :]
        reason = seam.guard.mismatch_of(names, code)
        if reason is not None:
            return Finding(Fit.MISFIT, f"{target} has changed: {reason}")
        return Finding(Fit.FITS)

    def _definition(self, module: Module, path: str) -> Definition | None:
        """What the dotted name ``path`` of ``module`` stands for."""
        head, _, rest = path.partition(".")
        statement = module.statement_for(head)
        if statement is None:
            return None
        if isinstance(statement, ast.ImportFrom):
            return self._imported(module, statement, head, rest)
        if isinstance(statement, ast.Import):
            return Definition(module, path, None)
        if not rest:
            return Definition(module, path, statement)
        if not isinstance(statement, ast.ClassDef):
            return None
        node = module.statement_for(path)
        if node is not None:
            return Definition(module, path, node)
        return self._inherited(module, statement, rest)

    def _imported(
        self, module: Module, statement: ast.ImportFrom, name: str, rest: str
    ) -> Definition | None:
        """What ``name`` stands for that ``statement`` brings, or ``rest`` of it."""
        own = next(
            (one.name for one in statement.names if (one.asname or one.name) == name),
            name,
        )
        came_from = origin_of(module, statement)
        origin, inner = self.module(came_from), self.module(f"{came_from}.{own}")
        if inner is not None and rest:
            return self._definition(inner, rest)
        if origin is None or inner is not None:
            return Definition(module, name, None)
        return self._definition(origin, f"{own}.{rest}" if rest else own)

    def _inherited(
        self, module: Module, node: ast.ClassDef, attribute: str
    ) -> Definition | None:
        for base in node.bases:
            name = ast.unparse(base).partition("[")[0]  # of Generic[T]
            found = self._definition(module, f"{name}.{attribute}")
            # A base from outside, ABC say, is no place of vLLM's own.
            if found is not None and found.node is not None:
                return found
        return None
