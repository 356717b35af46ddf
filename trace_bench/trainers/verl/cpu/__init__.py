"""What verl lacks for machines without a GPU: a platform, a rollout server, a worker.

verl imports `trace_bench.trainers.verl.cpu.plugin` in each of its processes where
VERL_USE_EXTERNAL_MODULES says so; with trainer.device=cuda it does not.
"""
