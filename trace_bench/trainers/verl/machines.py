"""What `trainer=verl` needs of machines and hours (`trainers.memory`), for a dry run. Nothing here
was measured on a GPU.

Training and reading cost operations (Kaplan et al. 2020, arXiv 2001.08361), writing a token costs
reading the weights and the cache of all live episodes (Pope et al. 2022, arXiv 2211.05102). Rates
are the vendor's of an H100 SXM, the shares reached assumed (Chowdhery et al. 2022: some 40 %)."""

from __future__ import annotations

import re

from trace_bench.core.protocols import RunContext, Typical
from trace_bench.trainers.memory import GPU, OVERHEAD, Sizes, shape_of
from trace_bench.trainers.verl.settings import VerlSettings

OPERATIONS, BANDWIDTH = 989e12, 3.35e12  # of one GPU: bf16 operations and bytes in a second
READ, WRITE, TRAIN, EXPERTS = 0.4, 0.5, 0.3, 0.15  # shares: prompts, answers, training dense, MoE
STEP = 0.005  # seconds of a written token beside memory traffic: kernels, LoRA, sampling
SWITCH, START = 30.0, 300.0  # seconds: from sampling to training and back; a start of the trainer

SERVER_VARIABLES = "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True VLLM_USE_FLASHINFER_SAMPLER=0"
"""Adapters come while it serves; flashinfer's sampler would be compiled by an nvcc of the runtime's
version, which a machine seldom has."""
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # what vLLM's --max-lora-rank takes
PARSERS = (
    (r"qwen3-coder|qwen3\.\d", "qwen3_coder"),
    (r"llama-?3", "llama3_json"),
    (r"mistral|devstral", "mistral"),
)


def machines(
    settings: VerlSettings, run: RunContext, billions: float | None
) -> tuple[list[str], list[str]]:
    """(needs of hardware for a model of so many billion parameters, what is missing here)."""
    s, missing = settings, list[str]()
    where = f"trainer=verl on {s.ranks} {'GPU(s)' if s.device == 'cuda' else 'processes'}{s.by}"
    if billions is None:
        return [f"{where}: the weights in float32, shared by all"], missing
    each, served = 4 * billions / s.ranks, 2 * billions / s.tensor_parallel
    rest = "in the machine's memory between uses" if s.offload else "all the time"
    lines = [f"{where}: {each:.3g} GB of weights each ({rest}), {served:.3g} GB more for vLLM"]
    if s.device == "cuda" and served > s.gpu_memory * GPU:
        missing.append(
            f"vLLM needs {served:g} GB of each GPU for the weights and gets {s.gpu_memory * GPU:g} "
            f"of {GPU}: raise trainer.tensor_parallel or trainer.gpu_memory"
        )
    shape = shape_of(run.model)
    if s.device == "cpu" or shape is None:
        return lines, missing
    if unreached := shape.unreached(s.target_modules):
        missing.append(unreached)
    if run.context is not None:
        training = _training(s, shape, run.context)
        serving = _serving(s, shape, run, run.context)
        lines, missing = lines + training[0] + serving[0], missing + training[1] + serving[1]
    return lines, missing


def _parts(s: VerlSettings, shape: Sizes, context: int) -> dict[str, float]:
    """GB of one GPU while it trains."""
    rows = s.rows(context)
    tokens = rows * context
    ends = 2 * 2 * shape.vocab * shape.hidden  # embeddings and head, gathered in bf16
    masks = 3 * tokens * context if rows > 1 else 0  # torch's attention with padding
    parts = {
        "weights": 4 * shape.parameters / s.ranks,
        "adapter and its optimizer": 16 * shape.lora(s.rank, s.target_modules) / s.ranks,
        "gathered layers": ends + 2 * 2 * shape.layer,
        f"activations of {tokens} tokens": shape.activations(tokens, s.target_modules) + masks,
        "logits": shape.logits(tokens),
        "the rest": OVERHEAD,
    }
    return {name: size / 1e9 for name, size in parts.items()}


