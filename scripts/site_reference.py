"""Docstrings as the site reads them: what they say of parameters becomes a list, names become links, silence a complaint.

An extension of griffe, which reads the code without running it. In a docstring of ours a sentence that begins with a parameter's name in
backticks and a colon is about that parameter; `Raises` begins what is raised; other names in backticks lead to where they are described, if they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import griffe

from perdure.hosting.settings import Settings

PAGES: Final = Path(__file__).parents[1] / "docs" / "reference"
_ABOUT: Final = re.compile(r"(?:^|(?<=[.;:)] ))((?:`\w+`(?:, | and ))*`\w+`): ")
_QUOTED: Final = re.compile(r"`(\w+)`")
_RULE: Final = re.compile(r"(?<![\[\w])R\d+\.\d+(?![\]\w])")
_RAISES: Final = re.compile(r"(?:^|(?<=[.;:)] ))Raises? (?=[`a-z])")
_NAME: Final = re.compile(r"(?<![\[\w`])`([A-Za-z_][\w.]*)`(?![\]\w`])")
_OTHERS: Final = ("model_config", "settings_customise_sources")
"""Pydantic's own members; mkdocs.yml leaves them out too."""


def described() -> list[str]:
    """Whatever has a place in the reference, as its pages name it."""
    return [
        name
        for page in sorted(PAGES.glob("*.md"))
        for name in re.findall(r"^::: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]


class Reference(griffe.Extension):  # type: ignore[misc, unused-ignore]
    """Rewrites the docstrings of what is described, once all of Perdure is read."""

    def on_package(self, *, pkg: Any, loader: Any, **_: Any) -> None:
        """`pkg`: the package as griffe has read it."""
        if pkg.name != "perdure":
            return
        loader.resolve_aliases()
        found = {name: _final(pkg[name.removeprefix("perdure.")]) for name in described()}
        silent: list[str] = []
        for name, thing in found.items():
            places = _places(name, list(found))
            owned = {member: f"{name}.{member}" for member in _members(thing)}
            silent += _rewrite(thing, places | owned)
            for member in _members(thing).values():
                silent += _rewrite(member, places | owned)
                for below in _members(member).values():
                    silent += _rewrite(
                        below, places | {each: f"{name}.{member.name}.{each}" for each in _members(member)}
                    )
        shown = {id(each) for thing in found.values() for each in (thing, *_members(thing).values())}
        for name, thing in found.items():
            for each in map(_final, thing.inherited_members.values() if thing.is_class else ()):
                if id(each) not in shown and not each.name.startswith("_"):
                    shown.add(id(each))
                    silent += _rewrite(each, _places(name, list(found)) | {each.name: f"{name}.{each.name}"})
        if silent:
            raise SystemExit(f"without a docstring: {', '.join(silent)}")


def _places(name: str, names: list[str]) -> dict[str, str]:
    """Where names lead that stand in its docstring: classes from everywhere, functions, whose names are plain words, from beside them."""
    short = {each.rsplit(".", 1)[-1]: each for each in names}
    room = name.rpartition(".")[0]
    return {word: each for word, each in short.items() if word[0].isupper() or each.rpartition(".")[0] == room}


def _final(thing: Any) -> Any:
    return thing.final_target if thing.is_alias else thing


def _members(thing: Any) -> dict[str, Any]:
    """What of it is shown."""
    if not (thing.is_class or thing.is_module):
        return {}
    return {
        name: each
        for name, each in thing.members.items()
        if not (name.startswith("_") or name in _OTHERS or each.is_alias or each.is_module)
    }


def _rewrite(thing: Any, places: dict[str, str]) -> list[str]:
    """Make its docstring what the site shows; its path where it has none and needs one."""
    if thing.is_attribute:
        _attribute(thing)
    if thing.docstring is None:
        return [thing.path] if (thing.is_function or thing.is_class) and thing.name != "as_json" else []
    if thing.is_function and thing.overloads and any(each.name == "options" for each in thing.parameters):
        # It takes whatever they take: they say what that is, and its default.
        thing.parameters = max(thing.overloads, key=lambda each: len(each.parameters)).parameters
    parameters = _parameters(thing)
    words: list[str] = []
    about: dict[str, str] = {}
    raises: list[str] = []
    for paragraph in paragraphs(thing.docstring.value):
        if paragraph.startswith((" ", "-", "|", "```")) or "\n    " in paragraph:  # an example, a drawing or a list
            words.append(paragraph)
            continue
        said, more, raised = _sentences(" ".join(paragraph.split()), parameters)
        words += said
        about |= more
        raises += raised
    links = {
        name: place
        for name, place in places.items()
        if name not in parameters and place != thing.path and name != thing.name
    }
    listed = "\n".join(f"    {name}: {text}" for name, text in about.items())
    examples = [part for part in words if part.startswith("```")]
    words = [_linked(part, links) for part in words if part not in examples]
    rest = [_linked(part, links) for part in [*(["Args:\n" + listed] if about else []), *raises]]
    thing.docstring.value = "\n\n".join([*words, *rest, *examples])
    return []


def paragraphs(text: str) -> list[str]:
    """Return the paragraphs of a docstring. A block of code is one, with its empty lines."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return [
        paragraph
        for place, part in enumerate(parts)
        for paragraph in ([part] if place % 2 else re.split(r"\n\s*\n", part.strip("\n")))
        if paragraph
    ]


def _sentences(paragraph: str, parameters: list[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """What it says, but for what it says of parameters, that by name, and what is raised."""
    raising = _RAISES.search(paragraph)
    raises = [paragraph[raising.start() :]] if raising else []
    paragraph = paragraph[: raising.start()].rstrip() if raising else paragraph
    marks = [mark for mark in _ABOUT.finditer(paragraph) if set(_QUOTED.findall(mark[1])) <= set(parameters)]
    ends = [*(mark.start() for mark in marks[1:]), len(paragraph)]
    about: dict[str, str] = {}
    for mark, end in zip(marks, ends, strict=False):
        text = paragraph[mark.end() : end].strip().removesuffix(";")
        about |= dict.fromkeys(_QUOTED.findall(mark[1]), text[:1].upper() + text[1:])
    before = paragraph[: marks[0].start()].strip() if marks else paragraph
    return [before] if before else [], about, raises


def _linked(text: str, links: dict[str, str]) -> str:
    def link(found: re.Match[str]) -> str:
        first, _, rest = found[1].removeprefix("perdure.").partition(".")
        if first not in links or (rest and not first[0].isupper()):
            return found[0]
        return f"[`{found[1]}`][{links[first]}{'.' + rest if rest else ''}]"

    return _RULE.sub(r"[\g<0>][\g<0>]", _NAME.sub(link, text))


def _parameters(thing: Any) -> list[str]:
    if not (thing.is_function or thing.is_class):
        return []
    return [each.name for each in thing.parameters if each.name not in ("self", "cls")]


def _attribute(thing: Any) -> None:
    """Its default as one reads it; a setting's words stand in the call that makes it."""
    if "instance-attribute" in thing.labels and "class-attribute" not in thing.labels:
        # Set as an object is made: how is nobody's concern, and its type is that of the parameter it is made from.
        thing.value = None
        if thing.annotation is None and thing.name in _parameters(thing.parent):
            thing.annotation = thing.parent.parameters[thing.name].annotation
    thing.labels -= {"class-attribute", "instance-attribute"}
    value = str(thing.value)
    if value.startswith("setting("):
        thing.docstring = griffe.Docstring(f"{Settings.model_fields[thing.name].description}.", parent=thing)
        thing.value = thing.value.arguments[0]
    elif made := re.fullmatch(r"(?:F|f)ield\(default_factory=(\w+)\)", value):
        thing.value = {"list": "[]", "dict": "{}"}.get(made[1], f"{made[1]}()")
