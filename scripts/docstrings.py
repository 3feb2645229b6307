"""Check the docstrings: `python -m scripts.docstrings [PATH…]`.

Every docstring begins with a verb or a noun phrase, never with a bare pronoun or a loose clause such as "What…", "Whoever…" or "Of…".
A function's begins with a verb in its base form ("Return…", "Yield…") or with "Whether". Exempt are properties, `__init__`, groups of commands, and tools, whose text a model reads.
Without a path the public names are checked too: each has a docstring with an example, and without the number of a rule.
Public are the names that `perdure`, `perdure.testing` and `perdure.workflow` export, and those that the reference describes.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final, is_typeddict

from pydantic import BaseModel

ROOT: Final = Path(__file__).parents[1]
FACES: Final = ("perdure", "perdure.testing", "perdure.workflow")
"""The modules whose `__all__` is public."""
PACKAGES: Final = ("perdure", "workflows", "activities")
LOOSE: Final = re.compile(
    r"(What|Whatever|Whoever|Whom|Who|Whose|Of|That|Those|This|These|All|Everything|It|Its|They|So|Where|How|As|Beside|By|In|Like|The same|Whole)\b"
)
"""Openings without a subject that a reader knows: the sentence would need a second reading."""
NO_VERB: Final = re.compile(
    r"(?![A-Z][a-z]+\b(?!'))|(?!Bring|Ping)\w+ing\b|\w*[^su]s\b|(Who|Whose|That|Where|How|Why|When|While|Before|After|Behind|Below|Under|Above"
    r"|About|At|On|To|For|From|With|Without|Inside|The|An|Any|All|One|Two|Three|No|Not|None|Nothing|Nobody|Nearly|Something|Every|Each|Only|Another"
    r"|Other|Full|Equal|Native|Same|New|Old|First|Last|Next|Text|Line|Time|Back)\b"
)
"""Openings that are no verb in its base form: an article, a preposition, a code word, a plural, "Returns" or "Returning"."""
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def docstrings(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield the line and text of each docstring of a module, a class or a function, and whether it has to begin with a verb."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | _Function) and (text := ast.get_docstring(node)):
            acts = (
                isinstance(node, _Function) and node.name != "__init__" and not any(map(_is_noun, node.decorator_list))
            )
            yield node.body[0].lineno, text, acts


def _is_noun(decorator: ast.expr) -> bool:
    """Whether a function with this decorator is read as a value, or its docstring by a model."""
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called).rpartition(".")[2] in ("property", "cached_property", "tool", "group", "callback")


def problems(paths: list[Path]) -> list[str]:
    """Return one line for each docstring with a loose opening, as `file:line: text`."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0][:100]}"
        for path in paths
        for line, text, acts in docstrings(path)
        if LOOSE.match(text) or (acts and NO_VERB.match(text))
    ]


@dataclass(frozen=True)
class PublicName:
    """A public class, function or method, or a public field with a docstring."""

    name: str
    docstring: str
    needs_example: bool


def public_names() -> Iterator[PublicName]:
    """Yield every public class, function, method, property and described field, each once."""
    pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "reference").glob("*.md"))]
    named = [name for page in pages for name in re.findall(r"^::: (\S+)", page, re.MULTILINE)]
    exported = [f"{face}.{name}" for face in FACES for name in importlib.import_module(face).__all__]
    seen: set[str] = set()
    for name in dict.fromkeys([*exported, *named]):
        for module, node in _definitions(name):
            where = f"{module.__name__}.{node.name}"
            if where not in seen:
                seen.add(where)
                yield from _members(module, node)


_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _definitions(name: str) -> Iterator[tuple[ModuleType, _Definition]]:
    """Yield the definitions behind a dotted name: of a module all of its public ones, of an alias of a type none."""
    found, wanted = _resolve(name)
    if isinstance(found, ModuleType):
        module, names = found, None
    else:
        module, names = sys.modules[getattr(found, "__module__", name.rpartition(".")[0])], {wanted}
    if not module.__name__.startswith("perdure"):
        return
    # The last of several is no overload.
    nodes = {node.name: node for node in _tree(module).body if isinstance(node, _Definition)}
    for each, node in nodes.items():
        if each in names if names is not None else not each.startswith("_"):
            yield module, node


