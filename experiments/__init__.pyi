"""Public names, each in its module; loaded when they are first used."""

from .compare.comparison import Answer as Answer, Comparison as Comparison, compare_planners as compare_planners
from .compare.questions import (
    compare as compare,
    make_problem as make_problem,
    names as names,
    plan as plan,
    simulate as simulate,
)
from .report.plan_report import PlanReport as PlanReport
from .report.report_questions import goodput as goodput, report as report, what_if as what_if
from .report.what_ifs import WhatIf as WhatIf
from .sweep.sweep_question import sweep as sweep
from .targets.launching import launchable as launchable
