"""Packages, rules and public names. `make lint` checks the directions of imports (`.importlinter`)."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
from pathlib import Path

import perdure
from perdure import errors, testing, workflow

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "perdure"


def packages() -> list[Path]:
    return [*sorted(path.parent for path in PACKAGE.rglob("__init__.py")), ROOT / "workflows", ROOT / "activities"]


def test_every_public_name_is_in_the_reference_and_every_page_in_the_site() -> None:
    pages = sorted((ROOT / "docs").rglob("*.md"))
    shown = {
        name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    }
    public = [f"{module.__name__}.{name}" for module in (perdure, workflow, testing) for name in module.__all__]
    public += [f"perdure.errors.{name}" for name in vars(errors) if name.endswith("Error") and name != "CallError"]
    assert [name for name in public if not {name, name.replace(".errors", "")} & shown] == []
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert [str(page) for page in pages if f" {page.relative_to(ROOT / 'docs')}\n" not in site] == []


def test_every_rule_that_the_code_names_is_in_the_protocol() -> None:
    built = set(
        re.findall(r"^- (R\d+\.\d+) ", (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    named = {
        (str(path.relative_to(ROOT)), rule)
        for package in packages()
        for path in package.glob("*.py")
        for rule in re.findall(r"\bR\d+\.\d+\b", path.read_text(encoding="utf-8"))
    }
    assert len(built) > 80
    assert sorted(each for each in named if each[1] not in built) == []


def test_the_tree_of_errors_is_complete() -> None:
    drawn = errors.__doc__ or ""
    defined = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.PerdureError)
    ]
    assert defined
    assert [name for name in defined if name not in drawn] == []


def test_every_package_has_a_docstring() -> None:
    undocumented = [
        str(package)
        for package in packages()
        if not (package / "__init__.py").read_text(encoding="utf-8").startswith('"""')
    ]
    assert undocumented == []


