"""The files in a run folder, for the code that writes or reads them: their names, keys in them,
what to do about a damaged one, and how the tokens of an episode stand in its line: as one text,
base64 of a zlib stream of msgpack, the lists `prompt_ids`, `token_ids` and `logprobs` of all turns.
No number is rounded."""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import replace

from trace_bench.core.types import Count, Stored

CONFIG = "config.yaml"
SUMMARY = "summary.json"
AGENT = "agent.json"
BEGINNING = "beginning.json"
"""The agent that the run began with (the setting `agent`), and what was spent on it."""
TASKS = "tasks.json"
"""What each held-out task needs, {task id: [words]}, for readers (of a `Tagged` suite)."""
DEMONSTRATED = "demonstrated.json"
"""Beside weights that `trace_bench.tiny make` made: {suite, split, tasks: {id: fingerprint}}, what
the agent was shown; a run leaves these tasks out of its training tasks."""
CODE = "code.jsonl"
"""Hashes of the package: of that by which the run began, and of others that resumed it."""
FAULTS = "failures.txt"
"""Tracebacks of exceptions that ended episodes."""

ELSEWHERE = (
    "run_dir", "runs_root", "tracker", "experiment", "sandbox", "dry_run", "max_lost", "agent",
)  # fmt: skip
"""Keys of config.yaml that do not change what a run computes (where it is written, its name, where
its environments run, when it stops, where the agent lay that it began with). They are not part of
its identity; the content of that agent is, under the key `beginning`."""

LOWER, UPPER = ("idle", "random"), ("reference",)
FLOORS = (*LOWER, *UPPER)
"""The scripted policies that every run evaluates: two lower bounds and, for a suite with
references, an upper bound."""

_RUN_AGAIN = "Remove that line and run the same command again: what it held is run again."
_TRAINED_AGAIN = (
    "Remove that line and, if there is one, the folder `adapters` beside the file, and run the "
    "same command again: what was lost is run again with the adapter of its time, which is "
    "trained again from the stored rollouts."
)
_WRITTEN_AGAIN = "Remove the file and run the same command again: it is written again"

REPAIRS = {
    CONFIG: "Restore it from a copy, or change `run_dir`.",
    "ledger.jsonl": f"{_WRITTEN_AGAIN} from trajectories.jsonl, and no rollout is charged twice.",
    "trajectories.jsonl": _TRAINED_AGAIN,
    "curve.jsonl": _TRAINED_AGAIN,
    "evaluation.jsonl": _RUN_AGAIN,
    "evaluation_trajectories.jsonl": "Remove that line and run the same command again: the scores "
    "stay, and the conversation is gone.",
    "metrics.jsonl": f"{_WRITTEN_AGAIN} from the stored rollouts.",
    "llm.jsonl": "Remove that line and run the same command again: the model is asked again.",
    "timing.json": f"{_WRITTEN_AGAIN}, without the wall times of earlier attempts.",
    CODE: f"{_WRITTEN_AGAIN}, without the code of earlier attempts.",
    TASKS: f"Remove the file and {SUMMARY} beside it, and run the same command again: both are "
    "written again.",
    SUMMARY: f"{_WRITTEN_AGAIN} from the other files.",
    "adapters/*/finished.json": "It has the metrics of a finished training, as metrics.jsonl has "
    "them line by line (phase training). Restore it from a copy, or change the setting `run_dir`.",
    "verl/episodes/*.jsonl": "The line is of an episode that a process of verl ran. Remove it "
    "and run the same command again: the episode is run again, unless the ledger has it.",
    "verl/validation/*.jsonl": "The line is of an episode of verl's own validation, which nothing "
    "else needs. Remove it and run the same command again.",
    "verl/metrics-*.jsonl": "Remove that line and run the same command again: the metrics of that "
    "step are left out, or written again if verl repeats it.",
    BEGINNING: f"{_WRITTEN_AGAIN} from the agent that the setting `agent` names.",
    AGENT: f"Remove the file and {SUMMARY} beside it, and run the same command again: both "
    "are written again.",
}
"""What to do about a damaged file, by the end of its path, where * stands for any name: each of the
run's own can be made again from the others."""

OWN = (*(name for name in REPAIRS if "/" not in name), FAULTS)
"""The files that the run itself writes; a method writes others."""

HASHED = (
    "ledger.jsonl", "evaluation.jsonl", "curve.jsonl", "metrics.jsonl", "capabilities.json",
    "trajectories.jsonl", "evaluation_trajectories.jsonl", TASKS,
)  # fmt: skip
"""The files whose hashes are in summary.json."""

MOST_PACKED = 2**24  # bytes of msgpack: more than an episode of a million tokens
Ids = tuple[tuple[Count, ...], ...]


def packed(stored: Stored) -> Stored:
    """The line as it is written: as it is, if it has no tokens, too many, or one not finite."""
    import msgspec

    turns = stored.trajectory.turns
    lists = tuple(zip(*((t.prompt_ids, t.token_ids, t.logprobs) for t in turns), strict=True))
    data = msgspec.msgpack.encode(lists, enc_hook=lambda number: number.item())  # numpy's
    finite = math.isfinite(sum(sum(t.logprobs) for t in turns))
    if not finite or not stored.trajectory.tokens or len(data) > MOST_PACKED:
        return stored
    bare = tuple(replace(t, prompt_ids=(), token_ids=(), logprobs=()) for t in turns)
    text = base64.b64encode(zlib.compress(data)).decode()
    return replace(stored, trajectory=replace(stored.trajectory, turns=bare), tokens=text)


def unpacked(stored: Stored, text: str) -> Stored:
    """The line with the tokens of the text in their turns. Raises ValueError and zlib.error."""
    import msgspec

    stream = zlib.decompressobj()
    data = stream.decompress(base64.b64decode(text, validate=True), MOST_PACKED + 1)
    if not stream.eof or len(data) > MOST_PACKED:
        raise ValueError(f"the stream is cut off, or has more than {MOST_PACKED} bytes")
    lists = msgspec.msgpack.decode(data, type=tuple[Ids, Ids, tuple[tuple[float, ...], ...]])
    if not math.isfinite(sum(map(sum, lists[2]))):
        raise ValueError("a log-probability is not finite")
    parts = zip(stored.trajectory.turns, *lists, strict=True)
    full = tuple(replace(t, prompt_ids=p, token_ids=s, logprobs=x) for t, p, s, x in parts)
    return replace(stored, trajectory=replace(stored.trajectory, turns=full), tokens=None)