def _training(s: VerlSettings, shape: Sizes, context: int) -> tuple[list[str], list[str]]:
    """Memory of training and its rollouts: GPUs, host and disk."""
    parts, most = _parts(s, shape, context), GPU * (1 - s.serving)
    total, weights = sum(parts.values()), 2 * shape.parameters / 1e9
    words = ", ".join(f"{name} {size:.1f}" for name, size in parts.items())
    cache, episodes = shape.cache(s.tensor_parallel, s.gpu_memory), s.groups * s.group_size
    live = max(0, int(cache // (context * shape.kv_token)))
    replicas = max(1, s.gpus // s.tensor_parallel) * weights
    copies, load = (2 * weights / s.nnodes if s.offload else 0.0), 2 * weights
    kept = 2 * 12 * shape.lora(s.rank, s.target_modules) / 1e9
    lines = [
        f"  a GPU in training: {total:.0f} GB ({words})",
        f"  a vLLM of {s.tensor_parallel} GPU(s) in training: {live} whole episodes of {context} "
        f"tokens at once ({shape.kv_token / 1e3:.0f} kB a token), of {episodes} live ones in all",
        f"  host memory of a machine: {copies + replicas + load:.0f} GB (weights between uses "
        f"{copies:.0f}, sleeping vLLM {replicas:.0f}, loading {load:.0f})",
        f"  disk: {weights:.0f} GB for the model, {kept:.2g} for two checkpoints, and episodes",
    ]
    missing = []
    if total > most:
        missing.append(
            f"training needs {total:.0f} GB of each GPU and has {most:.0f} of {GPU} "
            f"({words}): raise trainer.gpus, or lower trainer.batch_tokens or policy.context"
        )
    if live < 1:
        missing.append(
            f"vLLM in training cannot hold one episode of {context} tokens: raise "
            "trainer.gpu_memory or trainer.tensor_parallel, or lower policy.context"
        )
    return lines, missing


def server_gpus(s: VerlSettings, shape: Sizes) -> int:
    """Of the agent's server on each machine."""
    free = s.gpus if s.serving else (s.node_gpus or 2 * s.gpus) - s.gpus
    return max((n for n in (1, 2, 4, 8) if n <= free and shape.heads % n == 0), default=0)


def _serving(
    s: VerlSettings, shape: Sizes, run: RunContext, context: int
) -> tuple[list[str], list[str]]:
    """The agent's server on each machine: its GPUs, its episodes, its command."""
    if not run.at_servers:
        return [], []
    if (rank := next((most for most in LORA_RANKS if most >= s.rank), None)) is None:
        most = LORA_RANKS[-1]
        return [], [f"vLLM serves adapters up to rank {most}: lower trainer.rank={s.rank}"]
    total, share = s.node_gpus or 2 * s.gpus, s.serving or 0.9
    gpus = server_gpus(s, shape)
    if (live := int(shape.cache(gpus, share) // (context * shape.kv_token))) < 1:
        return [], [
            f"trainer.gpus={s.gpus} of trainer.node_gpus={total} leave the agent's server {gpus} "
            f"GPU(s), which hold no episode of {context} tokens: lower trainer.gpus or "
            "policy.context, or let both share GPUs (trainer.serving)"
        ]
    first, shared = (0, "the same GPUs") if s.serving else (s.gpus, f"{gpus} more")
    return [
        f"  GPUs of a machine: {s.gpus} for training, {shared} for the server, which holds {live} "
        f"whole episodes of {context} tokens at once (policy.batch={run.batch})",
        f"  a server: {SERVER_VARIABLES} CUDA_VISIBLE_DEVICES="
        f"{','.join(map(str, range(first, first + gpus)))} "
        f"python -m vllm.entrypoints.openai.api_server --model {run.model} --served-model-name "
        f"{run.served_model or run.model} --max-model-len {context} --tensor-parallel-size {gpus} "
        f"--gpu-memory-utilization {share:g} --enable-lora --max-loras 8 --max-lora-rank {rank} "
        f"--lora-target-modules {' '.join(s.served_modules)} --enable-auto-tool-choice "
        f"--tool-call-parser {_parser(run.model)}",
    ], []


def _parser(model: str) -> str:
    """vLLM's parser of what models of this name write (docs/models.md has the table)."""
    name = model.rpartition("/")[2]
    parsers = (parser for kind, parser in PARSERS if re.search(kind, name, re.IGNORECASE))
    return next(parsers, "hermes")


def play_seconds(shape: Sizes, t: Typical, gpus: int, share: float, live: int) -> tuple[float, int]:
    """(seconds of an episode on a vLLM with so many live ones, how many of them its cache holds to
    their end). It holds once what is common to all; the others wait, and are read at each turn."""
    room = (shape.cache(gpus, share) / shape.kv_token - t.common) / (t.final - t.common)
    fit = min(live, max(1, int(room)))
    moves = 2 * shape.read(fit) + fit * (t.prompt + t.completion) * shape.kv_token
    step = STEP + moves / (gpus * BANDWIDTH * WRITE)
    again = (1 - fit / live) * t.turns * (t.prompt - t.common)
    tokens = t.final - t.common + again
    reading = shape.operations(tokens, tokens * t.prompt) / (gpus * OPERATIONS * READ)
    return (t.turns * t.completion + t.user * t.reply) * step / fit + reading, fit


def update_seconds(s: VerlSettings, shape: Sizes, t: Typical, rows: int) -> float:
    """Of an episode. Lengths lie evenly about the final one, and the rows of a pass are padded to
    the longest: attention is the whole square then, and half of it for one row. Passes: the old
    probabilities; forward, at the checkpoints, and back, through attention 2.5."""
    old = 2 if s.algorithm.kl > 0 else 1  # the base model's too
    tokens = t.final * 2 * rows / (rows + 1)
    pairs = tokens**2 * (0.5 if rows == 1 else 1.0) * (old + 4.5 * s.epochs)
    work = shape.operations(tokens * (old + 3 * s.epochs), pairs)
    return work / (s.ranks * OPERATIONS * (EXPERTS if shape.experts else TRAIN))


def hours(
    s: VerlSettings, run: RunContext, adapters: int, rollouts: int, others: int, t: Typical | None
) -> list[str]:
    """Hours and GPU-hours and what they assume; none for unknown sizes, or without GPUs."""
    shape, size = shape_of(run.model), s.groups * s.group_size
    if shape is None or t is None or run.context is None or s.device == "cpu":
        return []
    times, live = rollouts / size, max(1, size * s.tensor_parallel // s.ranks)
    each, fit = play_seconds(shape, t, s.tensor_parallel, s.gpu_memory, live)
    update = size * update_seconds(s, shape, t, s.rows(run.context))
    gpus = server_gpus(s, shape) if run.at_servers else 0
    other = play_seconds(shape, t, gpus, s.serving or 0.9, run.batch)[0] if gpus else 0.0
    parts = {
        f"{times:.0f} times {each * live:.0f} s of rollouts": times * each * live,
        f"{update:.0f} s of updates and {SWITCH:.0f} s between": times * (update + SWITCH),
        f"{adapters} start(s)": adapters * START,
        f"{others} other rollouts": others * other / s.nnodes,
    }
    total, count = sum(parts.values()) / 3600, s.ranks + (0 if s.serving else gpus * s.nnodes)
    words = ", ".join(f"{name} {seconds / 3600:.1f}" for name, seconds in parts.items())
    return [
        f"about {total:.1f} hours, {total * count:.0f} GPU-hours on {count} GPU(s) ({words})",
        f"  assumed, not measured: episodes of {t.final} tokens, {t.common} of them common to all; "
        f"a vLLM in training caches {fit} of its {live} live ones and reads the others again at "
        f"each turn; H100 (989 Tops, 3.35 TB/s), of which writing reaches {WRITE:.0%}, reading "
        f"{READ:.0%}, training {EXPERTS if shape.experts else TRAIN:.0%}; without the "
        "environments' own time and the wait for an iteration's longest episode",
    ]
