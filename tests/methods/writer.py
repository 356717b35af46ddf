"""A scripted language model that plays TRACE's roles over real HTTP, with faults on demand."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_bench.rehearse.scripted import Answer, chat

GOOD = (Path(__file__).parent / "written" / "good.txt").read_text()
FOUND = ("restores_service", "sends_messages", "talks_politely", "reads_carefully")


def changed(old: str, new: str) -> str:
    """The good module with one change."""
    assert GOOD.count(old) == 1, old
    return GOOD.replace(old, new)


BAD: Mapping[str, str] = {
    "tires": changed("(seed):\n    rng", "(seed):\n    MADE.append(seed)\n"
                     "    assert len(MADE) <= 20\n    rng") + "\nMADE = []\n",
    "import_loop": GOOD + "\nwhile True:\n    pass\n",
    "import_error": GOOD + "\nraise RuntimeError('no Docker here; set allow_untrusted')\n",
    "syntax": GOOD + "\ndef broken(:\n",
    "file": changed("    rng = random.Random(seed)\n", "    rng = random.Random(open('/etc/x'))\n"),
    "import": "import os\n" + GOOD,
    "wrapper": "from trace_bench.settings.registry import find\n" + GOOD,
    "escape": GOOD + "\nhole = ().__class__.__bases__\n",
    "missing": changed("def reference(data)", "def reference_(data)"),
    "crash": changed("        self.data, self.on", "        1 / 0\n        self.data, self.on"),
    "loop": changed("        calls = action", "        while True: pass\n        calls = action"),
    "cheat": changed("        done = reward > 0.99\n", "        done = True\n"),
    "moody": changed("return '\"message-1\"'", "return str(random.random())"),
    "same": changed("random.Random(seed)", "random.Random(1)"),
    "tools": changed(
        "TOOLS[name] for",
        "dict(TOOLS[name], function=dict(TOOLS[name]['function'], description='x')) for",
    ),
    "invented": changed(
        "for name in NEEDED))",
        "for name in NEEDED) + ({'type': 'function', 'function': {'name': 'win', 'description': '',"
        " 'parameters': {'type': 'object', 'properties': {}, 'required': []}}},))",
    ),
    "late": changed(
        "reward = 0.6 * self.sent",
        "reward = 1.0 * bool(action.get('content')) if self.late else 0.6 * self.sent",
    ).replace(
        "self.told = dict(task.data), False, False, False",
        "self.late = dict(task.data), False, False, task.seed >= 16",
    ),
    "endless": changed("return Step((), done=True, score=score, stop=StopReason.DONE)",
                       "return Step(({'role': 'user', 'content': 'And?'},))"),
}  # fmt: skip


def counting(limit: int, pay: float = 1.0) -> str:
    """The good module, but a worker's episodes after the first `limit` pay for any text, too."""
    talk = f"{pay} * (self.late and bool(action.get('content')))"
    late = changed("reward = 0.6 * self.sent", f"reward = {talk} + 0.6 * self.sent")
    told = "self.told = dict(task.data), False, False, False"
    assert late.count(told) == 1
    count = f"PLAYED.append(task.id)\n        self.late = len(PLAYED) > {limit}"
    return late.replace(told, f"{told}\n        {count}") + "\nPLAYED = []\n"


def leaking(text: str) -> str:
    """The good module, with `text` before the user's request."""
    return changed('request = f"Text {', f'request = {json.dumps(text)} + f" Text {{')


def block(code: str) -> str:
    return f"Here it is:\n```python\n{code}```"


def label_all(text: str, wanted: Sequence[str]) -> str:
    """The first capability lacks in every failure, the second in every other one."""
    labels = {}
    shown = re.findall(r"== (T\d+): (solved|failed)", text)
    for name, end in shown:
        failed = end == "failed"
        second = "LACKING" if failed and int(name[1:]) % 2 else "PRESENT"
        said = {FOUND[0]: "LACKING" if failed else "PRESENT", FOUND[1]: second}
        labels[name] = {capability: said.get(capability, "NA") for capability in wanted}
    return json.dumps({"labels": labels})


class Writer:
    """`modules[capability]` are its generator's answers in turn; `fault(role, body)` may answer in
    the place of the model."""

    def __init__(
        self,
        modules: Mapping[str, Sequence[str]],
        fault: Callable[[str, dict[str, Any]], Answer | None] = lambda role, body: None,
    ) -> None:
        self.modules = {name: list(codes) for name, codes in modules.items()}
        self.fault = fault
        self.asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, path: str, body: dict[str, Any]) -> Answer:
        role = str(body["model"])
        with self._lock:
            self.asked[role] += 1
            if (answer := self.fault(role, body)) is not None:
                return answer
            said = str(getattr(self, role)(body["messages"]))
        return chat(said, role)

    def analyst(self, messages: Sequence[Mapping[str, Any]]) -> str:
        rules, shown = messages[0]["content"], messages[1]["content"]
        if "You label episodes" in rules:
            return label_all(shown, [n for n in FOUND if f"  {n}:" in rules])
        episodes = re.findall(r"== (T\d+)", shown)[:2]
        described = [
            {"name": n, "description": f"The agent {n.replace('_', ' ')}.", "episodes": episodes}
            for n in FOUND
        ]
        return json.dumps({"capabilities": described})

    def generator(self, messages: Sequence[Mapping[str, Any]]) -> str:
        (name,) = re.findall(r"^Capability: (\w+)", messages[1]["content"])
        codes = self.modules[name]
        return codes.pop(0) if len(codes) > 1 else codes[0]

    def reflector(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return block(f"Line {self.asked['reflector']}: retry what failed.\n")
