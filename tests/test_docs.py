"""The docs are whole: every statement, option, setting, view, error and promise has its place."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
from server_process import ServerProcess

import ducktail
from ducktail.__main__ import parser
from ducktail.engine import errors
from ducktail.engine.schema import LIVE_VIEWS
from ducktail.engine.settings import numbers
from ducktail.sql.language.clauses import RULES
from ducktail.sql.language.statements import ROWS, Row
from ducktail.sql.text.tokens import split_statements

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md")])

PROMISES = 14


@cache
def page(name: str) -> str:
    """A page of docs/."""
    return (DOCS / name).read_text()


def headings(text: str) -> list[str]:
    """The headings of a page, code blocks left out."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"^#+ (.+)$", prose, flags=re.MULTILINE)


def anchor(heading: str) -> str:
    """The anchor that a heading gets where Markdown is shown."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def kinds(module: ModuleType, base: type) -> list[str]:
    """The names of the classes in a module below `base`."""
    found = inspect.getmembers(module, inspect.isclass)
    return [name for name, item in found if issubclass(item, base) and item is not base]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.node.__name__)
def test_every_statement_has_its_heading(row: Row) -> None:
    assert row.heading in headings(page("sql.md"))


@pytest.mark.parametrize("name", RULES)
def test_every_option_has_its_row(name: str) -> None:
    assert re.search(rf"^\| {name} \|", page("sql.md"), re.MULTILINE)


@pytest.mark.parametrize("view", LIVE_VIEWS)
def test_every_view_has_its_row(view: str) -> None:
    assert f"| ducktail.{view} |" in page("sql.md")


@pytest.mark.parametrize("name", [item.name for item in numbers()])
def test_every_setting_has_its_row(name: str) -> None:
    assert f"| `--{name.replace('_', '-')}` |" in page("settings.md")


def test_every_flag_has_its_row() -> None:
    [commands] = [action for action in parser()._actions if action.dest == "command"]
    assert commands.choices is not None
    for action in dict(commands.choices)["serve"]._actions:  # type: ignore[call-overload]
        for flag in action.option_strings:
            if flag.startswith("--") and flag != "--help":
                assert f"| `{flag}` |" in page("settings.md"), flag


@pytest.mark.parametrize("name", kinds(errors, errors.DucktailError))
def test_every_error_has_its_row(name: str) -> None:
    assert f"\n| {getattr(errors, name).sqlstate} |" in page("errors.md")


def test_every_promise_has_its_heading() -> None:
    found = [heading.partition(".")[0] for heading in headings(page("promises.md"))]
    numbers = [int(number) for number in found if number.isdigit()]
    assert numbers == list(range(1, PROMISES + 1))


def test_every_test_of_a_promise_is_named() -> None:
    named = re.findall(r"`(tests/[\w/.]+)`", page("promises.md"))
    for path in named:
        assert (ROOT / path).exists(), path
    for path in (ROOT / "tests" / "promises").glob("test_*.py"):
        assert path.relative_to(ROOT).as_posix() in named


@pytest.mark.parametrize("name", ["errors.md", "settings.md", "spark/options.md"])
def test_generated_pages_are_what_make_docs_writes(name: str) -> None:
    spec = importlib.util.spec_from_file_location("docs_generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert page(name) == generate.PAGES[name](), "run `make docs`"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if target.startswith("http"):
            continue
        file, _, fragment = target.partition("#")
        goal = (path.parent / file).resolve() if file else path
        assert goal.exists(), f"{target} is not there"
        if fragment:
            assert fragment in map(anchor, headings(goal.read_text())), f"{target}: no such heading"


PACKAGES = ("engine", "sql", "pgwire_gateway", "spark_connector")
FOLDERS = (*PACKAGES, "tests", "docs", "benchmarks")
# A page and one or several of its headings, as a docstring or comment names them.
SECTIONS = re.compile(r'(docs/[\w/]+\.md)((?:,\s+(?:and\s+)?"[^"\n]*(?:\n[^"\n]*)?")+)')


def test_sections_that_the_code_names_exist() -> None:
    for path in [file for name in PACKAGES for file in (ROOT / name).rglob("*.py")]:
        for name, sections in SECTIONS.findall(path.read_text()):
            known = {heading.replace("`", "") for heading in headings((ROOT / name).read_text())}
            for section in re.findall(r'"([^"]*)"', sections):
                section = re.sub(r"\s+(# )?", " ", section).replace("`", "")
                assert section in known, f"{path.relative_to(ROOT)}: {name} has no section {section!r}"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_modules_that_a_page_names_exist(path: Path) -> None:
    known = {
        f"/{file.relative_to(ROOT).as_posix()}"
        for folder in FOLDERS
        for file in (ROOT / folder).rglob("*.py")
    }
    for module in re.findall(r"`((?:[\w.-]+/)*\w+\.py)`", path.read_text()):
        assert any(file.endswith(f"/{module}") for file in known), f"{module} is not there"


# Docstrings name a thing or say what it does; they do not begin with a relative clause.
CLAUSES = {"What", "Whatever", "Whether", "Who", "Whoever", "Whose", "Where", "How", "Which"}


def relative_clauses(source: str) -> list[str]:
    """The first lines of docstrings that begin with a relative clause."""
    if not re.search(rf'"""\s*(?:{"|".join(sorted(CLAUSES))})\b', source):
        return []
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    lines = [docstring.partition("\n")[0] for docstring in map(ast.get_docstring, nodes) if docstring]
    return [line for line in lines if re.split(r"\W", line, maxsplit=1)[0] in CLAUSES]


