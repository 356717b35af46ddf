"""`python -m trace_bench.check server=URL adapters=FOLDER`, at this project's engine and at servers
that have a fault."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from models import save_adapter, save_model
from safetensors.torch import load_file, save_file
from servers.vllm import FakeVLLM, by_name, fake_adapter

from trace_bench.check import main
from trace_bench.rehearse.engine import Loading
from trace_bench.rehearse.scripted import Answer, chat, models, serve

Said = pytest.CaptureFixture[str]
CHECKS = (
    "listed",
    "unlike the base model",
    "like PEFT",
    "itself with cached prefixes",
    "itself after unload and reload",
    "the base model beside it",
)


def marks(said: str) -> dict[str, str]:
    """By what was checked: OK, WRONG or not checked."""
    lines = [line for line in said.splitlines() if line.startswith("  ")]
    return {line[15:].partition(":")[0]: line[2:15].strip() for line in lines}


def times(adapter: Path, factor: float, folder: Path) -> Path:
    """A copy whose updates are so many times as large."""
    shutil.copytree(adapter, folder)
    weights = load_file(folder / "adapter_model.safetensors")
    weights = {name: w * factor if ".lora_B" in name else w for name, w in weights.items()}
    save_file(weights, folder / "adapter_model.safetensors")
    return folder


class Instead(Loading):
    """Loads another folder than it is told to."""

    folder: Path | None = None

    def __call__(self, path: str, body: Any) -> Answer:
        wrong = {"lora_path": str(self.folder)} if self.folder and "lora_path" in body else {}
        return super().__call__(path, {**body, **wrong})


def test_a_wrong_scale_shows_only_beside_peft(tmp_path: Path, capsys: Said) -> None:
    model = save_model(tmp_path / "model")
    good = save_adapter(model, tmp_path / "good", targets=["q_proj", "v_proj"])
    engine = Instead(model, "tiny", 8, 1024)
    said = []
    with serve(engine) as server:
        for engine.folder in (None, times(good, 2, tmp_path / "2")):
            words = [f"server={server.url}", f"adapters={good}", f"base={model}"]
            assert main(words) == (engine.folder is not None), capsys.readouterr().out
            said.append(capsys.readouterr().out)
    engine.close()
    right, scaled = map(marks, said)
    assert right == dict.fromkeys(CHECKS, "OK"), said[0]
    assert said[0].startswith(f"{good} at {server.url}, model tiny:\n")
    assert scaled == right | {"like PEFT": "WRONG"}, said[1]


FAULTS: dict[str, tuple[str, Callable[[int, str, int], float]]] = {
    # (how many adapters were loaded so far, the model's name, requests so far) -> its answer
    "the base model's weights": ("unlike the base model", lambda loads, name, time: -1.0),
    "lost at the reload": (
        "itself after unload and reload",
        lambda loads, name, time: by_name(name if loads < 2 else "m", time),
    ),
    "a cache that others share": (
        "itself with cached prefixes",  # the base model is asked nine times, then it
        lambda loads, name, time: by_name("m" if 9 < time <= 12 else name, time),
    ),
    "a base model that adapters change": (
        "the base model beside it",
        lambda loads, name, time: by_name(name, time) - (loads > 1),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str, tmp_path: Path, capsys: Said) -> None:
    what, fault = FAULTS[name]
    fake = FakeVLLM(logprob=lambda name, time: fault(fake.loads, name, time))
    adapter = fake_adapter(tmp_path, "a")
    with serve(fake) as server:
        assert main([f"server={server.url}", f"adapters={adapter.path}"]) == 1
    said = capsys.readouterr().out
    found = marks(said)
    assert found.pop("like PEFT") == "not checked" and found[what] == "WRONG", said
    assert fake.names == ["m"], "it stays loaded"


def test_what_a_server_lists_is_read(tmp_path: Path, capsys: Said) -> None:
    """An adapter that was there stays there; one that it does not list, or lists on, is named."""

    class Listing(FakeVLLM):
        takes = gives = True

        def __call__(self, path: str, body: dict[str, Any]) -> Answer:
            loads, unloads = path.endswith("/load_lora_adapter"), "unload" in path
            if (loads and not self.takes) or (unloads and not self.gives):
                return Answer("Success")
            return super().__call__(path, body)

    def checked(fake: FakeVLLM) -> dict[str, str]:
        with serve(fake) as server:
            main([f"server={server.url}", f"adapters={adapter.path}"])
        return marks(capsys.readouterr().out)

    adapter, fake = fake_adapter(tmp_path, "a"), Listing()
    fake.takes = False
    assert checked(fake) == {"asked": "WRONG"}
    fake.takes, fake.gives = True, False
    assert checked(fake)["itself after unload and reload"] == "WRONG"
    assert checked(fake)["itself after unload and reload"] == "not checked", "it is there by now"


def test_weights_of_zero_and_experts_are_named(tmp_path: Path, capsys: Said) -> None:
    adapter = Path(fake_adapter(tmp_path, "a").path)
    weights = load_file(adapter / "adapter_model.safetensors")
    zero = {"x.experts.lora_B.weight": 0 * weights["x.lora_B.weight"]}
    save_file(zero, adapter / "adapter_model.safetensors")
    with serve(FakeVLLM(logprob=lambda name, time: -1.0)) as server:
        assert main([f"server={server.url}", f"adapters={adapter}"]) == 1
    said = capsys.readouterr().out
    assert "every lora_B in its file is zero" in said
    assert marks(said)["its weights in experts"] == "not checked"


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["adapters=nope"], ["nope/adapter_config.json does not exist", "`adapters`"]),
        (["model=x"], ["unknown model at", "'x'; allowed: m.", "`model`"]),
        (["bases=x"], ["'bases'", "server, adapters, base, model, key_env", "mean base?"]),
        (["key_env=no"], ["`key_env`"]),
        (["base=./nope"], ["'./nope'", "`base`"]),
    ],
)
def test_a_wrong_word_is_answered_by_one_line(
    words: list[str], named: list[str], tmp_path: Path, capsys: Said
) -> None:
    folder = fake_adapter(tmp_path, "a").path
    with serve(FakeVLLM()) as server:
        settings = {"server": server.url, "adapters": folder} | dict(w.split("=") for w in words)
        assert main([f"{name}={value}" for name, value in settings.items()]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1
    assert all(word in said for word in named), said


def test_a_server_without_log_probabilities_or_none_at_all(tmp_path: Path, capsys: Said) -> None:
    def bare(path: str, body: dict[str, Any]) -> Answer:
        return models("m") if path == "/v1/models" else chat("Hm.", "m")

    adapter = fake_adapter(tmp_path, "a")
    with serve(bare) as server:
        assert main([f"server={server.url}", f"adapters={adapter.path}"]) == 2
    assert "gives no log-probabilities" in capsys.readouterr().err
    assert main([f"server={server.url}", f"adapters={adapter.path}"]) == 2
    said = capsys.readouterr().err
    assert "does not answer" in said and "`server`" in said and said.count("\n") == 1
