"""`perdure rollout`: two versions of an agent side by side (R24.10)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from perdure.agents.agent import Agent
from perdure.agents.rollouts import Rollout, read_rollouts, write_rollouts
from perdure.cli._console import get_console, make_table, strip_control_characters
from perdure.cli._execute import USAGE, CommandError, Json, connected, one_line_errors
from perdure.cli._help import Commands
from perdure.cli._list_commands import Since, check_since
from perdure.cli._options import with_settings
from perdure.hosting.settings import Settings
from perdure.values.json import dumps
from perdure.values.problems import first_problem

if TYPE_CHECKING:
    from perdure.client.versions import VersionFigures


def _name(text: str) -> str:
    """Return an agent's name in the agents folder. A path is an error."""
    if "/" in text or text.endswith(".json"):
        name = Path(text).stem
        raise typer.BadParameter(f"{text!r} is a path; give the agent's name in the agents folder, such as {name!r}")
    return text


Name = Annotated[str, typer.Argument(metavar="AGENT", help="The agent's name in the agents folder.", callback=_name)]
rollout_app = Commands(no_args_is_help=True, help="Rollouts: a candidate version of an agent gets a share of new runs.")


@rollout_app.command("start")
@with_settings("agents")
def start(
    settings: Settings,
    agent: Name,
    candidate: Annotated[
        str, typer.Argument(metavar="CANDIDATE", help="The candidate's name in the agents folder.", callback=_name)
    ],
    share: Annotated[
        float, typer.Option(min=0, max=100, metavar="PERCENT", help="The percentage of new runs and sessions.")
    ] = 0,
    tenant: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A tenant whose new runs all use the candidate. May be repeated."),
    ] = None,
) -> None:
    """Start a candidate for a share of an agent's new runs, or change the share. Started runs keep their version."""
    folder = settings.agents_folder
    with one_line_errors():
        if not share and not tenant:
            raise CommandError("no run would use the candidate: give --share or --tenant", USAGE)
        try:
            rollout = Rollout(candidate=candidate, share=share, tenants=tuple(tenant or ()))
        except ValidationError as error:
            raise CommandError(first_problem(error), USAGE) from None
        stable = Agent.read_to_run(folder / f"{agent}.json", rollouts=False)
        # The readers' validation comes first: an invalid file is not written.
        both = stable.with_candidate(
            Agent.read_to_run(folder / f"{candidate}.json", rollouts=False), share=share, tenants=rollout.tenants
        )
        others = read_rollouts(folder)
        path = write_rollouts(folder, {**others, agent: rollout})
    print(f"{path}: {_sentence(agent, rollout)}; the version of {agent} is {both.version}")


@rollout_app.command("stop")
@with_settings("agents")
def stop(settings: Settings, agent: Name) -> None:
    """Roll back: new runs use the agent's own file again. Started runs keep their version."""
    with one_line_errors():
        others = read_rollouts(settings.agents_folder)
        if others.pop(agent, None) is None:
            raise CommandError(f"{agent} has no candidate: {settings.agents_folder} has no rollout of it", USAGE)
        write_rollouts(settings.agents_folder, others)
    print(f"new runs of {agent} use {settings.agents_folder / f'{agent}.json'}")


@rollout_app.command("show")
@with_settings("agents")
def show(
    settings: Settings,
    agent: Name,
    since: Since = "7d",
    tenant: Annotated[str | None, typer.Option(metavar="NAME", help="Only this tenant's runs.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="The number of runs to compare, newest first.")] = 1000,
    as_json: Json = False,
) -> None:
    """Compare an agent's versions by their runs: ends, tokens, cost, time and scores. The command queries no run."""
    with one_line_errors():
        check_since(since)
        rollout = read_rollouts(settings.agents_folder).get(agent)
    found = connected(lambda perdure: perdure.compare_versions(agent, since=since, tenant=tenant, limit=limit))
    if as_json:
        shown = None if rollout is None else rollout.model_dump(mode="json")
        print(dumps({"rollout": shown, "versions": [each.as_json() for each in found]}))
        return
    print("no rollout" if rollout is None else _sentence(agent, rollout))
    if not found:
        print("no runs")
        return
    titles = (
        "version",
        "runs",
        "running",
        "waiting",
        "completed",
        "failed",
        "stopped",
        "tokens",
        "cost",
        "seconds",
        "score",
    )
    get_console().print(
        make_table(
            titles,
            [_cells(each) for each in found],
            get_console().width,
            shrinkable=("version",),
            droppable=("stopped", "waiting", "seconds"),
            right=titles[1:],
        )
    )


def _sentence(agent: str, rollout: Rollout) -> str:
    parts = [f"{rollout.share:g} % of new runs"] if rollout.share else []
    parts += [f"those of {', '.join(rollout.tenants)}"] if rollout.tenants else []
    return strip_control_characters(f"{' and '.join(parts) or 'no new runs'} of {agent} use {rollout.candidate}")


def _cells(each: VersionFigures) -> list[str]:
    counts = (each.runs, each.running, each.waiting, each.completed, each.failed, each.stopped)
    tokens = "" if each.tokens is None else f"{each.tokens:,.0f}"
    cost = "" if each.cost is None else f"${each.cost:.4f}"
    seconds = "" if each.seconds is None else f"{each.seconds:,.1f}"
    score = "" if each.score is None else f"{each.score:.2f}"
    return [each.version or "none", *(f"{count:,}" for count in counts), tokens, cost, seconds, score]
