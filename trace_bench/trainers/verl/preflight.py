"""Checks before the first rollout. Nothing here imports verl, nor what verl imports."""

from __future__ import annotations

import os
import re
import shutil
import socket
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext
from trace_bench.llm.roles import IN_EPISODES
from trace_bench.trainers.memory import OVERHEAD, Shape, shape_of
from trace_bench.trainers.settings import VerlSettings, shared_evenly
from trace_bench.trainers.verl.process import check_settings
from trace_bench.trainers.verl.spec import JobSpec

VERL = "0.9.1"
TRANSFORMERS = ((5, 5, 3), (5, 11, 0))
VALUE_HEAD = "AutoModelForCausalLMWithValueHead"
_TRL_PPO = "experimental/ppo/__init__.py"
_INSTALL = "pip install '.[verl]'"
PARSERS = (
    (r"qwen3-coder|qwen3\.\d", "qwen3_coder"),
    (r"llama-?3", "llama3_json"),
    (r"mistral|devstral", "mistral"),
)


def preflight(spec: JobSpec, *, whole: bool = True) -> None:
    """Raises UserError that says what to change; cheap checks first. `spec`: any job of the run;
    `whole`: also let verl check its settings, which takes as long as importing it."""
    for check in CHECKS:
        check(spec.trainer)
    _divergence(spec)
    _roles(spec)
    from trace_bench.trainers.adapters import fresh

    fresh(spec.agent.model, spec.trainer.target_modules, spec.trainer.rank, 0)
    if not whole:
        return
    with tempfile.TemporaryDirectory(prefix="trace_bench-") as folder:
        check_settings(spec, Path(folder))


def _packages(settings: VerlSettings) -> None:
    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    found = version("verl")
    if found is None:
        raise UserError(
            f"trainer=verl needs the package verl, which is not installed: {_INSTALL}, or set "
            "`trainer` to local."
        )
    if found != VERL:
        raise UserError(f"trainer=verl works with verl {VERL}; {found} is installed: {_INSTALL}.")
    transformers = metadata.version("transformers")
    numbers = tuple(int(n) for n in transformers.split(".")[:3] if n.isdigit())
    low, high = TRANSFORMERS
    if not low <= numbers < high:
        raise UserError(
            f"trainer=verl works with transformers from {_dotted(low)} to below {_dotted(high)}; "
            f"{transformers} is installed: {_INSTALL}."
        )
    if settings.flash_attention and settings.device == "cuda" and version("flash_attn") is None:
        raise UserError(
            "trainer.flash_attention=true needs the package flash-attn, which is not installed: "
            "install a wheel of it for your torch and CUDA (without one, pip compiles it for an "
            "hour), or set trainer.flash_attention=false."
        )
    if settings.device == "cuda" and version("vllm") is None:
        raise UserError(
            "trainer.device=cuda samples with vLLM, which is not installed: pip install "
            "'verl[vllm]', or set trainer.device=cpu."
        )


def _compiler(settings: VerlSettings) -> None:
    """Raises UserError where Triton, whose kernels vLLM runs, cannot compile: it does so at run
    time, with a C compiler and Python's headers (triton/runtime/build.py)."""
    if settings.device == "cpu" or settings.ray_address is not None:  # a cluster: on each machine
        return
    compilers = [name for name in (os.environ.get("CC"), "gcc", "clang") if name]
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    missing = "" if headers.is_file() else str(headers)
    missing = missing if any(map(shutil.which, compilers)) else "a C compiler (gcc)"
    if missing:
        raise UserError(
            f"trainer.device=cuda compiles kernels by Triton at run time, and {missing} is not "
            "here: apt-get install gcc libc6-dev python3-dev (the image of `python -m "
            "trace_bench.sandbox.build verl` has them), or set trainer.device=cpu."
        )


def _trl(settings: VerlSettings) -> None:
    """Raises UserError for a trl without its class with a value head, which trl 1.16 has no more.
    Where a trl is installed, verl imports that class when it builds the model, which is minutes
    after the start."""
    if (spec := find_spec("trl")) is None:  # finds the package, and does not import it
        return
    homes = [Path(place) for place in spec.submodule_search_locations or ()]
    files = [home / part for home in homes for part in ("__init__.py", _TRL_PPO)]
    if any(VALUE_HEAD in file.read_text(errors="replace") for file in files if file.is_file()):
        return
    try:
        found = metadata.version("trl")
    except metadata.PackageNotFoundError:
        found = f"in {homes[0]}" if homes else "without a version"
    raise UserError(
        f"trl {found} is installed, which has no {VALUE_HEAD}; verl {VERL} imports that if there "
        "is a trl, and fails. Nothing here needs trl: `pip uninstall trl`, or pip install "
        "'trl==0.27.0'."
    )


