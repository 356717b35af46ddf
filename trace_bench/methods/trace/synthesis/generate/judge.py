"""A second model reads a written environment: does its reward need the capability, and little else?
Where no model plays the judge, none is read."""

from __future__ import annotations

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Lab
from trace_bench.core.types import Message
from trace_bench.llm.client import LLMError
from trace_bench.llm.structured import read_json
from trace_bench.methods.trace.analysis.vocabulary import Capability

ROLE = "judge"
RULES = """\
You read a training environment for an agent that works with tools. Its tasks should be impossible
to solve fully without one capability, and should ask for little else. Say whether that is so.
Answer with one JSON object and nothing else: {"fits": true or false, "why": "one sentence"}"""
SCHEMA = {
    "type": "object",
    "required": ["fits", "why"],
    "properties": {"fits": {"type": "boolean"}, "why": {"type": "string", "maxLength": 1000}},
}


def objection(lab: Lab, capability: Capability, name: str, code: str) -> str | None:
    """Why the environment does not fit; None when it does, or the judge's answer cannot be
    used. Raises UserError when the judge is out of reach: the same command then asks again."""
    limit = lab.prompt_limit(ROLE)
    if limit is None:
        return None
    text = f"Capability: {capability.description}\n\n```python\n{code[: limit - len(RULES)]}```"
    messages: list[Message] = [
        {"role": "system", "content": RULES},
        {"role": "user", "content": text},
    ]
    try:
        verdict = lab.ask(ROLE, name, messages, lambda answer: read_json(answer, SCHEMA), SCHEMA)
    except LLMError as error:
        if error.outage:
            lab.retract(ROLE, f"{name}/")
            raise UserError(
                f"the judge does not answer: {error}. The same command goes on from here; or "
                "change `llm.judge`."
            ) from error
        lab.log(f"{name} is not judged: {error}")
        return None
    return None if verdict["fits"] else str(verdict["why"])
