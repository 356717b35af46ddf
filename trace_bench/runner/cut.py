"""A run's settings cut down to a rehearsal: every phase once and small, a random miniature in the
model's place, and addresses of servers that stand in for its own.

A miniature is a random model of a few hundred thousand parameters with the architecture of another
one: its layers in small, its tokenizer and template where they are at hand. The architecture is
read from the model's config.json where `model` is a folder, else taken from the family by its name
(`trainers.memory.SHAPES`); without a folder the tokenizer is the tiny agent's, whose template is
ChatML with calls as Qwen3 writes them."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext, Suite
from trace_bench.core.store import read_object
from trace_bench.play.steps import opened
from trace_bench.play.suites import tasks_of
from trace_bench.runner.build import make_roles, make_suite, models_in_roles, run_context
from trace_bench.runner.plan import plan_of, training_tasks
from trace_bench.settings.identity import parts_of, plain, served_name
from trace_bench.settings.registry import find
from trace_bench.settings.schema import PartSettings, Settings, parse
from trace_bench.trainers.algorithms import Recipe
from trace_bench.trainers.memory import SHAPES, Sizes, shape_of

MOST: Mapping[str, Mapping[str, float]] = {  # what these settings are at most
    "trainer": {
        "group_size": 4, "groups": 2, "epochs": 1, "minibatches": 1, "resample": 1,
        "gpus": 2, "nnodes": 1, "tensor_parallel": 1, "workers": 1,
        "save_every": 1, "restarts": 1, "serving": 0.0, "batch_tokens": 16384,
    },
    "method": {
        "analysis_minimum": 8, "runs": 3, "keep_runs": 2, "minimum_support": 1,
        "coverage": 0.0, "gap": 0.0, "calibration_groups": 2, "calibration_group_size": 4,
        "calibration_rounds": 1, "minimum_training": 8, "synthetic_tasks": 8, "max_capabilities": 2,
    },
    "policy": {"batch": 8, "max_turns": 4, "max_tokens": 16},
}  # fmt: skip
LEAST: Mapping[str, Mapping[str, float]] = {  # and at least
    # At a real model's rate one step of a miniature would change no probability.
    "trainer": {"learning_rate": 0.01},
}
HERE: Mapping[str, Mapping[str, Any]] = {  # what these settings are in a rehearsal
    "trainer": {"device": "cpu", "ray_address": None, "node_gpus": None, "offload": False},
    # Whatever the miniature earns: the calibration is run, and refuses nothing.
    "method": {"bands": False},
}
EPISODES, TASKS = 4, 8
SMALLEST = 48  # rollouts


@dataclass
class Cut:
    """`settings`: of the rehearsal so far; `replaced`: what takes the place of what, in words."""

    settings: Settings
    replaced: list[str] = field(default_factory=list)

    def change(self, **groups: Any) -> None:
        data = copy.deepcopy(plain(self.settings))
        for name, value in groups.items():
            data[name] = {**data[name], **value} if isinstance(value, Mapping) else value
        self.settings = parse(data)

    def with_model(self, folder: Path) -> None:
        """Puts the miniature in this folder in the model's place, under the model's name."""
        name, factory = served_name(self.settings.model), "trace_bench.policies.hub:named"
        options = {"path": str(folder)}
        self.change(model={"name": name, "factory": factory, "served_as": name, "options": options})

    def with_servers(self, agent: str, players: str) -> None:
        """Replaces the agent's servers by `agent`, and a role's by `players`/ROLE/v1; keys stay."""
        settings = self.settings
        chosen = parts_of(settings)["policy"]
        if chosen.declared.at_servers:
            addresses = {
                key: [agent] if not n or chosen.options.get(key) else chosen.options.get(key)
                for n, key in enumerate(chosen.declared.addresses)
            }
            addresses |= dict.fromkeys(chosen.declared.addresses.values())
            self.change(policy={"options": {**settings.policy.options, **addresses}})
        data = plain(settings)["llm"]
        for name, role in models_in_roles(settings).items():
            here = {"base_url": [f"{players}/{name}/v1"], "key_env": None, "retries": 1}
            few = {"concurrency": min(role.concurrency, 4)}
            self.change(llm={name: {**data[name], **vars(role), **here, **few}})

    def with_trainer(self) -> None:
        """Keeps a trainer that can work here, else takes `local` with the same recipe."""
        parts = parts_of(self.settings)
        chosen = parts["trainer"]
        try:
            chosen.make(run_context(self.settings, parts)).preflight(True)
        except UserError as error:
            recipe = {f.name for f in fields(Recipe)}
            kept = {k: v for k, v in chosen.options.items() if k in recipe}
            self.change(trainer={"name": "local", "factory": None, "options": kept})
            self.replaced.append(f"trainer={chosen.label} by trainer=local: {error}")

    def with_sandbox(self, folder: Path) -> None:
        """Keeps a sandbox in which a task's environment opens, else takes `process`. Raises
        UserError where none opens there either."""
        name = self.settings.sandbox.name
        try:
            _open(self.settings, folder)
        except UserError as error:
            if name == "inline":
                raise
            self.change(sandbox={"name": "process", "allow_untrusted": True})
            _open(self.settings, folder)
            self.replaced.append(f"sandbox={name} by sandbox=process: {error}")

    def affordable(self, folder: Path) -> int:
        """Lowers training tasks and budget to the least that the method takes; the budget."""
        whole = self.settings.budget
        with _suite(self.settings, folder) as suite:
            tasks = min(TASKS, len(training_tasks(self.settings, suite)))
        if tasks:  # else the method may need none
            self.change(env={"train_tasks": tasks})
        budget = min(SMALLEST, whole)
        while True:
            self.change(budget=budget)
            try:
                parts = parts_of(self.settings)
                trainer = parts["trainer"].make(run_context(self.settings, parts))
                plan_of(self.settings, parts["method"].make(RunContext()), trainer, tasks)
                return budget
            except UserError:
                if budget >= whole:
                    raise
                budget = min(whole, 2 * budget)


def small(settings: Settings, folder: Path) -> Cut:
    """The settings of a rehearsal in this folder; model, servers and budget are still the run's."""
    parts, cut = parts_of(settings), Cut(settings)
    options = {}
    for group, here in HERE.items():
        chosen = dict(parts[group].options)
        options[group] = _within(chosen, MOST[group], LEAST.get(group, {}))
        options[group] |= {k: v for k, v in here.items() if k in chosen}
    evaluation = settings.evaluation
    policy = {k: min(v, getattr(settings.policy, k)) for k, v in MOST["policy"].items()}
    cut.change(
        rehearsal=True,
        dry_run=False,
        agent=None,
        run_dir=str(folder / "run"),
        checkpoints=[] if settings.checkpoints == () else None,  # of the smaller budget
        tracker={"name": "jsonl", "factory": None, "options": {}},
        evaluation={
            "limit": min(evaluation.limit or EPISODES, EPISODES),
            "trials": min(evaluation.trials, 2),
        },
        policy={**policy, "device": "cpu"},
        method={"options": options["method"]},
        trainer={"options": options["trainer"]},
    )
    if settings.agent is not None:
        cut.replaced.append(f"agent={settings.agent} by the model alone: adapters fit no other")
    return cut


