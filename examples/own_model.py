"""A model of your own: a folder with weights, tokenizer and chat template, made here and trained.

    python own_model.py qwen3        # or llama, or both

The weights are random, so the task is one that babbling can be rewarded for: small letters.
"""

import sys
from pathlib import Path

import trace_bench as tb

# Hermes tool calls, as Qwen3 writes them. A prompt must only grow by appending: no turn may be
# written in another way once others follow it.
TEMPLATE = """\
{%- macro block(role, text) %}<|im_start|>{{ role }}
{{ text }}<|im_end|>
{% endmacro %}
{%- if tools %}{{ block("system", "Tools: " ~ (tools | tojson)) }}{% endif %}
{%- for m in messages %}
{%- if m.role == "tool" %}{{ block("user", "<tool_response>" ~ m.content ~ "</tool_response>") }}
{%- elif m.role == "assistant" %}<|im_start|>assistant
{{ m.content }}{% for call in m.tool_calls or [] %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments if
call.function.arguments is string else call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% else %}{{ block(m.role, m.content) }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def make(folder: Path, kind: str) -> Path:
    """A random model of the architecture `kind` ("qwen3" or "llama") in `folder`."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

    letters = {text: n for n, text in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    core = Tokenizer(models.BPE(vocab=letters, merges=[]))  # every byte is a token
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.add_tokens(["<|im_start|>", "<tool_call>", "</tool_call>"], special_tokens=True)
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), hidden_size=48, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=512,
        eos_token_id=tokenizer.eos_token_id, initializer_range=0.1, tie_word_embeddings=True,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


class Letters(tb.Suite, tb.Env):
    """Suite and environment in one: one turn, and the reward is its share of small letters."""

    name, variant = "letters", "own"

    def splits(self) -> list[str]:
        return ["train", "test"]

    def tasks(self, split: str) -> list[tb.Task]:
        return [self.task(f"letters/{split}/{number}") for number in range(8)]

    def task(self, task_id: str) -> tb.Task:
        return tb.Task(task_id, self.name, task_id.split("/")[1], 0, {"ask": f"Write {task_id}."})

    def make(self) -> "Letters":
        return Letters()

    def reset(self, task: tb.Task) -> tb.Step:
        return tb.Step(({"role": "user", "content": task.data["ask"]},))

    def step(self, action: tb.Message) -> tb.Step:
        share = sum("a" <= c <= "z" for c in action["content"]) / max(1, len(action["content"]))
        return tb.Step(done=True, score=tb.Score(share, share > 0.9), stop=tb.StopReason.DONE)


if __name__ == "__main__":
    for kind in sys.argv[1:] or ("qwen3", "llama"):
        folder = make(Path("own_model", kind), kind)
        result = tb.run(
            "policy.max_tokens=8", "trainer.learning_rate=0.02", "trainer.groups=2",
            method="grpo", budget=256, checkpoints=[], env=Letters(),
            model="hf", model__path=str(folder),
        )  # fmt: skip
        print(f"{kind}\n{result.table}\n")
