"""Training a tiny agent from scratch on demonstrations, on CPU.

Departures from a textbook run: Muon on the matrices and AdamW on the rest; packed rows with a
block-diagonal mask; loss on the agent's tokens only, with logits computed only there.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Talk = Sequence[tuple[str, bool]]
"""A demonstration as pieces: (text, whether it is learned)."""


@dataclass(frozen=True)
class TinyRecipe:
    """All that decides the weights. `tokens` counts all training tokens; `row` is the length of a
    packed row in tokens, `rows` the number of rows in a batch."""

    demonstrations: int = 110_000
    tokens: int = 14_000_000
    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    head: int = 32
    feed_forward: int = 384
    context: int = 1024
    vocabulary: int = 1600
    row: int = 384
    rows: int = 20
    muon_lr: float = 0.02
    adam_lr: float = 0.003
    steady: float = 0.3  # share of the steps before the linear decay
    seed: int = 0

    @property
    def steps(self) -> int:
        return math.ceil(self.tokens / (self.rows * self.row))


SIZES = {
    0.3: TinyRecipe(hidden=64, heads=2, kv_heads=1, feed_forward=192),
    1.0: TinyRecipe(),
    4.3: TinyRecipe(hidden=256, layers=5, heads=8, kv_heads=4, feed_forward=768),
}
"""By millions of parameters; of demonstrations and tokens as many as the shipped agent's."""


@dataclass(frozen=True)
class Corpus:
    """Token ids of all demonstrations end to end; `agent` marks the agent's own tokens; `starts`
    holds where each demonstration begins, and the end."""

    ids: np.ndarray
    agent: np.ndarray
    starts: np.ndarray


def corpus_of(tokenizer: Any, talks: Iterable[Talk]) -> Corpus:
    """Demonstrations as tokens."""
    ids: list[np.ndarray] = []
    agent: list[np.ndarray] = []
    for talk in talks:
        encoded = tokenizer.encode_batch([text for text, _ in talk], add_special_tokens=False)
        ids.append(np.array([i for piece in encoded for i in piece.ids], dtype=np.int32))
        lengths = [len(piece.ids) for piece in encoded]
        agent.append(np.repeat([own for _, own in talk], lengths))
    starts = np.cumsum([0, *map(len, ids)])
    return Corpus(np.concatenate(ids), np.concatenate(agent), starts)


def _rows(corpus: Corpus, recipe: TinyRecipe) -> Iterator[list[list[int]]]:
    """Batches of rows; a row is a list of demonstrations that fit into it together."""
    rng = np.random.default_rng(recipe.seed)
    lengths = np.diff(corpus.starts)
    batch: list[list[int]] = []
    row: list[int] = []
    used = 0
    while True:
        for index in rng.permutation(len(lengths)):
            if lengths[index] > recipe.row:
                continue
            if used + lengths[index] > recipe.row:
                batch.append(row)
                row, used = [], 0
                if len(batch) == recipe.rows:
                    yield batch
                    batch = []
            row.append(int(index))
            used += int(lengths[index])


def _tensors(corpus: Corpus, batch: list[list[int]], recipe: TinyRecipe) -> Any:
    import torch

    shape = (len(batch), recipe.row)
    ids, positions = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    owner = np.full(shape, -1, np.int64)
    target = np.full(shape, -100, np.int64)
    for r, row in enumerate(batch):
        at = 0
        for member, index in enumerate(row):
            a, b = corpus.starts[index], corpus.starts[index + 1]
            n = b - a
            ids[r, at : at + n] = corpus.ids[a:b]
            positions[r, at : at + n] = np.arange(n)
            owner[r, at : at + n] = member
            shifted = np.where(corpus.agent[a + 1 : b], corpus.ids[a + 1 : b], -100)
            target[r, at : at + n - 1] = shifted
            at += n
    order = torch.from_numpy(owner)
    same = (order[:, :, None] == order[:, None, :]).tril_()
    same |= torch.eye(recipe.row, dtype=torch.bool)
    tokens, places, wanted = (torch.from_numpy(values) for values in (ids, positions, target))
    return tokens, places, same[:, None], wanted


