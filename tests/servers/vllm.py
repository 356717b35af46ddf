"""A vLLM as far as its HTTP goes, with adapters that look like some."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from trace_bench.core.types import AdapterRef
from trace_bench.rehearse.scripted import Answer, chat, models


def by_name(name: str, time: int) -> float:
    """Every name has its own answer."""
    return -1.0 - sum(map(ord, name)) / 1000


class FakeVLLM:
    """`answer`: what is said to a chat, if it gives something; `logprob(name, time)`: what a probe
    is answered with. `names`: of the models there; `loads`, `asked`: so far."""

    def __init__(
        self,
        answer: Callable[[dict[str, Any]], Answer | None] = lambda body: None,
        logprob: Callable[[str, int], float] = by_name,
        owner: str = "vllm",
    ) -> None:
        self.names, self.loads, self.asked = ["m"], 0, 0
        self._answer, self._logprob, self._owner = answer, logprob, owner
        self._lock = threading.Lock()

    def __call__(self, path: str, body: dict[str, Any]) -> Answer:
        with self._lock:
            if path == "/v1/models":
                return models(*self.names, owner=self._owner)
            if path == "/v1/load_lora_adapter":
                self.loads += 1
                self.names.append(body["lora_name"])
                return Answer("Success: it was added.")
            if path == "/v1/unload_lora_adapter":
                self.names.remove(body["lora_name"])
                return Answer("Success: it was removed.")
            if (said := self._answer(body)) is not None:
                return said
            if body["model"] not in self.names:
                return Answer({"error": {"message": f"no model {body['model']}"}}, 404)
            self.asked += 1
            top = [{"token": "A", "logprob": self._logprob(body["model"], self.asked)}]
        choice = {"logprobs": {"content": [{"top_logprobs": top, "logprob": -0.5}]}}
        return chat("Hm.", body["model"], choice=choice)


def fake_adapter(folder: Path, name: str, value: float = 1.0) -> AdapterRef:
    """A folder that looks like an adapter, for a server that does not look into it."""
    place = folder / name.partition("@")[0]
    place.mkdir(parents=True)
    (place / "adapter_config.json").write_text(json.dumps({"name": name}))
    weights = {"x.lora_B.weight": torch.full((2,), value)}
    save_file(weights, place / "adapter_model.safetensors")
    return AdapterRef(name, str(place))
