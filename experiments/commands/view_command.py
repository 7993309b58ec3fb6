"""`pipeplan view`: plans on a page that a browser shows: timelines, memory, what ops wait for, decisions."""

from __future__ import annotations

import argparse

from experiments.compare.problem_options import PLANS, add_imported, plan_names, read_own_plans
from experiments.terminal.argument_types import add_options
from experiments.terminal.exits import OK
from experiments.terminal.output import UsageError, print_json, progress, say
from experiments.view.page_option import check_bokeh, window, write_page, written_page
from hardware_profiles import counted


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `pipeplan view`."""
    add_options(
        parser,
        {
            **PLANS,
            "--out FILE": ("write FILE.html (extra pipeplan[view])", written_page, ...),
            "--window BEGIN:END": ("seconds of the timelines to show (default: all)", window),
            "--json": "print one JSON document: what the page has",
        },
    )
    add_imported(parser)


def run(arguments: argparse.Namespace) -> int:
    """Replay, write the page, and tell what it has."""
    import simulator

    check_bokeh(arguments.out)
    if not arguments.plan:
        raise UsageError("view needs --plan FILE, a plan to show")
    names = plan_names(arguments.plan)
    if len(set(names)) < len(names):
        raise UsageError(f"--plan {next(one for one in names if names.count(one) > 1)} is given twice")
    with progress("replaying"):
        plans = read_own_plans(arguments, arguments.plan)
        replays = {name: simulator.simulate(*plan, engine="compiled") for name, plan in zip(names, plans, strict=True)}
    drawn = write_page(arguments.out, replays, title=", ".join(names), window=arguments.window)
    if arguments.json:
        print_json({"file": str(arguments.out), "plans": [one.record() for one in drawn]})
        return OK
    for one in drawn:
        say(
            ", ".join(
                [
                    f"{one.name}: {counted(len(one.lanes), 'row')}",
                    *(f"{n:,} {what}" for what, n in one.counts().items()),
                ]
            )
        )
    for name, replay in replays.items():
        if not replay.fits:
            say(f"{name}: {replay.excess}")
    say(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.1f} MB")
    return OK