def _within(
    options: dict[str, Any], most: Mapping[str, float], least: Mapping[str, float]
) -> dict[str, Any]:
    """The settings that are numbers, within these limits."""
    for name, value in options.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            kind = type(value)
            value = min(value, kind(most.get(name, value)))
            options[name] = max(value, kind(least.get(name, value)))
    return options


@contextmanager
def _suite(settings: Settings, folder: Path) -> Iterator[Suite]:
    parts = parts_of(settings)
    with closing(make_roles(settings, folder / "opening.jsonl")) as roles:
        context = run_context(settings, parts, roles.ask, fingerprint="rehearsal", folder=folder)
        with closing(make_suite(settings, parts, context, lambda line: None)) as suite:
            yield suite


def _open(settings: Settings, folder: Path) -> None:
    with _suite(settings, folder) as suite:
        task = tasks_of(suite, settings.evaluation.split)[0]
        (first,) = opened(suite, [task])
    if isinstance(first, BaseException):
        raise UserError(f"the environment of {task.id} does not open: {first}")


HEADS, HEAD_DIM, HIDDEN, INNER, LAYERS = 4, 32, 64, 96, 2  # vLLM on a CPU takes no smaller heads
EXPERTS, ACTIVE = 4, 2
CONFIG = "config.json"
WITH_TOKENIZER = ("tokenizer*", "special_tokens_map.json", "chat_template*", "vocab*", "merges.txt")
ARCHITECTURES = {"Qwen3": "qwen3", "Qwen2.5": "qwen2", "SmolLM2": "llama"}
"""The architecture of a family, by how its models' names begin."""


