"""Addresses, files and texts that a person or a stranger gives: refused at once, in a line that
shows no password."""

from __future__ import annotations

import resource
import struct
from pathlib import Path

import pytest

from trace_bench.core.agent_file import read_agent
from trace_bench.core.errors import UserError
from trace_bench.core.limits import Limits, fault_of
from trace_bench.core.store import write_json
from trace_bench.llm.client import check_urls
from trace_bench.models.convert import convert

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        f"http://user:{SECRET}@host/v1", f"http:user:{SECRET}@host/v1", f"user:{SECRET}@host/v1",
        f"//user:{SECRET}@host/v1", f"ftp://{SECRET}@host", f"http://host/v1?key={SECRET}",
    ],
)  # fmt: skip
def test_a_password_in_an_address_is_not_shown(url: str) -> None:
    with pytest.raises(UserError, match=r"`llm\.judge\.base_url` holds a name") as caught:
        check_urls((url,), "llm.judge.base_url")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://host:port/v1", "http://", "http:///v1", "host:8000", "http://a\x00b/v1",
     "http://host:99999999/v1", "http://\u2024\u2024/v1", "http://xn--/v1", ""],
)  # fmt: skip
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UserError, match=r"`policy\.base_url` is .* allowed: an address"):
        check_urls((url,), "policy.base_url")


def test_a_prompt_of_50_mb_is_no_agents(tmp_path: Path) -> None:
    write_json(tmp_path / "agent.json", {"model": "m", "prompt": "x" * 50_000_000})
    with pytest.raises(UserError, match="`prompt`: its texts have more than 262144 characters"):
        read_agent(tmp_path / "agent.json")


class Short(str):
    """A text that says that it has no characters."""

    def __len__(self) -> int:
        return 0


@pytest.mark.parametrize("value", [Short("x" * 100), [Short("x" * 100)], {"a": Short("x" * 100)}])
def test_a_text_with_a_false_length_passes_no_limit(value: object) -> None:
    assert fault_of(value, Limits(50)) == "its texts have more than 50 characters"


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


FACTS = {
    "an array of 2^60 bytes": struct.pack("<IIQ", 9, 0, 2**60),
    "an array of 2^60 texts": struct.pack("<IIQ", 9, 8, 2**60),
    "an array of 2^64 - 1 numbers": struct.pack("<IIQ", 9, 12, 2**64 - 1),
    "an array of arrays": struct.pack("<IIQ", 9, 9, 3) + struct.pack("<IQ", 0, 2**60),
    "a text of 2^60": struct.pack("<IQ", 8, 2**60),
    "an unknown kind": struct.pack("<I", 77),
}


@pytest.mark.parametrize("fact", FACTS.values(), ids=FACTS)
@pytest.mark.parametrize("before", [b"", text(b"general.name") + struct.pack("<I", 8) + text(b"x")])
def test_a_gguf_file_that_says_it_is_longer_than_it_is(
    fact: bytes, before: bytes, tmp_path: Path
) -> None:
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 2 if before else 1)
    file = tmp_path / "model.gguf"
    file.write_bytes(head + before + text(b"tokenizer.ggml.tokens") + fact + b"abc")
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"cannot be read as a language model: at byte \d+ of \d+"):
        convert(file, tmp_path / "out", "own")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < most + 500_000  # kB, imports too
