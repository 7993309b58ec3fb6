"""Plan files: a plan and the problem that it answers as one JSON document, written and read back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.output import InputError, to_json
from simulator import Plan, Stage, write_atomically

FORMAT = "pipeplan-plan-1"


def plan_document(plan: Plan) -> dict[str, Any]:
    """The plan's decisions as plain JSON values; devices are ids of the cluster, layers indices of the workload."""
    return {
        "planner": plan.planner,
        "schedule": plan.schedule,
        "notation": plan.notation,
        "replication": plan.replication,
        "microbatches": list(plan.microbatches),
        "stages": [{"layers": list(stage.layers), "devices": list(stage.devices)} for stage in plan.stages],
        "forward_sizes": [list(sizes) for sizes in plan.forward_sizes],
        "backward_sizes": [list(sizes) for sizes in plan.backward_sizes],
    }


def write_plan(path: Path, plan: Plan, problem: dict[str, Any]) -> None:
    """Write a plan with the options of its problem."""
    write_atomically(path, to_json({"format": FORMAT, "problem": problem, "plan": plan_document(plan)}) + "\n")


def read_plan(path: str) -> tuple[Plan, dict[str, Any]]:
    """Read what `write_plan` wrote: the plan, and the options of its problem; InputError names the file and the key."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not a text file (UTF-8)") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: is not JSON: line {error.lineno}: {error.msg}") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(
            f"{path}: is not a plan file: key 'format' must be {FORMAT!r} (pipeplan plan --out writes one)"
        )
    try:
        given, problem = document["plan"], dict(document["problem"])
        plan = Plan(
            planner=str(given["planner"]),
            schedule=str(given["schedule"]),
            stages=tuple(
                Stage(tuple(int(one) for one in stage["layers"]), tuple(int(one) for one in stage["devices"]))
                for stage in given["stages"]
            ),
            microbatches=tuple(int(one) for one in given["microbatches"]),
            replication=given["replication"],
            forward_sizes=tuple(tuple(int(one) for one in sizes) for sizes in given["forward_sizes"]),
            backward_sizes=tuple(tuple(int(one) for one in sizes) for sizes in given["backward_sizes"]),
        )
    except KeyError as error:
        raise InputError(f"{path}: key {error.args[0]!r} is missing in the plan") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: the plan has a value of the wrong kind: {error}") from None
    return plan, problem
