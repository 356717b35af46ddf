"""What the generator of environments is asked. VERSION is written into every run, since other words
give other environments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from trace_bench.core.chat import opening_of
from trace_bench.core.types import Message, Tool, Trajectory
from trace_bench.methods.looking.capabilities import Capability
from trace_bench.methods.trace.calibrate import HIGH, LOW
from trace_bench.methods.trace.generate.checks import MODULES
from trace_bench.methods.transcript import compact

GENERATOR = "generator"  # its role
VERSION = "2"
EXAMPLES = 3

RULES = """\
You write training environments for an agent that works with tools. An environment is one Python
module, deterministic, that plays conversations and rewards one capability, and as little else as
possible. It simulates the tools itself, on data of its own.

The module defines, at its top level:
  make_task(seed: int) -> dict      a task as JSON-safe data; other seeds (0 to 2**31 - 1) give
                                    other tasks (names, numbers, wordings), the same seed always
                                    the same
  reference(data: dict) -> list     the assistant messages that earn the full reward, in order
  class Env                         with reset(self, task) -> Step, step(self, action) -> Step and
                                    close(self); task.data is what make_task gave
There is a name TOOLS, a dict from tool name to tool schema (OpenAI's format): offer some of these,
unchanged, and no others.

From trace_bench.core.types:
  Step(messages, tools, done, score, stop)   messages: a tuple of message dicts; tools: a tuple, at
                                    reset only; at the end done=True, score=Score(...),
                                    stop=StopReason.DONE
  Score(similarity, success)        similarity from 0.0 to 1.0 is the reward, success is True for
                                    the full reward only
Messages: reset gives a system message and ends with the user's request,
{{"role": "user", "content": "..."}}. An action is {{"role": "assistant", "content": str}}, with
"tool_calls": [{{"id": str, "type": "function", "function": {{"name": str, "arguments": "JSON"}}}}]
when it calls tools. Answer each call, in order, by {{"role": "tool", "tool_call_id": its id,
"name": its name, "content": str}}; a call of an unknown tool, with arguments that are no JSON
object, unknown or missing, is answered by a text with "Error: " in it. A message without calls is
for the user: answer as the user would, or end the episode. Every episode must end, also when the
agent says nothing at all.

Rules:
- Whoever does nothing, only talks, or calls tools at random earns next to nothing.
- Rewards may have levels, such as 0.6 for the deed and 0.4 for telling the user.
- The agent that is to be trained should earn between {low:g} and {high:g} on average.
- Use names, numbers and wordings of your own.
- Import only: {modules}. No files, no clock, no module-level state.

Answer with the whole module in one ```python block."""


def request(
    capability: Capability,
    tools: Mapping[str, Tool],
    examples: Sequence[Trajectory],
    limit: int,
) -> list[Message]:
    """The first question. `limit`: characters that it may have."""
    modules = ", ".join(sorted(MODULES))
    rules = RULES.format(low=LOW, high=HIGH, modules=modules)
    listed = "\n".join(json.dumps(tool["function"]) for _, tool in sorted(tools.items()))
    head = (
        f"Capability: {capability.name}\n{capability.description}\n\n"
        f"The keys of TOOLS are the names of these tools:\n{listed}\n"
    )
    left = limit - len(rules) - len(head)
    each = left // (2 * EXAMPLES)
    episodes = [compact(t, each) for t in examples[:EXAMPLES]] if each > 300 else []
    lacking = "\n\n".join(f"-- an episode that lacked it\n{text}" for text in episodes)
    return opening_of(rules, f"{head}\n{lacking}".rstrip())


def again(first: Sequence[Message], code: str, problems: Sequence[str]) -> list[Message]:
    listed = "\n".join(f"- {p}" for p in problems[:8])
    why = f"This module was not accepted:\n{listed}\nWrite the whole module again."
    answer = {"role": "assistant", "content": f"```python\n{code}```"}
    return [*first, answer, {"role": "user", "content": why}]