def new_model(vocabulary: int, recipe: TinyRecipe) -> Any:
    """A freshly initialized Qwen3 model of the recipe's size."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(recipe.seed)
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=recipe.hidden,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.kv_heads,
        head_dim=recipe.head,
        intermediate_size=recipe.feed_forward,
        max_position_embeddings=recipe.context,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM._from_config(config, attn_implementation="sdpa", dtype=torch.float32)


def _schedule(step: int, steps: int, recipe: TinyRecipe) -> float:
    if step < 30:
        return (step + 1) / 30
    begin = recipe.steady * steps
    return 1.0 if step < begin else max((steps - step) / (steps - begin), 0.0)


def _optimizers(model: Any, recipe: TinyRecipe, muon: bool) -> list[tuple[Any, float]]:
    """Optimizers and their learning rates; `muon`: for the matrices, which pays from scratch."""
    import torch

    matrices = {
        n: p for n, p in model.named_parameters() if muon and p.ndim == 2 and "embed" not in n
    }
    rest = [p for n, p in model.named_parameters() if n not in matrices]
    adam = torch.optim.AdamW(rest, lr=recipe.adam_lr, betas=(0.9, 0.95), weight_decay=0.0)
    if not matrices:
        return [(adam, recipe.adam_lr)]
    by_muon = torch.optim.Muon(
        matrices.values(), lr=recipe.muon_lr, weight_decay=0.0, momentum=0.95
    )
    return [(by_muon, recipe.muon_lr), (adam, recipe.adam_lr)]


LOGS = 40  # lines of a whole training


def train(
    folder: Path,
    corpus: Corpus,
    recipe: TinyRecipe,
    log: Callable[[str], None],
    seconds: float,
    start: Path | None,
) -> dict[str, Any]:
    """Trains, saves to `folder`, and returns a report as plain data. `seconds`: the most that it
    may take; `start`: the model to begin with."""
    import torch
    from torch.nn.functional import cross_entropy
    from transformers import AutoTokenizer, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # of a single shard
    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    model = new_model(len(tokenizer), recipe)
    if start is not None:
        model.load_state_dict(Qwen3ForCausalLM.from_pretrained(str(start)).state_dict())
    optimizers = _optimizers(model, recipe, muon=start is None)
    steps = recipe.steps
    every = max(5, min(50, steps // LOGS))
    begun, tokens, losses = time.monotonic(), 0, deque[float](maxlen=50)
    for step, batch in enumerate(_rows(corpus, recipe), start=1):
        rate = _schedule(step - 1, steps, recipe)
        for optimizer, lr in optimizers:
            optimizer.param_groups[0]["lr"] = lr * rate
        ids, positions, mask, target = _tensors(corpus, batch, recipe)
        hidden = model.model(
            input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False
        ).last_hidden_state
        chosen = target >= 0
        loss = cross_entropy(model.lm_head(hidden[chosen]), target[chosen])
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, _ in optimizers:
            optimizer.step()
        tokens += sum(int(corpus.starts[i + 1] - corpus.starts[i]) for r in batch for i in r)
        losses.append(loss.item())
        took = time.monotonic() - begun
        ended = step == steps or took >= seconds
        if step % every == 0 or ended:
            left = min(took / step * (steps - step), seconds - took)
            log(
                f"step {step}/{steps}  loss {np.mean(losses):.4f}  {tokens / took:,.0f} tokens/s  "
                f"{took / 60:.1f} min, at most {max(left, 0.0) / 60:.1f} more"
            )
        if ended:
            break
    model.save_pretrained(str(folder))
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "vocabulary": len(tokenizer),
        "tokens": tokens,
        "loss": float(np.mean(losses)),
        "seconds": round(time.monotonic() - begun, 1),
        "demonstrations": len(corpus.starts) - 1,
        "steps": step,
    }