@functools.cache
def _tree(module: ModuleType) -> ast.Module:
    return ast.parse(inspect.getsource(module))


def _resolve(name: str) -> tuple[Any, str]:
    """Return the object of a dotted name, and the last part of the name."""
    module, _, last = name.rpartition(".")
    try:
        return importlib.import_module(name), last
    except ModuleNotFoundError:
        return getattr(importlib.import_module(module), last), last


def _members(module: ModuleType, node: _Definition) -> Iterator[PublicName]:
    where = f"{module.__name__}.{node.name}"
    yield PublicName(where, ast.get_docstring(node) or "", needs_example=True)
    if not isinstance(node, ast.ClassDef):
        return
    cls = getattr(module, node.name)
    for base in cls.__mro__:
        if base.__module__.startswith("perdure"):
            yield from _fields(base)
    methods = {each.name: each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    for name, method in methods.items():
        inherited = any(name in vars(base) for base in cls.__mro__[1:])
        if not (name.startswith("_") or inherited or (_is_record(cls) and ast.get_docstring(method) is None)):
            plain = isinstance(vars(cls)[name], property) or _is_record(cls)
            yield PublicName(f"{where}.{name}", ast.get_docstring(method) or "", needs_example=not plain)


def _fields(cls: type) -> Iterator[PublicName]:
    """Yield the fields of a class that have a docstring."""
    node: ast.Module | ast.ClassDef = _tree(sys.modules[cls.__module__])
    for name in cls.__qualname__.split("."):
        [node] = [each for each in node.body if isinstance(each, ast.ClassDef) and each.name == name]
    for field, below in zip(node.body, node.body[1:], strict=False):
        text = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and below.value.value
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, str):
            yield PublicName(f"{cls.__module__}.{cls.__qualname__}.{field.target.id}", text, needs_example=False)


def _is_record(cls: type) -> bool:
    """Whether the class holds data, so that its own example shows its members too."""
    return (
        dataclasses.is_dataclass(cls)
        or is_typeddict(cls)
        or (isinstance(cls, type) and issubclass(cls, BaseModel | BaseException))
    )


def examples(docstring: str) -> list[str]:
    """Return the blocks of Python in a docstring."""
    return re.findall(r"^```python\n(.*?)^```$", docstring, re.MULTILINE | re.DOTALL)


def public_problems() -> list[str]:
    """Return one line for each public name without a docstring or an example, or with the number of a rule."""
    found: list[str] = []
    for each in public_names():
        if not each.docstring:
            found.append(f"{each.name}: has no docstring")
        elif each.needs_example and not examples(each.docstring):
            found.append(f"{each.name}: has no example")
        if codes := re.findall(r"\bR\d+\.\d+\b", each.docstring):
            found.append(f"{each.name}: names the rule {codes[0]}, which belongs in a comment")
    return found


def main(arguments: list[str]) -> int:
    """Print every problem below the given paths; return 1 if there is one."""
    roots = [Path(each).resolve() for each in arguments] or [ROOT / name for name in PACKAGES]
    paths = [path for root in roots for path in (sorted(root.rglob("*.py")) if root.is_dir() else [root])]
    found = problems([path for path in paths if not any(part.is_symlink() for part in (path, *path.parents))])
    lacking = [] if arguments else public_problems()
    print("\n".join([*found, *lacking]), end="\n" if found or lacking else "")
    if found:
        print(
            f"{len(found)} docstrings begin with a bare pronoun or a loose clause: begin with a verb or a noun phrase."
        )
    if lacking:
        print(f"{len(lacking)} public names lack a docstring or an example, or name a rule.")
    return bool(found or lacking)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
