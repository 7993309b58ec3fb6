"""pipeplan: simulate and plan pipeline-parallel DNN training.

    import pipeplan as pp

    pp.simulate("1f1b", stages=4, microbatches=8, forward=1, backward=2).plot()
    problem = pp.Problem("vgg16", "pipedream-b", batch=1024)
    result = pp.plan(problem, "pipedream", budget=500)
    print(result.summary())
    result.plot_gantt()
    print(pp.report(result, price=2.0).summary())  # where its time and memory go, MFU, cost, runner-ups, what limits it
    pp.compare(problem, ["greedy", "pipedream"]).frame  # pandas
    pp.goodput(result, mtbf_hours=2000, checkpoint_gb_per_s=2, restart_seconds=300).summary()  # days on servers that fail
    pp.sweep({"batch": "512:1024:x2"}, workload="vgg16", cluster="pipedream-b", planner="data-parallel", jobs=1)  # pandas
    pp.PlanFile(problem, result.plan).write("plan.json")  # and pp.PlanFile.read("plan.json")

`pp.names("planners")`, of "workloads", "clusters", "schedules", …, lists what can be named. The four packages `simulator`,
`planners`, `hardware_profiles` and `experiments` hold everything else.
"""

from experiments import (
    Comparison as Comparison,
    compare as compare,
    goodput as goodput,
    launchable as launchable,
    make_problem as Problem,
    names as names,
    plan as plan,
    report as report,
    simulate as simulate,
    sweep as sweep,
    what_if as what_if,
)
from hardware_profiles import load_cluster as load_cluster
from planners import Result as Result
from simulator import (
    InfeasiblePlanError as InfeasiblePlanError,
    Outcome as Outcome,
    Plan as Plan,
    PlanFile as PlanFile,
    Schedule as Schedule,
    ScheduleReplay as ScheduleReplay,
    Stage as Stage,
    explain as explain,
    sensitivity as sensitivity,
    read_any_profile as read_profile,
    workload_from_spec as load_workload,
)

if __name__ == "__main__":  # python -m pipeplan
    from experiments.cli import main

    raise SystemExit(main())