def private_raises(source: str) -> list[str]:
    """The private functions with a `Raises:` section."""
    nodes = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    return [
        node.name
        for node in nodes
        if re.match(r"_[^_]", node.name) and "\nRaises:" in (ast.get_docstring(node) or "")
    ]


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    assert relative_clauses('def f():\n    """Whether it is so."""') == ["Whether it is so."]
    for path in [file for name in PACKAGES for file in (ROOT / name).rglob("*.py")]:
        assert not relative_clauses(path.read_text()), path


def test_private_functions_have_no_raises_section() -> None:
    assert private_raises('def _f():\n    """Do it.\n\n    Raises:\n        Error: never.\n    """') == ["_f"]
    for path in [file for name in PACKAGES for file in (ROOT / name).rglob("*.py")]:
        assert not private_raises(path.read_text()), path


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_make_tasks_in_the_docs_exist(path: Path) -> None:
    tasks = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for task in re.findall(r"`make ([a-z]+)", path.read_text()):
        assert task in tasks, f"make {task}"


SETUP = """
    CREATE TABLE orders (id INT PRIMARY KEY, item TEXT, qty INT);
    CREATE STREAM orders_stream ON orders;
    CREATE TABLE t (id INT PRIMARY KEY, qty INT);
    CREATE STREAM s ON t;
    CREATE CONSUMER GROUP g ON s;
    CREATE TOPIC commands;
    INSERT INTO t SELECT i, i FROM range(2000) AS r (i)
"""


def blocks(language: str) -> list[tuple[str, str]]:
    """The code blocks of a language, with their pages' names; those with an ellipsis are left out."""
    return [
        (f"{path.name}-{number}", block)
        for path in PAGES
        for number, block in enumerate(
            re.findall(rf"^```{language}\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
        )
        if "..." not in block
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "block"), blocks("sql"), ids=lambda value: value[:20])
def test_sql_in_the_docs_runs(name: str, block: str) -> None:
    with ducktail.connect() as con:
        if "CREATE TABLE" not in block:
            for statement in split_statements(SETUP):
                con.execute(statement)
        for statement in split_statements(block):
            con.execute(statement).close()


def test_python_on_the_first_page_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [program] = [block for name, block in blocks("python") if name.startswith("start.md")]
    with ducktail.connect(tmp_path / "shop.duckdb") as con:
        con.execute("CREATE TABLE orders (id INT PRIMARY KEY, item TEXT, qty INT)")
        con.execute("CREATE STREAM orders_stream ON orders")
        program = program.replace("shop.duckdb", str(tmp_path / "shop.duckdb")).replace("5480", "0")
        names: dict[str, object] = {}
        exec(compile(program, "start.md", "exec"), names)
        assert capsys.readouterr().out == '1 insert {"id":2,"item":"rusk","qty":5}\n'
        opened = names["con"]
        assert isinstance(opened, ducktail.Connection)
        opened.close()


PROMPT = "ducktail=> "
MARK = "-- next --"


@pytest.mark.psql
@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/topics.md"])
def test_the_session_on_a_page_is_what_psql_shows(server: ServerProcess, page: str) -> None:
    text = (ROOT / page).read_text()
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    [session] = [block for language, block in fenced if not language and PROMPT in block]
    shown = [chunk.partition("\n") for chunk in session.split(PROMPT)[1:]]
    script = "".join(f"{statement}\n\\echo {MARK}\n" for statement, _, _ in shown)
    ran = subprocess.run(
        ["psql", server.conninfo, "-X", "-q", "-f", "-", "-v", "QUIET=off"],
        input=script,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stderr == ""
    answers = ran.stdout.split(f"{MARK}\n")
    for (statement, _, expected), answer in zip(shown, answers, strict=False):
        assert trimmed(answer) == trimmed(expected), statement


def trimmed(text: str) -> list[str]:
    """Its lines without the spaces that psql pads its columns with."""
    return [line.rstrip() for line in text.rstrip().splitlines()]
