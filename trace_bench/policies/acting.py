"""Whether LoRA adapters act at a server, in words (`python -m trace_bench.check server=URL`). A run
asks only whether an adapter is listed and answers unlike the base model (`served`, same probe)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from trace_bench.core.errors import UserError, attempt
from trace_bench.core.text import described
from trace_bench.core.types import JSON, AdapterRef
from trace_bench.llm.client import Client, Endpoint, LLMError, check_urls, read_key
from trace_bench.policies import served
from trace_bench.policies.engine.lora import read_weights
from trace_bench.policies.served import Probe, Servers, apart, served_name

LONG = " ".join(f"Room {n} is free on day {7 * n % 31}." for n in range(1, 25))
PROMPTS = (served.PROMPT, "When does a train of 9:40 arrive after 95 minutes?", LONG)
"""The last one fills several blocks of a cache of prefixes, of 16 to 128 tokens in vLLM."""
MARGIN = 3  # answers that should be equal may differ by so many times what the base model's do,
SHARE = 0.02  # or by this share of what the adapter changes, if that is more
LEAST = 1e-3  # the least tolerance to PEFT, which adds the products in another order
NAMES_IN_RUNS = {"model": "base", "model.path": "base", "model.name": "model"}
NAMES_IN_RUNS |= {"policy.base_url": "server", "policy.key_env": "key_env"}
Verdict = tuple[bool | None, str]
"""Whether something holds (None: it could not be checked), and why."""


class Acting:
    """`name`: the base model's at the server; "": the first one there that is no adapter; `base`:
    the folder of its weights, if they are at hand. Raises UserError and LLMError."""

    def __init__(self, client: Client, name: str, base: str | None) -> None:
        from trace_bench.policies.loading import load_config

        if base:
            load_config(base)  # refused now rather than beside each adapter
        self._servers = Servers(client, name)
        vllm, self.name = self._servers.vllm, self._servers.name_of(None)
        self._base = base
        self._probe = Probe(client, 0, self.name, PROMPTS, ids=vllm)

    def verdicts(self, adapter: AdapterRef) -> Iterator[tuple[str, Verdict]]:
        """Each with what was checked, up to a request that fails. Unloads what it has loaded."""
        try:
            yield from self._verdicts(adapter)
        except (LLMError, UserError) as error:
            yield "asked", (False, str(error))
        finally:
            self._servers.unload()

    def _verdicts(self, adapter: AdapterRef) -> Iterator[tuple[str, Verdict]]:
        probe, theirs = self._probe, self._listed(adapter)
        name = theirs or served_name(adapter)
        self._servers.put(0, name, adapter)
        yield "listed", (True, f"as {name}, loaded {'before' if theirs else 'for'} this check")
        (first,), (answers,) = probe.ask(name), probe.ask(name)
        effect = apart(probe.base, answers)
        why = f"log-probabilities up to {effect:.2g} apart, noise {probe.noise:.2g}"
        zero = "" if served.changes_something(adapter) else "; every lora_B in its file is zero"
        yield "unlike the base model", (effect > probe.noise, why + zero)
        peft = attempt(lambda: self._like_peft(adapter, answers))
        if isinstance(peft, BaseException):
            peft = (False, f"base=FOLDER and the adapter do not go together: {described(peft)}")
        yield "like PEFT", peft
        if any(".experts." in key for key in read_weights(adapter)):
            yield "its weights in experts", (None, "only with all others, by `like PEFT`")

        def same(one: list[JSON], two: list[JSON], noise: float) -> Verdict:
            gap, allowed = apart(one, two), max(MARGIN * noise, SHARE * effect)
            return gap <= allowed, f"up to {gap:.2g} from before, allowed {allowed:.2g}"

        yield "itself with cached prefixes", same(first, answers, probe.cached)
        again: Verdict = (None, "it was there before this check and stays")
        if not theirs:
            self._servers.take_out(0, name)
            again = (False, "the server still lists it after the unload")
            if name not in self._servers.listed(0):
                self._servers.put(0, name, adapter)
                again = same(answers, probe.warm(name), probe.noise)
        yield "itself after unload and reload", again
        beside, _ = probe.ask(self.name, name)
        yield "the base model beside it", same(probe.base, beside, probe.noise)

    def _listed(self, adapter: AdapterRef) -> str | None:
        """The name under which the server has the adapter already, by its hash or its folder."""
        place, digest = str(Path(adapter.path).resolve()), served_name(adapter).rpartition("+")[2]
        there = self._servers.listed(0).items()
        return next((n for n, root in there if n.endswith(f"+{digest}") or root == place), None)

    def _like_peft(self, adapter: AdapterRef, answers: list[JSON]) -> Verdict:
        from peft import PeftModel

        from trace_bench.policies.loading import load_model

        if not self._base:
            return None, "base=FOLDER names the base model's weights"
        base: Any = load_model(self._base, dtype="auto")[0]  # anew: PEFT puts its layers into it
        known, plain = (_gap(base, each) for each in (self._probe.base, answers))
        if known is None or plain is None:
            return None, "the server does not say which tokens it read (vLLM does)"
        model = PeftModel.from_pretrained(base, adapter.path)
        gap, allowed = _gap(model, answers) or 0.0, max(LEAST, MARGIN * known)
        why = f"up to {gap:.2g} apart, allowed {allowed:.2g}; without the adapter {plain:.2g}"
        return (gap <= allowed if max(gap, plain) > allowed else None), why


@contextmanager
def asked_at(server: str, key_env: str | None, name: str, base: str) -> Iterator[Acting]:
    """`Acting` at the server with this address. Raises UserError by the names of the command's
    settings, also for what is raised in the block."""
    urls, key = check_urls((server,), "server"), read_key(key_env, "key_env")
    with closing(Client(Endpoint(urls, key, retries=1))) as client:
        try:
            yield Acting(client, name, base)
        except (LLMError, UserError) as error:
            text = str(error)
            for there, here in NAMES_IN_RUNS.items():
                text = text.replace(f"`{there}`", f"`{here}`")
            raise UserError(text) from error


def _gap(model: Any, answers: list[JSON]) -> float | None:
    """The largest difference between a model's and the server's log-probabilities of the tokens
    that the server sampled; None if it returns no ids."""
    import torch

    most = 0.0
    for answer in answers:
        choice = answer["choices"][0]
        read, ids = answer.get("prompt_token_ids"), choice.get("token_ids")
        if not read or not ids:
            return None
        with torch.inference_mode():
            logits = model(torch.tensor([[*read, *ids]])).logits[0, len(read) - 1 : -1]
        ours = logits.float().log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0]
        theirs = torch.tensor([float(each["logprob"]) for each in choice["logprobs"]["content"]])
        most = max(most, float((ours - theirs).abs().max()))
    return most
