"""TRACE: find the capabilities that an agent lacks, train one adapter for each, route between them.

    look -> choose -> share the budget -> make tasks -> train -> route -> gate

Every rollout of every step is charged to the budget. Everything follows from `lab.seed`, and every
call has a name that is the same when the run is repeated. Because the steps take shares of the
whole budget, a checkpoint of a large run is not what a run with that smaller budget gives.

    method.py       the steps in order, and the plan, which is made from them
    settings.py     every number with where it comes from; those of a route are in routing.py

    ../looking/     1 run training tasks and label what happened; 2 which capabilities are missing
    budget.py       3 who gets how many rollouts: one value
    tasks.py        4 tasks of a capability: drawn (../making.py), written or selected
    calibrate.py      how hard drawn or written tasks are for the base agent
    generate/         a language model writes them
    training.py     5 one adapter for each
    routing.py      6 which adapter acts; learned.py: from what it is learned
    gates.py        7 GRPO of the gate

Figures land in `capabilities.json`: {"analysis", "thresholds", "candidates", "calibration",
"training", "labels", "outcome"}; where a model writes the environments also {"generator",
"dropped"}: the capabilities without an adapter that may be used, each with the reason.
"""

from trace_bench.methods.trace.method import Trace

__all__ = ["Trace"]
