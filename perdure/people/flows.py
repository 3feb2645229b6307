"""Rules about where a parameter may come from (R15.5): `{"from": "tool:read_mail", "to": "send_money.iban", "do": "ask"}`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from perdure.values.sources import OTHERS, in_words, plain, untrusted
from perdure.values.sources.origins import Origins

UNTRUSTED: Final = "untrusted"
ANY: Final = "*"
_FROM: Final = r"^(user|agent|model|untrusted|\*|(tool|skill|file|client):.{1,200})$"


class Flow(BaseModel):
    """One rule. Of several that meet the same source and the same parameter the last one counts."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    source: str = Field(alias="from", pattern=_FROM)
    """`tool:NAME`, `skill:NAME`, `file:NAME`, `client:NAME`, `user`, `agent`, `model`; `untrusted` is whatever others wrote, `*` anything."""
    to: str = Field(min_length=1, max_length=500)
    """`TOOL.PARAMETER`; `TOOL` is each of its parameters, and the call itself; `*` all tools."""
    do: Literal["ask", "refuse", "allow"]
    """`allow`: what comes from there does not count as untrusted here."""

    def meets(self, tool: str, param: str | None, name: str) -> bool:
        """Whether it is about this source in this parameter of this tool; no parameter is the call itself."""
        there = self.to in (ANY, tool) or (param is not None and self.to == f"{tool}.{param}")
        return there and self.source in (ANY, plain(name), UNTRUSTED if name.startswith(OTHERS) else None)

    def may_meet(self, tool: str) -> bool:
        return self.to in (ANY, tool) or self.to.startswith(f"{tool}.")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What rules say of one call."""

    refuse: str | None = None
    ask: str | None = None
    tainted: list[tuple[str | None, str]] = field(default_factory=list)
    """Parameter (none: the call itself) and source of what others may have written, as far as no rule allows it."""

    @property
    def why_tainted(self) -> str:
        """What of it others may have written."""
        return "; ".join(
            f"{'the call' if param is None else param} comes from {in_words([name])}"
            for param, name in self.tainted[:3]
        )


def judge_flows(flows: Sequence[Flow], tool: str, origins: Origins | None) -> Judgement:
    """What the rules say of a call of the tool. Where it is not known yet what it reads, whatever may be."""
    if origins is None or not origins.read:
        asks = [rule for rule in flows if rule.do == "ask" and rule.may_meet(tool)]
        why = f"what flows into {tool} is not known yet"
        return Judgement(ask=why if asks else None, tainted=[(None, f"{OTHERS}not known yet")])
    refuse = ask = None
    tainted: list[tuple[str | None, str]] = []
    for param, name in _flows_of(origins):
        rule = next((rule for rule in reversed(flows) if rule.meets(tool, param, name)), None)
        way = f"{tool}{'' if param is None else f'.{param}'} comes from {in_words([name])}"
        if rule is not None and rule.do == "refuse":
            refuse = refuse or f"{way}, which the policy refuses"
        elif rule is not None and rule.do == "ask":
            ask = ask or f"{way}, which the policy asks about"
        if name.startswith(OTHERS) and not (rule is not None and rule.do == "allow"):
            tainted.append((param, name))
    return Judgement(refuse, ask, tainted)


def _flows_of(origins: Origins) -> Iterator[tuple[str | None, str]]:
    """Each parameter with each of its sources; then the call itself with what others wrote of it."""
    for param, sources in origins.params.items():
        for name in sorted(sources):
            yield param, name
    for name in sorted(origins.written if not origins.params else untrusted(origins.written)):
        yield None, name
