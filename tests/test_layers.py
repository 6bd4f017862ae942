"""Who may import whom: reads the imports of every module and fails on an arrow that runs up.

    __init__, __main__ -> pgwire_gateway -> sql -> engine        spark_connector -> none of the three

Source: the design pages in docs/design/.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Layer -> the layers whose modules it may import. "" is the package's own __init__ and __main__.
MAY_IMPORT = {
    "": {"", "pgwire_gateway", "sql", "engine", "spark_connector"},
    "pgwire_gateway": {"pgwire_gateway", "sql", "engine"},
    "sql": {"sql", "engine"},
    "engine": {"engine"},
    "spark_connector": {"spark_connector"},
}

SERVER = "pgwire_gateway.server"
# Its connections live on the server's loop.
PEERS = "pgwire_gateway.peers"
# They deliver on the server's loop.
SINKS = "pgwire_gateway.sinks"
# Their threads are begun and ended as the server's loop says.
SOURCES = "pgwire_gateway.sources"
# Its requests are tasks of the server's loop.
HTTP = "pgwire_gateway.http_api"
# Runs the server's loop.
COMMAND = "pgwire_gateway.command"
# Stands beside the package in the wheel, so it imports the package by its name.
FINDER = "pyspark_ducktail"

# Module -> where it may be imported: the wire's codec and conversation are sans-IO like the rest.
ONLY_IN = {
    "asyncio": (SERVER, PEERS, HTTP, SINKS, SOURCES, COMMAND),
    "aiohttp": (HTTP, SINKS),
    "socket": (
        SERVER,
        HTTP,
        f"{SINKS}.webhook",
        f"{SINKS}.kafka",
        f"{SINKS}.rabbitmq_client",
        f"{SOURCES}.mysql.binlog",
        f"{SOURCES}.mysql.mysql_server",
        COMMAND,
    ),
    "ssl": (SERVER, f"{SINKS}.rabbitmq_client", f"{SOURCES}.mysql.mysql_server"),
    "selectors": (SERVER,),
    "socketserver": (),
    "http": (),
    "urllib": (),
}


def modules() -> dict[str, Path]:
    """Every module of the package, by its name without the leading `ducktail`."""
    paths = list(ROOT.glob("*.py"))
    for package in MAY_IMPORT:
        if package:
            paths += (ROOT / package).rglob("*.py")
    return {module_name(path): path for path in paths if FINDER not in path.parts}


def module_name(path: Path) -> str:
    """`engine/errors.py` is `engine.errors`, `engine/__init__.py` is `engine`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def layer(module: str) -> str:
    """The folder that a module is in; "" for the package's own."""
    first = module.split(".")[0]
    return first if first in MAY_IMPORT else ""


MODULES = modules()


class Facts(NamedTuple):
    """What the rules ask of a module; its tree is not kept.

    Args:
        imports: what it imports, with the lines, type checkers' imports among it.
        at_run_time: the same without those.
        asynchronous: the lines of its asynchronous functions.
    """

    imports: tuple[tuple[str, int], ...]
    at_run_time: tuple[tuple[str, int], ...]
    asynchronous: tuple[int, ...]


@cache
def facts_of(module: str) -> Facts:
    """The facts of a module: read by the tests, as every worker imports this file and one runs it."""
    tree = ast.parse(MODULES[module].read_text(), str(MODULES[module]))
    found, at_run_time = (tuple(imports(module, tree, typing=typing)) for typing in (True, False))
    lines = (node.lineno for node in statements(tree, True) if isinstance(node, ast.AsyncFunctionDef))
    return Facts(found, at_run_time, tuple(lines))


def imports(module: str, tree: ast.AST, *, typing: bool = True) -> Iterator[tuple[str, int]]:
    """What `module` imports, with the line: our own modules as `.engine.errors`, others by name.

    Args:
        typing: those as well that only type checkers read.
    """
    for node in statements(tree, typing):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module
            yield node.module, node.lineno
        elif isinstance(node, ast.ImportFrom):
            for target in relative(module, node):
                yield target, node.lineno


def relative(module: str, node: ast.ImportFrom) -> Iterator[str]:
    """The modules that `from ..x import y` names: `.x.y` where that is a module, else `.x`."""
    package = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
    package = [part for part in package if part]
    base = package[: len(package) - (node.level - 1)] + ([node.module] if node.module else [])
    for alias in node.names:
        inner = ".".join([*base, alias.name])
        yield "." + (inner if inner in MODULES else ".".join(base))


def statements(tree: ast.AST, typing: bool) -> Iterator[ast.AST]:
    """The statements of a tree, with or without what stands under TYPE_CHECKING."""
    left = [tree]
    while left:
        node = left.pop()
        if not typing and isinstance(node, ast.If) and is_for_types(node.test):
            continue
        yield node
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            left += getattr(node, part, ())


def is_for_types(test: ast.expr) -> bool:
    """Whether a condition asks for TYPE_CHECKING."""
    return any("TYPE_CHECKING" in (getattr(n, "id", ""), getattr(n, "attr", "")) for n in ast.walk(test))


@pytest.mark.parametrize("module", MODULES)
def test_no_arrow_runs_up(module: str) -> None:
    for target, line in facts_of(module).imports:
        assert not target.startswith("ducktail"), f"{module}:{line}: imports inside the package are relative"
        if target.startswith("."):
            found = layer(target[1:])
            assert found in MAY_IMPORT[layer(module)], f"{module}:{line} imports {target[1:] or 'ducktail'}"


@pytest.mark.parametrize("module", MODULES)
def test_asyncio_and_sockets_stay_in_the_server(module: str) -> None:
    for target, line in facts_of(module).imports:
        places = ONLY_IN.get(target.split(".")[0])
        allowed = places is None or any(module == p or module.startswith(f"{p}.") for p in places)
        assert allowed, f"{module}:{line} imports {target}"


@pytest.mark.parametrize("module", MODULES)
def test_only_the_gateway_is_async(module: str) -> None:
    if layer(module) in {"engine", "sql"}:
        assert facts_of(module).asynchronous == (), module


def test_no_import_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        found = facts_of(module).at_run_time
        targets = {target[1:] for target, _ in found if target.startswith(".")}
        graph[module] = targets - {module}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("import cycle: " + " -> ".join(error.args[1]))


def room(module: str) -> str:
    """Where a module lies in its layer: its folder there, or itself."""
    return ".".join(module.split(".")[:2])


@pytest.mark.parametrize("package", [package for package in MAY_IMPORT if package])
def test_no_cycle_of_folders(package: str) -> None:
    """A folder of a layer, or a module beside them, is read without what stands on it."""
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        if layer(module) == package:
            targets = {target[1:] for target, _ in facts_of(module).imports if target.startswith(".")}
            rooms = {room(target) for target in targets if layer(target) == package}
            graph.setdefault(room(module), set()).update(rooms - {room(module)})
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail("cycle of folders: " + " -> ".join(error.args[1]))


def test_the_rules_see_a_breach() -> None:
    """The reader itself: an import inside a function, `from . import x`, and both spellings are seen."""
    source = (
        "try:\n    pass\nexcept OSError:\n    import socket\n"
        "def f():\n    from ..sql import session\n    from .. import pgwire_gateway\nimport asyncio\n"
    )
    found = {target for target, _ in imports("engine.errors", ast.parse(source))}
    assert ".pgwire_gateway" in found
    assert any(target.startswith(".sql") for target in found)
    assert {"asyncio", "socket"} <= found
