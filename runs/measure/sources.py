"""The code that a function or a script depends on: results are kept, and figures published, for this code only.

In `runs/` single functions, classes and constants count, followed by the names they use. In `headway/` whole files
count, followed by their imports. So do the scripts that are started as processes, found by the three ways in which this
repository starts one: `run_script(python, NAME, ..)`, `load_sibling(NAME)`, `[python, "-m", "headway", COMMAND, ..]`.
So do the tables of `data/` that are named in strings. Comments, docstrings, layout and the version of Python do not
count. Of other packages the installed version counts, unless they only print.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import cache, cached_property
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
OWN = ("headway", "runs")
ONLY_PRINT = {"rich", "typer"}
# Where the code of a command begins; of any other it is `headway.cli`.
COMMANDS = {
    "serve": "headway.run",
    "mock-engine": "headway.engines.scripted.server",
    "auto": "headway.auto.calibration",
    "relay": "headway.cli.relay",
    "dispatch": "headway.cli.dispatch",
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Reached(NamedTuple):
    part: str  # the definition or file with its content, or the package with its version; may be empty
    uses: list[tuple[str, str]]  # modules and names
    path: Path | None = None  # if it is of this repository


class Module:
    """One Python file: its top-level names, and what each of them comes from."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(self.tree):
            if isinstance(node, DOCUMENTED) and node.body and _is_text(node.body[0]):
                node.body = node.body[1:]
        self.defined: dict[str, list[ast.stmt]] = {}
        for statement in self.tree.body:
            for defined in _defined_by(statement):
                self.defined.setdefault(defined, []).append(statement)

    @cached_property
    def imported(self) -> dict[str, list[tuple[str, str]]]:
        """By the name it has here: modules, and the name it has there (empty: the module itself)."""
        found: dict[str, list[tuple[str, str]]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:  # `import headway.core, headway.api` is two modules with one name
                    found.setdefault(alias.asname or alias.name.split(".")[0], []).append((alias.name, ""))
            elif isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    found.setdefault(alias.asname or alias.name, []).append((node.module, alias.name))
        return found


class Sources:
    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._modules: dict[str, Module | None] = {}
        self._known: dict[tuple[str, str], Reached] = {}
        self._tables = {path.name: path for path in (root / "data").glob("*.*")}

    def hash_of(self, function: Callable[..., Any]) -> str:
        """The function is one at the top level of a module in `runs/`, also of the one that is being run."""
        own = inspect.unwrap(function)
        path = Path(own.__code__.co_filename).relative_to(self._root).with_suffix("")
        return self.hash(".".join(path.parts), own.__name__)

    def hash(self, module: str, name: str) -> str:
        return hash_parts(self.parts(module, name))

    def parts(self, module: str, name: str) -> set[str]:
        """Everything that is reached: definitions and files with their content, packages with their version."""
        return {one.part for one in self.reached(module, name)} - {""}

    def reached(self, module: str, name: str = "") -> Iterator[Reached]:
        """No name means the whole module."""
        seen: set[tuple[str, str]] = set()
        todo = [(module, name)]
        while todo:
            one = todo.pop()
            if one in seen:
                continue
            seen.add(one)
            if one not in self._known:
                self._known[one] = self._look_at(*one)
            yield self._known[one]
            todo += self._known[one].uses

    def _look_at(self, module_name: str, name: str) -> Reached:
        top = module_name.split(".")[0]
        if top == "data":
            table = self._tables[name]
            return Reached(f"data/{name}:{hashlib.sha256(table.read_bytes()).hexdigest()}", [], table)
        if top not in OWN:
            return Reached(_package(top), [])
        if name and self._module(f"{module_name}.{name}") is not None:
            module_name, name = f"{module_name}.{name}", ""
        module = self._module(module_name)
        if module is None:
            return Reached(f"{module_name}.{name} is not there", [])
        if name and top == "runs":
            if name in module.imported and name not in module.defined:
                return Reached("", module.imported[name], module.path)
            nodes: list[ast.stmt] = module.defined.get(name, [])
            used = {node.id for part in nodes for node in ast.walk(part) if isinstance(node, ast.Name)}
            uses = [(module_name, other) for other in used if other in module.defined or other in module.imported]
        else:
            nodes, name = module.tree.body, ""
            uses = [one for ones in module.imported.values() for one in ones]
        uses += _started(nodes, module_name)
        uses += [("data", text) for text in _strings(nodes) if text in self._tables]
        return Reached(f"{module_name}:{name}:{' '.join(map(_meaning, nodes))}", uses, module.path)

    def _module(self, name: str) -> Module | None:
        if name not in self._modules:
            at = self._root.joinpath(*name.split("."))
            paths = [path for path in (at.with_suffix(".py"), at / "__init__.py") if path.is_file()]
            self._modules[name] = Module(name, paths[0]) if paths else None
        return self._modules[name]


def hash_parts(parts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for part in sorted(parts):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def _meaning(node: Any) -> str:
    """What `ast.dump` of Python 3.11 gives, also with later versions: these add fields and leave out empty lists."""
    if isinstance(node, list):
        return f"[{', '.join(map(_meaning, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = dict(ast.iter_fields(node))
    if not fields.get("type_params"):  # since Python 3.12
        fields.pop("type_params", None)
    if isinstance(node, ast.JoinedStr):  # Python 3.12 adds empty strings between the parts
        fields["values"] = [part for part in node.values if getattr(part, "value", None) != ""]
    kind = type(node)
    # A field that may be missing is None on the class too. The value of a Constant may be None, but is never missing.
    given = [key for key, value in fields.items() if value is not None or getattr(kind, key, ...) is not None]
    return f"{kind.__name__}({', '.join(f'{key}={_meaning(fields[key])}' for key in given)})"


def _defined_by(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def _started(nodes: Iterable[ast.AST], module: str) -> list[tuple[str, str]]:
    """The modules that are run as scripts or started as processes."""
    found = []
    for node in (one for part in nodes for one in ast.walk(part)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            words = _words(node.args)
            if node.func.id in ("run_script", "script") and words[1:2] > [""]:
                found.append(f"headway.distill.{words[1]}")
            elif node.func.id == "load_sibling" and words > [""]:
                found.append(f"{module.rpartition('.')[0]}.{words[0]}")
        elif isinstance(node, ast.List):
            words = _words(node.elts)
            starts = [at for at in range(len(words) - 2) if words[at : at + 2] == ["-m", "headway"]]
            found += [COMMANDS.get(words[at + 2], "headway.cli") for at in starts]
    return [(name, "") for name in found]


def _strings(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in (one for part in nodes for one in ast.walk(part)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _words(nodes: list[ast.expr]) -> list[str]:
    """Those that are written as strings; the others are empty."""
    return [node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "" for node in nodes]


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def _package(name: str) -> str:
    """Its installed version; nothing for the standard library."""
    distributions = () if name in ONLY_PRINT else _distributions().get(name, ())
    return " ".join(f"{one}=={version(one)}" for one in sorted(set(distributions)))


_distributions = cache(packages_distributions)
