"""Public names, each in its module; loaded when they are first used."""

from .comparison import Answer as Answer, Comparison as Comparison, compare_planners as compare_planners
from .problem_options import read_any_profile as read_any_profile
from .questions import (
    compare as compare,
    make_problem as make_problem,
    names as names,
    plan as plan,
    simulate as simulate,
)
