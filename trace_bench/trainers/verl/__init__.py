"""`trainer=verl`: the same training over several processes, GPUs and machines, by verl and Ray.

    trainer.py   in the run's process: starts verl, keeps the ledger
    job.py       the job's folder, which it prepares
    process.py   runs verl as a process group: watches and restarts it
    collector.py collects an iteration's episodes for the ledger
    arrivals.py  reads what verl's processes write: episodes, metrics, checkpoints
    rewind.py    takes a job back to the start of an iteration
    preflight.py checks before the first rollout
    spec.py      the job description that verl's processes read
    compose.py   converts our settings to verl's
    launch.py    the started process: checks, then verl's trainer
    steps.py     verl's trainer, extended with our metrics and stop conditions
    episodes.py  runs our episodes in verl's workers
    tokens.py    the policy of these episodes, over verl's token servers
    export.py    converts checkpoints to adapters in PEFT's format
    estimator.py the advantages, as trainer=local computes them
    engine.py    the learning rate's decay, the number of optimizer steps
    cpu/         verl's missing parts for machines without a GPU

Nothing here is imported unless `trainer=verl` is chosen.
"""