def _shape(settings: VerlSettings) -> None:
    """Raises UserError unless batches can be shared evenly."""
    s, groups, ranks = settings, settings.groups, settings.gpus * settings.nnodes
    if s.alpha != int(s.alpha):
        raise UserError(f"trainer.alpha={s.alpha}; verl takes whole numbers only. Change it.")
    if groups % s.minibatches:
        raise UserError(
            f"trainer.groups={groups} cannot be cut into trainer.minibatches={s.minibatches} equal "
            "parts. Change one of them."
        )
    batch = groups // s.minibatches * s.group_size
    if batch % ranks:
        raise UserError(
            f"{batch} rollouts of one optimizer step cannot be shared evenly by {ranks} processes "
            "(trainer.gpus x trainer.nnodes). Change trainer.groups, trainer.group_size or "
            "trainer.gpus."
        )
    if s.sequence_parallel > 1 and not (s.flash_attention and s.device == "cuda"):
        raise UserError(
            f"trainer.sequence_parallel={s.sequence_parallel} needs packed sequences: "
            "trainer.flash_attention=true with trainer.device=cuda. Set one or the other."
        )
    if ranks % s.sequence_parallel:
        raise UserError(
            f"trainer.sequence_parallel={s.sequence_parallel} does not divide {ranks} GPUs "
            "(trainer.gpus x trainer.nnodes). Change one of them."
        )
    if ranks % s.tensor_parallel:
        raise UserError(
            f"trainer.tensor_parallel={s.tensor_parallel} does not divide {ranks} GPUs "
            "(trainer.gpus x trainer.nnodes). Change one of them."
        )


def _divergence(spec: JobSpec) -> None:
    """Raises UserError where verl would weigh the divergence from the base model by rows, of which
    an episode has several."""
    from trace_bench.policies.chat import Chat
    from trace_bench.policies.loading import load_tokenizer

    algorithm, model = spec.trainer.algorithm, spec.agent.model
    by_rows = algorithm.kl > 0 and algorithm.aggregation(spec.trainer)[0] != "token"
    if not by_rows or spec.thoughts == "keep":
        return
    if Chat(load_tokenizer(model), model, spec.thinking).drops:
        raise UserError(
            f"trainer.algorithm.kl={algorithm.kl:g} with trainer=verl is a mean over the rows of a "
            f"batch, and the chat template of {model} drops earlier thoughts, which makes several "
            "rows of an episode. Set trainer.algorithm.kl=0, policy.thoughts=keep, "
            "trainer.aggregate=token, or `trainer` to local."
        )


def _roles(spec: JobSpec) -> None:
    """Raises UserError for a role that episodes ask at an address which every machine would take
    for its own."""
    roles = spec.settings.get("llm", {})
    for role in IN_EPISODES if spec.trainer.nnodes > 1 else ():
        if roles[role]["by"] != "endpoint":
            continue
        for url in roles[role]["base_url"] or roles["shared"]["base_url"] or ():
            host = urlsplit(url).hostname or ""
            if host == "localhost" or host == "::1" or host.startswith("127."):
                raise UserError(
                    f"trainer.nnodes={spec.trainer.nnodes}: the environments of each machine ask "
                    f"the {role} at {url}, which is the machine itself. Set llm.{role}.base_url or "
                    "llm.shared.base_url to an address that reaches the server from all."
                )


def _machines(settings: VerlSettings) -> None:
    if settings.ray_address is not None:
        _reachable(settings.ray_address)
    elif settings.nnodes > 1:
        raise UserError(
            f"trainer.nnodes={settings.nnodes} needs a running Ray cluster: start it with `ray "
            "start` on each machine and set trainer.ray_address to its head's host:port."
        )
    elif settings.device == "cuda":
        import torch

        count = torch.cuda.device_count()
        if count < settings.gpus:
            raise UserError(
                f"trainer.gpus={settings.gpus}, and this machine has {count}. Lower trainer.gpus, "
                "set trainer.ray_address to a cluster, or trainer.device=cpu."
            )


