"""`trainer=verl`: the same training over several processes, GPUs and machines, by verl and Ray.

    in the run's process: trainer.py keeps the ledger, job.py writes the job's folder and makes
    adapters of checkpoints, process.py starts verl, watches it and collects what it writes;
    before that preflight.py checks and machines.py estimates
    in verl's trainer: steps.py with sampler.py and rows.py
    in its workers: episodes.py with tokens.py; engine.py
    in all of them: settings.py; spec.py has the job and what its processes write, compose.py
    converts our settings to verl's; cpu/ is what verl lacks on machines without a GPU

Nothing but this file is imported unless `trainer=verl` is chosen.
"""
