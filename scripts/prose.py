"""Check the sentences that people read: `python -m scripts.prose [PATH…]`.

The pages (README, docs/ and the other Markdown files at the top, of the changelog what is not released) and, in code, help texts and error messages.
A sentence has at most 30 words, begins with a subject, and uses the words of the field. Code between backquotes is one word.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT: Final = Path(__file__).parents[1]
PACKAGES: Final = ("perdure", "workflows", "activities")
WITH_CODES: Final = ("protocol.md", "architecture.md")
"""The pages for who changes Perdure: these have codes of rules."""
MOST_WORDS: Final = 30
"""Style asks for 20 words or fewer; above this number a sentence has two facts in any case."""

OPENINGS: Final = re.compile(
    r"(?:Whoever|Whatever|Whichever|Whom|Whose|Of which|Of whom|Those who|Those that|All that|Everything that|That which)\b"
    r"|What\b(?!.*\?$)"
)
"""Openings without a noun. "What" may begin a question."""

TERMS: Final = {
    r"stands?|stood": "is, appears",
    r"whoever|whatever it": "a noun: who or what it is",
    r"purses?|takers?": "budget, budget share",
    r"wirings?": "dependency graph",
    r"settling": "scheduling",
    r"vouch\w*": "provenance",
    r"lanes?": "message queue",
    r"doors?": "adapter, interface",
    r"dead letters?": "undelivered reply",
    r"simply|obviously|of course|please": "nothing: leave it out",
    r"utili[sz]e[sd]?|leverage[sd]?|seamless(?:ly)?|robust(?:ly)?|powerful|blazing\w*": "a fact or a figure",
}
"""Words that this project does not use, each with those that it does."""

MESSAGES: Final = {
    r"goes on|went on|go on": "continues",
    r"any more": "no longer",
    r"what (?:waits|runs|is|was|it|has|happens)": "a noun: the call, the result, the value",
    r"is the most|are the most": "the limit is",
    r"look at": "read, show, check",
    r"took it up|taken it up|broke down|is told": "a verb of the field: start, fail, receive",
    r"nobody": "no person",
    r"of which|of whom": "a sentence of its own",
}
"""Further words that help texts and error messages do not use, each with those that they do."""

_MESSAGE: Final = re.compile("|".join(rf"\b(?:{term})\b" for term in MESSAGES), re.IGNORECASE)
_TERM: Final = re.compile("|".join(rf"(?P<t{n}>\b(?:{term})\b)" for n, term in enumerate(TERMS)), re.IGNORECASE)
_RULE: Final = re.compile(r"\bR\d{1,2}\.\d{1,2}\b")
_END: Final = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!etc\.)[\"')]*\s+(?=[\"'(]*[A-Z†¶0-9])|\n")
_WORD: Final = re.compile(r"\w[\w'’.,:/%-]*")
_CODE: Final = "¶"
"""Stands for code between backquotes, a placeholder of a message, or a picture."""


def sentences(text: str) -> list[str]:
    """Split plain text where a full stop, a question mark or an exclamation mark ends a sentence."""
    return [sentence.strip() for sentence in _END.split(text) if sentence.strip()]


def problems_of(sentence: str, codes: bool = False, message: bool = False) -> Iterator[str]:
    """Yield what is wrong with a sentence. `codes`: whether it may have codes of rules. `message`: whether code prints it."""
    for found in _MESSAGE.finditer(sentence) if message else ():
        better = next(words for term, words in MESSAGES.items() if re.fullmatch(term, found[0], re.IGNORECASE))
        yield f'"{found[0]}": use {better}'
    if (count := len(_WORD.findall(sentence)) + sentence.count(_CODE)) > MOST_WORDS:
        yield f"{count} words, at most {MOST_WORDS}"
    if opening := OPENINGS.match(sentence):
        yield f'begins with "{opening[0]}": begin with a subject'
    if not codes and (code := _RULE.search(sentence)):
        yield f'"{code[0]}": leave out the code of a rule; link to docs/protocol.md'
    for found in _TERM.finditer(sentence):
        replacement = list(TERMS.values())[int(str(found.lastgroup)[1:])]
        yield f'"{found[0]}": use {replacement}'


def plain(token: Token) -> str:
    """Return an inline token's text, its code as one sign."""
    kinds = {"softbreak": " ", "hardbreak": "\n", "code_inline": _CODE, "image": _CODE, "html_inline": ""}
    return "".join(kinds.get(child.type, child.content) for child in token.children or ())


def of_page(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each paragraph, item and cell of a Markdown page; headings and code are left out."""
    heading = False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        heading = (heading or token.type == "heading_open") and token.type != "heading_close"
        if token.type == "inline" and not heading:
            yield (token.map or [0])[0] + 1, plain(token)


def of_changelog(text: str) -> Iterator[tuple[int, str]]:
    """Yield what `of_page` yields of the part under "Unreleased"."""
    before, _, rest = text.partition("\n## Unreleased\n")
    offset = before.count("\n") + 2
    for line, found in of_page(re.split(r"^## ", rest, maxsplit=1, flags=re.MULTILINE)[0]):
        yield line + offset, found


def of_code(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each error message and each help text of a module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                yield from _literals(argument)
        elif isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg in ("help", "short_help", "epilog", "description"):
                    yield from _literals(keyword.value)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(map(_is_command, node.decorator_list)):
            yield node.lineno, re.sub(r"`[^`]+`", _CODE, re.sub(r"(?<!\n)\n(?!\n)", " ", ast.get_docstring(node) or ""))


def _is_command(decorator: ast.expr) -> bool:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(function, ast.Attribute) and function.attr in ("command", "callback")


def _literals(node: ast.expr) -> Iterator[tuple[int, str]]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.lineno, re.sub(r"`[^`]+`", _CODE, node.value)
    elif isinstance(node, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else _CODE for part in node.values]
        yield node.lineno, re.sub(r"`[^`]+`", _CODE, "".join(parts))


def files() -> list[Path]:
    """Return the pages and the modules that are checked."""
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    modules = [path for name in PACKAGES for path in (ROOT / name).rglob("*.py")]
    return [path for path in sorted({*pages, *modules}) if not any(each.is_symlink() for each in (path, *path.parents))]


def problems(paths: list[Path]) -> list[str]:
    """Return one line for each fault, as `file:line: fault: sentence`."""
    found = []
    for path in paths:
        read = of_code if path.suffix == ".py" else of_changelog if path.name == "CHANGELOG.md" else of_page
        for line, text in read(path.read_text(encoding="utf-8")):
            for sentence in sentences(text):
                found += [
                    f"{path.relative_to(ROOT)}:{line}: {problem}: {sentence[:160]}"
                    for problem in problems_of(
                        sentence, path.name in WITH_CODES, path.suffix == ".py" and "models" not in path.parts
                    )
                ]
    return found


def main(arguments: list[str]) -> int:
    """Print every fault of the given files, or of all; return 1 if there is one."""
    found = problems([Path(each).resolve() for each in arguments] or files())
    print("\n".join(found), end="\n" if found else "")
    if found:
        print(f"{len(found)} faults in sentences that people read.")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
