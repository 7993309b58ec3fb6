from tests.simulator.test_peak_memory import *
from simulator.evaluation import Evaluations
from simulator import simulate


@settings(max_examples=300, deadline=None)
@given(plans())
def test_eval(case):
    problem, plan = case
    out = simulate(problem, plan, engine="compiled")
    ev = Evaluations(problem)
    for _ in range(2):
        got = ev(plan)
        assert got.seconds == out.iteration_seconds
        full = out.fullest
        assert (got.device, got.peak_bytes, got.capacity_bytes) == (full.device, full.peak_bytes, full.capacity_bytes)
        assert ev.peak_bytes(plan) == {d.device: d.peak_bytes for d in out.memory}
