"""TRACE: find the capabilities that an agent lacks, train one adapter for each, route between them.

    analysis rollouts -> labels -> selection -> training tasks -> calibration -> GRPO -> router

Every rollout of every phase is charged to the budget. Everything follows from `lab.seed`, and every
call has a name that is the same when the run is repeated. Because the phases take shares of the
whole budget, a checkpoint of a large run is not what a run with that smaller budget gives.

    method.py       the order of the phases, and the plan
    settings.py     every number, by phase, with where it comes from
    budget.py       which phase gets how many rollouts
    analysis/       step 1: run, label, select capabilities
    synthesis/      step 2: tasks for a capability: the suite's own, a model's, or training tasks
    training.py     step 3: adapters
    routing.py      step 4: which adapter acts
    classifier.py   learned from openings; turns.py from training rollouts; both by logistic.py
    gates.py        the trained gate over the adapters

Figures land in `capabilities.json`: {"analysis", "thresholds", "candidates", "calibration",
"training", "labels", "outcome"}; where a model writes the environments also {"generator",
"dropped"}: the capabilities without an adapter that may be used, each with the reason.
"""

from trace_bench.methods.trace.method import Trace

__all__ = ["Trace"]
