"""A model of the hub at a revision, from a cache that was made by hand; nothing is asked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from trace_bench.core.errors import UserError
from trace_bench.policies.hub import TRUSTED, AtSettings, at
from trace_bench.policies.loading import load_model, load_tokenizer
from trace_bench.tiny import MODEL_FOLDER
from trace_bench.trainers.adapters import fresh
from trace_bench.trainers.algorithms import LINEAR

COMMIT = "0123456789abcdef0123456789abcdef01234567"
SHOW = """
import json
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import identity, model_path, parts_of
s = compose(["model=hf", "model.path=someone/agent", "model.revision=v1"])
p = parts_of(s)
print(json.dumps([model_path(s, p), identity(s, p)["model"]]))
"""


@pytest.mark.slow
def test_a_cached_revision_is_read_and_its_weights_are_in_the_identity(tmp_path: Path) -> None:
    held = tmp_path / "hub" / "models--someone--agent"
    shutil.copytree(MODEL_FOLDER, held / "snapshots" / COMMIT)
    (held / "refs").mkdir()
    (held / "refs" / "v1").write_text(COMMIT)
    alone = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_CACHE": str(tmp_path / "hub")}
    command = [sys.executable, "-c", SHOW]
    out = subprocess.run(command, env=alone, check=True, capture_output=True).stdout
    place, model = json.loads(out)
    assert Path(place) == held / "snapshots" / COMMIT
    assert (model["path"], model["revision"]) == ("someone/agent", "v1")
    assert model["sha256"] is not None


def test_a_revision_that_is_not_there_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="hf download no-one/none --revision v9"):
        at(AtSettings("no-one/none", "v9"))
    with pytest.raises(UserError, match=r"Leave `model.revision` out"):
        at(AtSettings(str(tmp_path), "v9"))


def test_a_path_that_does_not_exist_is_answered_with_the_setting(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no such folder. Change `model.path`"):
        load_tokenizer(tmp_path / "none")


OWN = """
from transformers import Qwen3Config, Qwen3ForCausalLM

class Own(Qwen3Config):
    model_type = "own"

class OwnLM(Qwen3ForCausalLM):
    config_class = Own

    def forward(self, *args, **kwargs):
        out = super().forward(*args, **kwargs)
        out.logits = -out.logits
        return out
"""


def test_a_model_with_a_program_of_its_own_is_refused_unless_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache of its own: transformers copies such programs. What is asked for one model is not
    asked for another, nor for the same one later."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "c"))
    monkeypatch.setenv(TRUSTED, "another")
    folder, other = tmp_path / "one", tmp_path / "two"
    for place in (folder, other):
        shutil.copytree(MODEL_FOLDER, place)
        made = json.loads((place / "config.json").read_text()) | {"model_type": "own"}
        made["auto_map"] = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnLM"}
        (place / "config.json").write_text(json.dumps(made))
        (place / "own.py").write_text(OWN)
    with pytest.raises(UserError, match=r"none is run here.*model\.trust_remote_code=true"):
        load_model(at(AtSettings(str(folder))))
    model, _ = load_model(at(AtSettings(str(folder), trust_remote_code=True)))
    plain, _ = load_model(MODEL_FOLDER)
    ids = torch.arange(9)[None]
    torch.testing.assert_close(model(ids).logits, -plain(ids).logits)
    assert "q_proj" in {name.rpartition(".")[2] for name in fresh(str(folder), LINEAR, 2, 0)}
    with pytest.raises(UserError, match="none is run here"):
        load_model(other)
    at(AtSettings(str(folder)))
    with pytest.raises(UserError, match="none is run here"):
        load_model(folder)