def _reachable(address: str) -> None:
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        raise UserError(
            f"trainer.ray_address={address!r} is not an address; allowed: host:port, such as "
            "10.0.0.1:6379. Change `trainer.ray_address`."
        )
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except OSError as error:
        raise UserError(
            f"no Ray cluster answers at trainer.ray_address={address} ({error}). Start it with "
            "`ray start --head`, change the address, or set it to null to start Ray here."
        ) from error


CHECKS = (_packages, _compiler, _trl, _shape, _machines)
"""Checks that need the settings alone."""


def machines(
    settings: VerlSettings, run: RunContext, billions: float | None
) -> tuple[list[str], list[str]]:
    """(needs of hardware for a model of so many billion parameters, what is missing here)."""
    s, missing = settings, []
    for check in CHECKS:
        try:
            check(s)
        except UserError as error:
            missing.append(str(error))
    ranks = s.gpus * s.nnodes
    where = f"trainer=verl on {ranks} {'GPU(s)' if s.device == 'cuda' else 'processes'}{s.by}"
    if billions is None:
        return [f"{where}: the weights in float32, shared by all"], missing
    each, served = 4 * billions / ranks, 2 * billions / s.tensor_parallel
    rest = "in the machine's memory between uses" if s.offload else "all the time"
    lines = [f"{where}: {each:.3g} GB of weights each ({rest}), {served:.3g} GB more for vLLM"]
    if s.device == "cpu":
        return lines, missing
    if served > s.gpu_memory * s.gpu_gb:
        missing.append(
            f"vLLM needs {served:g} GB of each GPU for the weights and gets "
            f"{s.gpu_memory * s.gpu_gb:g} of {s.gpu_gb:g}: raise trainer.tensor_parallel or "
            "trainer.gpu_memory"
        )
    shape = shape_of(run.model)
    if shape is not None and (unreached := shape.unreached(s.target_modules)):
        missing.append(unreached)
    if shape is not None and run.context is not None:
        for found in (_training(s, shape, run.context), _serving(s, shape, run, run.context)):
            lines += found[0]
            missing += found[1]
    return lines, missing


def _parts(s: VerlSettings, shape: Shape, context: int, gpus: int) -> dict[str, float]:
    """GB of one GPU while it trains, of so many on each machine."""
    ranks, tokens = gpus * s.nnodes, max(s.batch_tokens, context)
    ends = 2 * 2 * shape.vocab * shape.hidden  # embeddings and head, gathered in bf16
    masks = 0 if s.flash_attention else 3 * tokens**2  # torch's attention with padding
    parts = {
        "weights": 4 * shape.parameters / ranks,
        "adapter and its optimizer": 16 * shape.lora(s.rank, s.target_modules) / ranks,
        "gathered layers": ends + 2 * 2 * shape.layer,
        f"activations of {tokens} tokens": shape.activations(tokens, s.target_modules) + masks,
        "logits": shape.logits(tokens),
        "the rest": OVERHEAD,
    }
    return {name: size / 1e9 for name, size in parts.items()}


