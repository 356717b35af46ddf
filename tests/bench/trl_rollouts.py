"""TRL's GRPOTrainer playing episodes of the embedded suite, for `rollouts.py`.

    python tests/bench/trl_rollouts.py <model folder> [--episodes 256] [--group 8] [--threads 1]

It plays what it can: tasks whose user only opens the conversation, since its tool loop knows no
user who answers. Each set of tools is an environment class whose methods are the tools. Only the
trainer's own generation, with its tool loop, is timed; the learning rate is 0. The last line of
the output is JSON: seconds, episodes, tokens, and the tasks.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

KINDS = {"string": str, "integer": int, "number": float, "boolean": bool}


def playable(suite: Any, count: int) -> list[Any]:
    """Tasks of `train_large` without a second message of the user."""
    tasks = [
        t
        for t in suite.tasks("train_large")
        if not t.data["user"]["answers"] and not t.data["user"]["followups"]
    ]
    return tasks[:count]


def tool_method(function: dict[str, Any]) -> Callable[..., str]:
    """A method that passes its call to the environment, with the signature of a tool's schema."""

    def method(self: Any, **arguments: Any) -> str:
        call = {"name": function["name"], "arguments": json.dumps(arguments)}
        message = {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "call_0", "type": "function", "function": call}],
        }
        return str(self.env.step(message).messages[0]["content"])

    method.__annotations__ = {"return": str}
    properties = function["parameters"].get("properties", {})
    required = function["parameters"].get("required", [])
    fields = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)]
    notes = []
    for name in sorted(properties, key=lambda n: n not in required):
        kind = KINDS[properties[name].get("type", "string")]
        empty = inspect.Parameter.empty
        fields.append(
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=empty if name in required else None,
                annotation=kind,
            )
        )
        method.__annotations__[name] = kind
        notes.append(f"    {name}: {name}.")
    method.__name__ = function["name"]
    method.__signature__ = inspect.Signature(fields)  # type: ignore[attr-defined]
    arguments_text = "\n".join(["", "", "Args:", *notes]) if notes else ""
    method.__doc__ = f"{function['name']}.{arguments_text}"
    return method


def environment_class(suite: Any, tools: Sequence[dict[str, Any]]) -> type:
    """An environment for TRL around one of ours."""

    def reset(self: Any, **row: Any) -> None:
        self.env = suite.make()
        self.env.reset(suite.task(row["task"]))

    members: dict[str, Any] = {t["function"]["name"]: tool_method(t["function"]) for t in tools}
    return type("PhoneWorld", (), {**members, "reset": reset})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    import pyarrow
    import torch
    from datasets import Dataset
    from sandboxes import in_process as find
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer
    from trl.chat_template_utils import qwen3_schema

    torch.set_num_threads(args.threads)
    suite = find("toolsandbox", "embedded")
    tasks = playable(suite, args.episodes // args.group)
    rows, classes = [], {}
    for task in tasks:
        step = suite.make().reset(task)
        name = "-".join(t["function"]["name"] for t in step.tools)
        if name not in classes:
            classes[name] = environment_class(suite, step.tools)
        rows.append({"prompt": list(step.messages), "environment": name, "task": task.id})
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    tokenizer.response_schema = qwen3_schema
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=args.batch,
            num_generations=args.group,
            max_steps=len(tasks) * args.group // args.batch,
            max_completion_length=256,
            temperature=1.0,
            learning_rate=0.0,
            shuffle_dataset=False,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            save_strategy="no",
            logging_steps=1000,
            disable_tqdm=True,
        )
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32),
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=config,
            train_dataset=Dataset(pyarrow.Table.from_pylist(rows), fingerprint="bench"),
            processing_class=tokenizer,
            environment_factory=classes,
        )
        spent = {"seconds": 0.0, "episodes": 0, "tokens": 0}
        generate = trainer._generate

        def timed(prompts: list[Any]) -> Any:
            start = time.perf_counter()
            out = generate(prompts)
            spent["seconds"] += time.perf_counter() - start
            spent["episodes"] += len(prompts)
            spent["tokens"] += sum(map(len, out[0])) + sum(map(len, out[1]))
            return out

        trainer._generate = timed
        trainer.train()
    sys.stdout.flush()
    print(json.dumps({**spent, "tasks": [t.id for t in tasks]}))


if __name__ == "__main__":
    main()
