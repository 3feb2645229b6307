"""The output of a run: validated against its schema, with its references resolved."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from perdure.errors import FormulaError, JsonError, StateError, TooLargeError, clip
from perdure.models.requests import RequestResult
from perdure.plan import QUOTED, Call, Plan, missing_path
from perdure.runs.limits import StopReason
from perdure.tools.tool import TASK_COMPLETE
from perdure.values.formulas import MissingValueError
from perdure.values.json import Json, JsonObject, check, json_path, loads_commented, shorten
from perdure.values.limits import MAX_OUTPUT, MAX_OUTPUT_TEXTS, MAX_REPLY, bytes_text
from perdure.values.provenance import NOWHERE, Sources
from perdure.values.references import MISSING, UNKNOWN, Missing, Reference, get
from perdure.values.schemas import Schema
from perdure.values.sizes import Sizes
from perdure.values.templates import PLAIN, TemplateText, TextBudget, TextForm, is_expression, parse_output

StateReader: TypeAlias = Callable[[Reference], "Json | Missing"]
_FENCE: Final = re.compile(r"\s*```\w*\n(.*?)\n?```\s*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ParsedText:
    """The meaning of a text for a schema.

    `json`: a JSON document; `text`: the text itself is the output; `prose`: the text is no output; a model must put it
    into form.
    """

    kind: Literal["json", "text", "prose"]
    value: Json = None


class Outputs:
    """A checker and reader of outputs of one schema; `True` and `{}` accept anything, `False` nothing."""

    def __init__(self, schema: JsonObject | bool) -> None:
        self.any = schema is True or schema == {}
        self._schema = Schema(schema) if isinstance(schema, dict) else None
        self._none = schema is False

    def problems(self, output: Json, *, references: bool = False) -> list[str]:
        """Return the problems of an output, one line each. With `references`, a reference passes for any value."""
        if self._none:
            return ["no output is allowed"]
        return [] if self._schema is None else self._schema.errors(output, references=references)

    def read_text(self, text: str, *, beside_calls: bool) -> ParsedText:
        """Parse an answer in plain text (R6.4).

        Beside calls the text is a remark, unless it is a JSON document or a reference that fits the schema.
        """
        document = _document(text)
        if document is MISSING:
            is_text = not beside_calls and not self.problems(text, references=True)
            return ParsedText("text", text) if is_text else ParsedText("prose")
        structured = isinstance(document, dict | list) or is_expression(text)
        if isinstance(document, dict) and set(document) == {"output"} and not self.any:
            # A structured answer has this form, unless the schema itself accepts such an object.
            document = document if not self.problems(document, references=True) else document["output"]
        fits = not self.problems(document, references=True)
        if beside_calls:
            return ParsedText("json", document) if structured and fits else ParsedText("prose")
        if structured and (fits or not self.any):
            return ParsedText("json", document)
        if not self.problems(text, references=True):
            return ParsedText("text", text)
        return ParsedText("json", document) if fits else ParsedText("prose")


def _document(text: str) -> Json | Missing:
    """Parse the whole text as JSON, without a fence around it. A text that is one reference is returned as text."""
    if is_expression(text):
        return text.strip()
    fenced = _FENCE.fullmatch(text)
    try:
        return loads_commented((fenced.group(1) if fenced else text).strip("\ufeff \t\r\n"))
    except JsonError:
        return MISSING


def resolve_output(
    output: Json,
    values: Mapping[str, Json],
    texts: TextBudget,
    read: StateReader | None = None,
    *,
    reads_lazily: bool = True,
) -> tuple[Json, list[str]]:
    """Return an output with its references replaced by the `values` of their kinds, and its problems (R6.4).

    `read` reads references to the state, as a call at the end of the list does. A reference may be a
    whole text or embedded, at any depth. A call in an output, an object with `_tool`, is data. It keeps its references,
    which belong to its own graph (R5.8). `reads_lazily`: see `LAZY_READS`.
    """
    template, malformed = parse_output(output)
    template = template if reads_lazily else template.with_all_needed()

    found: dict[Reference, Json | Missing] = {}

    def lookup(reference: Reference) -> Json | Missing:
        if reference not in found:
            stands = read is None or reference.kind != "state"
            known = stands and reference.kind in values
            value = get(values[reference.kind], reference.path) if known else MISSING
            found[reference] = read(reference) if read is not None and not stands else value
        return found[reference]

    wrong = [f"{json_path(each.path)}: {each.error}" for each in malformed]
    try:
        for site in template.find_missing(lookup):
            wrong.append(_missing(site.missing_reference(lookup), json_path(site.path), values))
        return (None, wrong) if wrong else (template.resolve(lookup, texts), [])
    except MissingValueError as error:
        where = next(site.path for site in template.sites if site.expression == error.reference)
        return None, [_missing(error.reference, json_path(where), values)]
    except (TooLargeError, FormulaError, StateError) as error:
        return None, [str(error)]


def reads_alike(output: Json, state: Json, read: StateReader) -> bool:
    """Whether `read` returns for each reference of an output the value that the `state` holds."""
    template, _ = parse_output(output)
    try:
        return all(
            read(reference) == get(state, reference.path)
            for reference in dict.fromkeys(template.references())
            if reference.kind == "state"
        )
    except StateError:
        return False


def _missing(reference: Reference, where: str, values: Mapping[str, Json]) -> str:
    """Return the reason why a reference has no value. The model may not be allowed to read the value from before the
    plan (R5.1).
    """
    if reference.kind not in values or get(values[reference.kind], reference.path) is MISSING:
        return missing_path(reference, where, values).message
    return (
        f"{where}: {clip(str(reference), QUOTED)} was to be written by a call of this plan, which went another branch"
    )


def whole_output(
    output: Json,
    values: Mapping[str, Json],
    max_payload: int,
    sizes: Sizes,
    read: StateReader | None = None,
    *,
    reads_lazily: bool = True,
) -> tuple[Json, list[str]]:
    """Return an output as `resolve_output` does, and its problems; a value that is too large or too deep is a problem
    too.
    """
    texts = TextBudget(max_payload, sizes, total=MAX_OUTPUT_TEXTS)
    output, wrong = resolve_output(output, values, texts, read, reads_lazily=reads_lazily)
    most = max(MAX_OUTPUT, max_payload)
    if not wrong and (size := sizes.of(output)) > most:  # one value may be read a thousand times
        wrong = [f"it has {bytes_text(size)}; the limit is {most:,}"]
    if not wrong:
        try:
            check(output, source="it")  # a value that was read may lie deep in the output
        except JsonError as error:
            wrong = [str(error)]
    return output, [f"the output cannot be made: {'; '.join(wrong[:5])}"] if wrong else []


class KnownText:
    """The text of an output, up to the first reference whose value may still change (R19.4)."""

    def __init__(
        self, output: Json, values: Mapping[str, Json], texts: TextBudget, sizes: Sizes, read: StateReader
    ) -> None:
        """Read references to the state by `read`, which returns `UNKNOWN` for a value that may change; others from
        `values`."""
        self.text = ""
        self._values, self._sizes, self._read = values, sizes, read
        self._found: dict[Reference, Json | Missing] = {}
        template, malformed = parse_output(output)
        self._known: TemplateText | None = None if malformed else template.text(self._look, texts)
        self._pieces: Iterator[str | None] = iter(()) if self._known is None else self._known

    @property
    def form(self) -> TextForm:
        """Form of the text."""
        return PLAIN if self._known is None else self._known.form

    def read_on(self) -> None:
        """Add the text that is known by now; no more than an event holds."""
        found: list[str] = []
        room = MAX_REPLY - len(self.text)
        try:
            while room > 0 and (piece := next(self._pieces, None)) is not None:
                found.append(piece[:room])
                room -= len(piece)
        except (TooLargeError, FormulaError, StateError):
            self.stop()  # the output will be rejected, or only the end of the run shows its text
        self.text += "".join(found)

    def stop(self) -> None:
        """Add no more text."""
        self._pieces = iter(())

    def _look(self, reference: Reference) -> Json | Missing:
        if reference not in self._found:
            value = (
                self._read(reference)
                if reference.kind == "state"
                else get(self._values[reference.kind], reference.path)
                if reference.kind in self._values
                else MISSING
            )
            if value is UNKNOWN:
                return value
            if value is not MISSING and self._sizes.of(value) > _LARGEST:
                raise TooLargeError(f"{reference} is too large to be shown")
            self._found[reference] = value
        return self._found[reference]


_LARGEST: Final = 4 * MAX_REPLY
"""Bytes of the largest value that is shown before the end: the text of a larger one takes long to make."""


@dataclass(frozen=True, slots=True)
class WrittenOutput:
    """An answer's output as the model wrote it, and the stop reason that belongs to its form."""

    value: Json
    reason: StopReason
    needs_form: bool = False
    """Whether the answer is prose, which the next Request must put into the schema's form."""


