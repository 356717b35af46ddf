"""Small random models with a byte-level tokenizer and a ChatML template with Hermes tool calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trace_bench.core.types import AdapterRef

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' %}<|im_start|>user
{{ m.content }}<|im_end|>
{% elif m.role == 'assistant' %}<|im_start|>assistant
{{ m.content }}
{%- for call in m.tool_calls or [] %}
{%- if m.content or not loop.first %}{{ '\n' }}{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments if \
call.function.arguments is string else call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% elif m.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ m.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def byte_tokenizer(template: str | None = TEMPLATE) -> Any:
    """Every byte is a token; <|im_end|> is eos."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>"]})
    tokenizer.add_tokens(["<tool_call>", "</tool_call>"])
    tokenizer.chat_template = template
    return tokenizer


def save_model(folder: Path, kind: str = "qwen3", seed: int = 0, **changes: Any) -> Path:
    """A random model (`kind` qwen3 or llama) with its tokenizer in `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

    sizes = {
        "vocab_size": 300,
        "hidden_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "intermediate_size": 96,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        # Wide enough that a random model's choices differ clearly from position to position.
        "initializer_range": 0.15,
        **changes,
    }
    config = {"qwen3": Qwen3Config, "llama": LlamaConfig}[kind](**sizes)
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # all ones would hide a norm that is left out
                parameter.uniform_(0.5, 1.5)
    tokenizer = byte_tokenizer()
    config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def save_mixture(
    folder: Path, seed: int = 0, noise: float = 0.1, dense_folder: Path | None = None
) -> Path:
    """The tiny agent (or another model) as a mixture of experts with untied embeddings (Qwen3-MoE,
    3.1M parameters, 2 of 4 experts for a token). Each expert is the agent's MLP (sparse upcycling,
    Komatsuzaki et al. 2022, arXiv 2212.05055) and noise of that share of its size, so that the
    mixture still acts."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig

    from trace_bench.tiny import MODEL_FOLDER

    source = dense_folder or MODEL_FOLDER
    dense: Any = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    sizes = dense.config.to_diff_dict() | {"tie_word_embeddings": False, "norm_topk_prob": True}
    sizes |= {"num_experts": 4, "num_experts_per_tok": 2}
    sizes |= {"moe_intermediate_size": dense.config.intermediate_size}
    del sizes["model_type"], sizes["architectures"]
    torch.manual_seed(seed)
    model: Any = AutoModelForCausalLM.from_config(Qwen3MoeConfig(**sizes), dtype=torch.float32)
    weights = dense.state_dict()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if name in weights:
                value.copy_(weights[name])
        head = model.lm_head.weight
        head.add_(noise * float(head.std()) * torch.randn_like(head))
        for layer, plain in zip(model.model.layers, dense.model.layers, strict=True):
            mlp, experts = plain.mlp, layer.mlp.experts
            both = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
            experts.gate_up_proj.normal_(0, noise * float(both.std())).add_(both)
            down = mlp.down_proj.weight
            experts.down_proj.normal_(0, noise * float(down.std())).add_(down)
            layer.mlp.gate.weight.normal_(0, 0.5)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return folder


def adapter_in_run(folder: Path, name: str, **how: Any) -> AdapterRef:
    """An adapter of the tiny agent (`save_adapter`) in its place in a run's folder."""
    from trace_bench.tiny import MODEL_FOLDER

    place = folder / "adapters" / name / "0001"
    place.parent.mkdir(parents=True)
    return AdapterRef(f"{name}@0001", str(save_adapter(MODEL_FOLDER, place, **how)))


def save_adapter(
    model_folder: Path,
    folder: Path,
    seed: int = 1,
    rank: int = 4,
    scale: float = 0.15,
    targets: Any = "all-linear",
) -> Path:
    """A random LoRA adapter made by peft, by default for all linear layers of a model."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    config = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules=targets)
    torch.manual_seed(seed)
    peft_model = get_peft_model(model, config)
    with torch.no_grad():
        for name, parameter in peft_model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, scale)
    peft_model.save_pretrained(str(folder))
    return folder
