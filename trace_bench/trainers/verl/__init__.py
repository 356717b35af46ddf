"""`trainer=verl`: the same training over several processes, GPUs and machines, by verl and Ray.

    trainer.py   in the run's process: starts verl, keeps the ledger
    job.py       the job's folder, which it prepares
    process.py   verl as a process that is watched and started again
    arrivals.py  what verl's processes write down: episodes, metrics, checkpoints
    preflight.py what can be known to be wrong before anything is played
    spec.py      what that folder says to the other processes
    compose.py   our settings as verl's
    launch.py    the process that is started: checks, then verl's trainer
    steps.py     verl's trainer, with what it tells of a step and when it gives up
    episodes.py  how verl's workers play our episodes
    tokens.py    the policy behind them: verl's servers of tokens
    export.py    checkpoints to adapters in PEFT's format
    engine.py    the learning rate's decay
    cpu/         what verl lacks for machines without a GPU

Nothing here is imported unless `trainer=verl` is chosen.
"""
