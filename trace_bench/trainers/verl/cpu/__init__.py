"""verl's missing parts for machines without a GPU: a platform, a rollout server, a worker.

verl imports `trace_bench.trainers.verl.cpu.plugin` in each of its processes if
VERL_USE_EXTERNAL_MODULES names it; with trainer.device=cuda it does not.
"""