@dataclass(frozen=True, slots=True)
class JudgedOutput:
    """An answer's output with its references replaced, and why it does not count."""

    value: Json
    reason: StopReason
    problems: Sequence[str] = ()
    """Errors for the model."""
    held: str | None = None
    """Reason why no output of this answer counts."""

    @property
    def counts(self) -> bool:
        return self.value is not None and not self.problems


class RunOutput:
    """The output of one run, and the reading of its model's answers.

    `text_answers`: whether a plain text may be the answer. `reasoning`: whether the run's result has the model's last
    reasoning.
    """

    def __init__(self, schema: JsonObject | bool, *, text_answers: bool, reasoning: bool = False) -> None:
        self.value: Json = None
        """The output, once the run is over."""
        self.sources: Sources = NOWHERE
        """Provenance of the last output that the model wrote."""
        self.stop_reason: StopReason | None = None
        self.reasoning = ""
        """The model's reasoning before the output."""
        self._outputs = Outputs(schema)
        self.text_answers, self._with_reasoning = text_answers, reasoning

    def text(self, result: RequestResult) -> Json:
        """Return the text or output of an answer as it was written; `None` if it has none."""
        text = result.text if self.text_answers and result.text.strip() else None
        return text if result.output is None else result.output

    def is_complete(self, plan: Plan, result: RequestResult, *, counts_remarks: bool = False) -> bool:
        """Whether an answer holds an output in any form, so that no Request has to follow.

        `counts_remarks`: whether a text that is no output counts, such as one beside calls. It does in runs of 0.2.0.
        """
        if counts_remarks:
            return bool(_completions(plan.own)) or self.text(result) is not None
        return self.read(result.output, plan, plan.own, result).value is not None

    def read(self, written: Json, plan: Plan, fresh: list[Call], result: RequestResult) -> WrittenOutput:
        """Return the output of an answer: `written`, the result of `task_complete`, or the text.

        `fresh` are the calls that have ended since the last Request.
        """
        completed = _completions(fresh)
        if written is None and completed:
            return WrittenOutput(completed[-1].state.result, "task_complete")
        if not self.text_answers or not result.text.strip() or result.problem is not None:
            return WrittenOutput(written, "output")
        parsed = self._outputs.read_text(result.text, beside_calls=bool(plan.own))
        needs_form = parsed.kind == "prose" and not plan.own
        return WrittenOutput(parsed.value, "answer" if parsed.kind == "text" else "output", needs_form)

    def text_value(self, plan: Plan, result: RequestResult) -> Json:
        """Return an answer's text as an output, as it was written; `None` if it is no output or breaks the schema."""
        if self.text(result) is None:
            return None
        value = self.read(result.output, plan, [], result).value
        return None if self._outputs.problems(value, references=True) else value

    def check(self, value: Json) -> list[str]:
        """Return the problem of an output that breaks the schema."""
        breaks = [] if value is None else self._outputs.problems(value)
        return (
            [f"the output breaks its schema: {'; '.join(breaks[:5])}. It was {shorten(value, 300)}"] if breaks else []
        )

    def end(self, value: Json, reason: StopReason, reasoning: str = "") -> None:
        """Set the run's output: the run is over."""
        self.value, self.stop_reason = value, reason
        self.reasoning = reasoning if self._with_reasoning else ""


def _completions(calls: Iterable[Call]) -> list[Call]:
    return [call for call in calls if call.spec.tool_name == TASK_COMPLETE and call.state.status == "done"]