def test_every_path_in_the_map_of_the_code_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:perdure|workflows|activities|tests|docs)/[\w/.-]+)`", text)
    assert len(paths) > 100
    assert sorted(path for path in set(paths) if not (ROOT / path).exists()) == []
    files = {path.name for folder in (*packages(), ROOT) for path in folder.glob("*.py")}
    assert sorted(set(re.findall(r"`(\w+\.py)`", text)) - files) == []


def test_the_walks_through_the_code_name_what_their_files_hold() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    walks = text[text.index("## Five walks") : text.index("## Where to change what")]
    items = re.findall(r"^\d+\. (.+)$", walks, re.MULTILINE)
    assert len(items) > 30
    for item in items:
        files = [ROOT / path for path in re.findall(r"`((?:perdure|workflows|activities|docs)/[\w/.-]+)`", item)]
        held = "\n".join(path.read_text(encoding="utf-8") for path in files)
        names = re.findall(r"`([A-Z]\w+)(?:\.(\w+))?[`(]", item)
        assert [name for parts in names for name in parts if not re.search(rf"\b{name}\b", held)] == [], item


def test_the_import_linter_lists_every_package() -> None:
    layers = (ROOT / ".importlinter").read_text(encoding="utf-8")
    top = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert sorted(name for name in top if f"perdure.{name}" not in layers) == []


def test_limits_are_defined_in_one_module() -> None:
    """Bounds of parsing stay in `perdure.values`, and bounds of one built-in tool beside that tool."""
    elsewhere = [
        f"{path.relative_to(ROOT)}: {name}"
        for package in packages()
        if PACKAGE / "values" not in (package, *package.parents) and package != ROOT / "activities" / "tools"
        for path in package.glob("*.py")
        if path != PACKAGE / "errors.py"
        for name in re.findall(r"^(MAX_\w+)\b.* = \d", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert elsewhere == []


def test_every_limit_has_a_docstring() -> None:
    text = (PACKAGE / "values" / "limits.py").read_text(encoding="utf-8")
    undocumented = re.findall(r'^(\w+): Final = .*\n(?!""")', text, re.MULTILINE)
    assert undocumented == []


def test_private_parts_of_the_sdk_are_used_in_one_module() -> None:
    """And workflows decide nothing by whether they are replayed: only what is emitted depends on it."""
    private = r"temporalio\.bridge|temporalio[\w.]*\._|__temporal_|_[gs]et_running_loop|_payload_sequence"
    allowed = {PACKAGE / "hosting" / "sdk_internals.py", PACKAGE / "tools" / "temporal.py"}
    found = [
        f"{path.relative_to(ROOT)}: {words}"
        for package in packages()
        for path in package.glob("*.py")
        if path not in allowed
        for words in re.findall(private, path.read_text(encoding="utf-8").replace("asyncio.get_running_loop", ""))
    ]
    assert found == []
    asking = [path.name for path in (ROOT / "workflows").glob("*.py") if "is_replaying" in path.read_text("utf-8")]
    assert asking == ["observability.py"]


def test_no_import_reaches_into_the_private_module_of_another_package() -> None:
    """A module `_name.py` is imported by its own package only: others import the package."""
    wrong = []
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "scripts").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]:
        own = ".".join(path.relative_to(ROOT).parts[:-1])
        for module in re.findall(r"^ *(?:from|import) (perdure[\w.]*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            package, private, _ = module.partition("._")
            if private and not (own == package or own.startswith(f"{package}.")):
                wrong.append(f"{path.relative_to(ROOT)} imports {module}")
    assert wrong == []


def test_the_time_without_a_worker_fails_no_activity_of_the_engine() -> None:
    """`schedule_to_close_timeout` counts the time in the queue, so an activity fails because no worker was there."""
    found = {
        f"{path.stem}.{function.name}"
        for path in (ROOT / "workflows").glob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.keyword) and node.arg == "schedule_to_close_timeout"
    }
    assert found == BOUNDED


BOUNDED = {
    "executions._execute_existing",  # the user's own timeout of a Nexus operation
    "requests._ask_one",  # the patience of a run, and its deadline
    "resets._answer",  # a person's decision waits for it
    "session_driver.update_run",  # a sender's update waits for it
}


def test_no_client_of_a_test_gives_up_after_five_seconds() -> None:
    """HTTPX's default: too few for a busy machine."""
    found = [
        f"{path.relative_to(ROOT)}:{call.lineno}"
        for path in (ROOT / "tests").rglob("*.py")
        if path.parent.name != "clients"  # some are programs of their own
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("httpx2.AsyncClient", "httpx2.Client")
        if not {"timeout", None} & {keyword.arg for keyword in call.keywords}
    ]
    assert found == []


NAMED_TYPE = re.compile(r"`([A-Z][a-z]+[A-Za-z]*)(?:\.[A-Za-z_.]+)?`")


PURE = ("values", "hooks", "tools", "plan", "approvals", "models", "runs", "sessions")
GENERIC = {"TypeAdapter", "TypeVar", "PayloadKind", "Callable", "ToolContext", "ModelMessages"}
"""Types whose parameter may be any: `Callable[..., Any]` is any function."""


def test_every_any_of_the_pure_packages_is_explained_where_it_stands() -> None:
    """A comment on its line or the line above says why no type does; an alias has a docstring."""
    unexplained = []
    for path in (file for package in PURE for file in sorted((PACKAGE / package).rglob("*.py"))):
        text = path.read_text(encoding="utf-8")
        lines, tree = text.splitlines(), ast.parse(text)
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for name in (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "Any"):
            above = parents[name]
            above = parents[above] if isinstance(above, ast.Tuple) else above
            around: ast.AST = name
            while not isinstance(around, ast.stmt):
                around = parents[around]
            if isinstance(around, ast.AnnAssign) and ast.unparse(around.annotation) == "TypeAlias":
                continue
            if isinstance(above, ast.Subscript) and ast.unparse(above.value) in GENERIC:
                continue
            if isinstance(above, ast.Call | ast.Compare | ast.Assign):  # a value, and no annotation
                continue
            line = name.lineno - 1
            if "#" not in lines[line] and not lines[line - 1].lstrip().startswith("#"):
                unexplained.append(f"{path.relative_to(ROOT)}:{name.lineno}")
    assert not unexplained, "\n".join(unexplained)


def test_every_type_that_a_docstring_names_exists() -> None:
    """A name in backquotes that nothing has any more sends a reader on a search."""
    known: set[str] = set(dir(builtins))
    named: list[tuple[str, str]] = []
    for folder in ("perdure", "workflows", "activities"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                    named += [(str(path), name) for name in NAMED_TYPE.findall(str(node.value.value))]
                elif isinstance(node, ast.Constant):
                    known.add(str(node.value))
                known |= {getattr(node, kind) for kind in ("name", "id", "attr", "arg") if hasattr(node, kind)}
    known |= OTHERS
    unknown = [f"{path}: {name}" for path, name in named if name not in known]
    assert not unknown, "\n".join(unknown)


OTHERS = {"Payments", "Forwarded", "NaN", "FunctionTool", "FunctionToolset", "BaseTool"}
"""Of a user's code in an example, of a header, of a number, of other frameworks: no names of the engine's."""
