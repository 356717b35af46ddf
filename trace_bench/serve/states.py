"""Shows hidden states of the base model over HTTP, as OpenAI's embeddings: of each prompt, given as
token ids, the final state at its last token, not normalized. A policy at servers routes by them
(`policy.states_url`). vLLM's pooling runner answers the same request."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any, Literal

from trace_bench.core.decode import convert
from trace_bench.core.limits import Limits, Unreadable, read
from trace_bench.policies.local import LocalPolicy
from trace_bench.serve.request import Refused, Text


@dataclass(frozen=True)
class _Asked:
    """`input`: token ids, or a list of prompts that each are."""

    model: Text
    input: list[int | list[int]]
    encoding_format: Literal["float"] = "float"
    use_activation: Literal[False] = False  # vLLM's name for normalizing


class States:
    """Reads prompts with the model of `policy`. Callable from any thread."""

    def __init__(self, policy: LocalPolicy) -> None:
        self._policy = policy

    @property
    def context(self) -> int:
        return self._policy.context

    def answer(self, body: bytes, most: int, models: Container[str]) -> dict[str, Any]:
        """The response to a body of at most `most` bytes for one of `models`. Raises Refused."""
        try:
            ask = convert(read(body, Limits(most)), _Asked)
        except Unreadable as error:
            raise Refused(400, f"the body is no request for states: {error}") from error
        if ask.model not in models:
            text = f"the model {ask.model[:80]!r} does not exist"
            raise Refused(404, text, param="model", code="model_not_found")
        prompts = [p for p in ask.input if isinstance(p, list)]
        if not prompts:
            prompts = [[i for i in ask.input if isinstance(i, int)]]
        elif len(prompts) < len(ask.input):
            raise Refused(400, "input mixes token ids and prompts", param="input")
        for ids in prompts:
            if not 0 < len(ids) <= self.context:
                text = f"a prompt has {len(ids)} tokens; allowed: 1 to {self.context}"
                raise Refused(400, text, param="input", code="context_length_exceeded")
            if min(ids) < 0 or max(ids) >= self._policy.vocab:
                text = f"a token id is not in 0 to {self._policy.vocab - 1}"
                raise Refused(400, text, param="input")
        states = self._policy.states_of([tuple(p) for p in prompts])
        data = [
            {"object": "embedding", "index": i, "embedding": list(state)}
            for i, state in enumerate(states)
        ]
        count = sum(map(len, prompts))
        usage = {"prompt_tokens": count, "completion_tokens": 0, "total_tokens": count}
        return {"object": "list", "model": ask.model, "data": data, "usage": usage}