@dataclass(frozen=True)
class Miniature:
    """`same`: what it has of the model that it stands for, `other`: what it has not, in words."""

    folder: Path
    same: tuple[str, ...]
    other: tuple[str, ...]


def make_miniature(model: str, folder: Path, context: int, seed: int = 0) -> Miniature:
    """Writes the miniature of a model (its folder or name) that holds so many tokens. Raises
    UserError for a model of which neither a folder nor a family is known."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    shape, source = shape_of(model), Path(model)
    if shape is None:
        families = ", ".join(SHAPES)
        raise UserError(
            f"the sizes of {model} are not known: it is no folder with a {CONFIG}, and of no known "
            f"family ({families}). Set `model.path` to its folder (the weights are not "
            "needed there), or change `model`."
        )
    at_hand = (source / CONFIG).is_file()
    facts = read_object(source / CONFIG) if at_hand else {"model_type": _kind(model, shape)}
    tokens = at_hand and any(source.glob("tokenizer*"))
    source = source if tokens else Path(find("model", PartSettings("tiny")).make(RunContext()))
    folder.mkdir(parents=True, exist_ok=True)
    for name in WITH_TOKENIZER:
        for file in source.glob(name):
            shutil.copy(file, folder)
    ids = read_object(source / CONFIG)
    sizes = {**facts, **_sizes(shape, facts), "vocab_size": ids["vocab_size"]}
    config = AutoConfig.for_model(**sizes)
    config.max_position_embeddings = max(context, 1024)
    config.architectures = None
    config.eos_token_id, config.pad_token_id = ids["eos_token_id"], ids.get("pad_token_id")
    config.bos_token_id = ids.get("bos_token_id")
    torch.manual_seed(seed)
    logging.disable_progress_bar()
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    return Miniature(folder, *_said(config, at_hand, tokens, model))


def _kind(model: str, shape: Sizes) -> str:
    name = model.rpartition("/")[2]
    kind = next(k for begin, k in ARCHITECTURES.items() if name.lower().startswith(begin.lower()))
    return f"{kind}_moe" if shape.experts else kind


def _sizes(shape: Sizes, config: dict[str, Any]) -> dict[str, Any]:
    """The sizes, in the same relations where they matter: shared keys and values, tied ends."""
    sizes = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS if shape.kv_heads == shape.heads else HEADS // 2,
        "head_dim": HEAD_DIM,
        "intermediate_size": INNER,
        "tie_word_embeddings": shape.tied,
        "initializer_range": 0.1,  # wide enough that an adapter changes what is sampled
        "dtype": "float32",
        "use_cache": True,
    }
    if shape.experts:
        few = {"num_experts": EXPERTS, "num_experts_per_tok": ACTIVE}
        sizes |= {**few, "moe_intermediate_size": INNER // 2}
    if "layer_types" in config:
        sizes["layer_types"] = config["layer_types"][:LAYERS]
    return sizes


def _said(config: Any, at_hand: bool, tokens: bool, model: str) -> tuple[Any, Any]:
    experts = " with experts" if "moe" in config.model_type else ""
    ends = "tied" if config.tie_word_embeddings else "separate"
    same = [
        f"architecture {config.model_type}{experts}, by "
        f"{'its config.json' if at_hand else 'the family of its name'}",
        f"{ends} embeddings and head, {'its' if tokens else 'fewer'} {config.vocab_size} ids",
    ]
    other = [f"its size and weights ({LAYERS} layers of {HIDDEN}, random)"]
    if tokens:
        same.append("its tokenizer and chat template")
    else:
        other.append(
            f"the tokenizer and template of {model} (they are in no folder here; the tiny agent's "
            "stand in, with calls as Qwen3 writes them)"
        )
    return tuple(same), tuple(other)