def _training(s: VerlSettings, shape: Shape, context: int) -> tuple[list[str], list[str]]:
    """Memory of training and its rollouts: GPUs, host and disk."""
    parts, most = _parts(s, shape, context, s.gpus), s.gpu_gb * (1 - s.serving)
    total, weights = sum(parts.values()), 2 * shape.parameters / 1e9
    live = max(0, int(training_cache(s, shape) // (context * shape.kv_token)))
    replicas = max(1, s.gpus // s.tensor_parallel) * weights
    copies, load = (2 * weights / s.nnodes if s.offload else 0.0), 2 * weights
    kept = 2 * 12 * shape.lora(s.rank, s.target_modules) / 1e9
    lines = [
        f"  a GPU in training: {total:.0f} GB ({_said(parts)})",
        f"  a vLLM of {s.tensor_parallel} GPU(s) in training: {live} whole episodes of {context} "
        f"tokens at once ({shape.kv_token / 1e3:.0f} kB a token)",
        f"  host memory of a machine: {copies + replicas + load:.0f} GB (weights between uses "
        f"{copies:.0f}, sleeping vLLM {replicas:.0f}, loading {load:.0f})",
        f"  disk: {weights:.0f} GB for the model, {kept:.2g} for two checkpoints, and episodes",
    ]
    missing = []
    if total > most:
        fits = (n for n in (s.gpus * 2**k for k in range(1, 7)) if _fits(s, shape, context, n))
        more = next(fits, None)
        hint = f"trainer.gpus={more} would fit" if more else "no number of GPUs would fit"
        missing.append(
            f"training needs {total:.0f} GB of each GPU and has {most:.0f} of {s.gpu_gb:g} "
            f"({_said(parts)}): {hint}; or lower trainer.batch_tokens or policy.context"
        )
    if live < 1:
        missing.append(
            f"vLLM in training cannot hold one episode of {context} tokens: raise "
            "trainer.gpu_memory or trainer.tensor_parallel, or lower policy.context"
        )
    return lines, missing


def _fits(s: VerlSettings, shape: Shape, context: int, gpus: int) -> bool:
    return sum(_parts(s, shape, context, gpus).values()) <= s.gpu_gb * (1 - s.serving)


def _even(s: VerlSettings, gpus: int) -> bool:
    shared = shared_evenly(replace(s, gpus=gpus), s.groups)
    return shared and gpus * s.nnodes % s.tensor_parallel == 0


def _said(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {size:.1f}" for name, size in parts.items())


def training_cache(s: VerlSettings, shape: Shape) -> float:
    """Bytes for keys and values of one vLLM in training."""
    return s.tensor_parallel * s.gpu_memory * s.gpu_gb * 1e9 - 2 * shape.parameters - OVERHEAD


def server_cache(s: VerlSettings, shape: Shape, gpus: int) -> float:
    """Bytes for keys and values of the agent's server with so many GPUs."""
    return gpus * ((s.serving or 0.9) * s.gpu_gb * 1e9 - OVERHEAD) - 2 * shape.parameters


def server_gpus(s: VerlSettings, shape: Shape, context: int) -> tuple[int, int, int]:
    """GPUs of one machine's server: how many it needs, are free and are used."""

    def fits(gpus: int) -> bool:
        enough = server_cache(s, shape, gpus) >= context * shape.kv_token
        return enough and shape.heads % gpus == 0

    least = next((n for n in (1, 2, 4, 8) if fits(n)), 8)
    free = s.gpus if s.serving else (s.node_gpus or s.gpus + least) - s.gpus
    usable = [n for n in (1, 2, 4, 8) if n <= free and shape.heads % n == 0]
    return least, free, max(usable, default=0)


def _serving(
    s: VerlSettings, shape: Shape, run: RunContext, context: int
) -> tuple[list[str], list[str]]:
    """The agent's server on each machine: its GPUs, its episodes, its command."""
    if not run.at_servers:
        return [], []
    share = s.serving or 0.9
    least, free, gpus = server_gpus(s, shape, context)
    if free < least:
        total = s.node_gpus or s.gpus
        even = (n for n in range(total - least, 0, -1) if _even(s, n))
        return [], [
            f"the agent's server needs {least} GPU(s) of a machine, and trainer.gpus={s.gpus} of "
            f"trainer.node_gpus={total} leave {max(free, 0)}: lower trainer.gpus to "
            f"{next(even, 1)}, or let both share them (trainer.serving)"
        ]
    live = int(server_cache(s, shape, gpus) // (context * shape.kv_token))
    places = range(0 if s.serving else s.gpus, (0 if s.serving else s.gpus) + gpus)
    shared = "the same GPUs" if s.serving else f"{gpus} more"
    return [
        f"  GPUs of a machine: {s.gpus} for training, {shared} for the server, which holds {live} "
        f"whole episodes of {context} tokens at once (policy.batch={run.batch})",
        "  a server: VLLM_ALLOW_RUNTIME_LORA_UPDATING=True CUDA_VISIBLE_DEVICES="
        f"{','.join(map(str, places))} python -m vllm.entrypoints.openai.api_server --model "
        f"{run.model} --served-model-name {run.served_model or run.model} --max-model-len "
        f"{context} --tensor-parallel-size {gpus} --gpu-memory-utilization {share:g} --enable-lora "
        f"--max-loras 8 --max-lora-rank {s.rank} --lora-target-modules "
        f"{' '.join(s.served_modules)} --enable-auto-tool-choice --tool-call-parser "
        f"{_parser(run.model)}",
    ], []


def _parser(model: str) -> str:
    """vLLM's parser of what models of this name write (docs/models.md has the table)."""
    name = model.rpartition("/")[2]
    found = (parser for kind, parser in PARSERS if re.search(kind, name, re.IGNORECASE))
    return next(found, "hermes")


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
