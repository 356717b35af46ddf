"""vLLM's own parsers of tool calls, as its server runs them, on texts and without an engine. Run by
the interpreter that TRACE_BENCH_VLLM names:

    echo '[{"parser": ..., "text": ..., "tokenizer": DIR, "tools": [...]}, ...]' | python THIS

prints a list of messages, {"content": ..., "tool_calls": [...]}."""

import json
import sys
from typing import Any


def parsed(asked: dict[str, Any]) -> dict[str, Any]:
    from transformers import AutoTokenizer
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser.parser_manager import ParserManager

    tokenizer = AutoTokenizer.from_pretrained(asked["tokenizer"])
    messages = [{"role": "user", "content": "Go."}]
    request = ChatCompletionRequest(model="m", messages=messages, tools=asked["tools"])
    kind = ParserManager.get_parser(asked["parser"], enable_auto_tools=True, tokenizer=tokenizer)
    text = asked["text"]
    ids = tokenizer.encode(text, add_special_tokens=False)
    _, content, calls = kind(tokenizer, request.tools).parse(text, request, True, ids)
    written = [{"function": {"name": c.name, "arguments": c.arguments}} for c in calls or []]
    return {"content": content, "tool_calls": written}


if __name__ == "__main__":
    messages = [parsed(asked) for asked in json.load(sys.stdin)]
    print(json.dumps(messages))
