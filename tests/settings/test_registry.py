"""Parts of one's own: in a file, as an installed entry point, as an object; nothing is edited."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import Method, RunContext
from trace_bench.envs.toolsandbox.scenarios.suite import EmbeddedSuite
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import of_part, parts_of
from trace_bench.settings.registry import Part, find, names
from trace_bench.settings.schema import EnvSettings, PartSettings

SUITE = """
from dataclasses import dataclass
from typing import Annotated
from msgspec import Meta
from trace_bench import RunContext, Suite

class Toy(Suite):
    name, variant = "toy", "own"
    def __init__(self, size: int = 3, words: tuple[str, ...] = ("a",)):
        self.size, self.words = size, words
    def splits(self): return ["train"]
    def tasks(self, split): return []
    def task(self, task_id): raise KeyError(task_id)
    def make(self): raise NotImplementedError

def toy(size: int = 3):
    return Toy(size)

ready = Toy(7)

@dataclass(frozen=True)
class Settings:
    size: Annotated[int, Meta(ge=1, le=9)] = 3

def typed(settings: Settings, run: RunContext):
    made = Toy(settings.size)
    made.seed = run.seed
    return made

def anything(**options):
    return Toy(len(options))

def broken(): raise OSError("no such desk")
def odd(): return object()
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a module of one's own; its name is its own, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"own_{tmp_path.name.strip('_-')}.py").write_text(SUITE)
    (tmp_path / "slip.py").write_text("def suite(:\n")
    return tmp_path


def module(here: Path) -> str:
    return f"own_{here.name.strip('_-')}"


@pytest.mark.parametrize(
    ("attribute", "options", "size"),
    [
        ("Toy", {"size": 5}, 5),
        ("toy", {"size": 4}, 4),
        ("toy", {}, 3),
        ("ready", {}, 7),
        ("typed", {"size": 9}, 9),
        ("anything", {"a": 1, "b": 2}, 2),
    ],
)
def test_a_class_a_function_and_an_object(
    here: Path, attribute: str, options: dict[str, object], size: int
) -> None:
    part = find("env", EnvSettings("custom", f"{module(here)}:{attribute}", options))
    made = part.make(RunContext(seed=11))
    assert made.size == size and part.origin is not None
    if attribute == "typed":
        assert part.options == {"size": 9} and made.seed == 11  # the run is no setting


WHOLE = "is not allowed; allowed: a whole number"


@pytest.mark.parametrize(
    ("factory", "options", "said"),
    [
        ("slip:suite", {}, "the module slip cannot be imported (SyntaxError"),
        ("math:pi.digits", {}, "math has no attribute pi.digits; it has: as_integer_ratio, "),
        ("{}:toy", {"length": 4}, "unknown key 'env.options.length'; allowed: size"),
        ("{}:toy", {"size": "much"}, f"env.options.size='much' {WHOLE}"),
        ("{}:typed", {"size": 10}, f"env.options.size=10 {WHOLE} from 1 to"),
        ("{}:ready", {"size": 4}, "is an object, which takes no options; given: size"),
        ("{}:broken", {}, "raised OSError: no such desk. Change `env.factory`"),
        ("{}:odd", {}, "gives object, which is no Suite: its class must inherit trace_bench.Suite"),
    ],
)
def test_what_cannot_be_used_is_one_line_that_says_why(
    here: Path, factory: str, options: dict[str, object], said: str
) -> None:
    with pytest.raises(UserError) as caught:
        find("env", EnvSettings("custom", factory.format(module(here)), options)).make(RunContext())
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# -- identity -------------------------------------------------------------------------------------


def test_changed_source_is_another_run(here: Path) -> None:
    """Also where the change is in a module beside it; and nothing else is looked at."""
    desk, drawer = f"desk_{module(here)}", f"drawer_{module(here)}"
    (here / f"{desk}.py").write_text(f"from {drawer} import Toy\ndef suite(): return Toy()\n")
    (here / f"{drawer}.py").write_text(SUITE)

    def source_hash() -> str:
        origin = find("env", EnvSettings("custom", f"{desk}:suite")).origin
        assert origin is not None
        return origin.sha256

    first = source_hash()
    (here / "other.py").write_text("x = 1\n")
    assert source_hash() == first
    (here / f"{drawer}.py").write_text(SUITE + "\n# another line\n")
    second = source_hash()
    assert second != first
    (here / f"{desk}.py").write_text(f"from {drawer} import Toy\n\ndef suite(): return Toy()\n")
    assert source_hash() != second


def test_options_are_part_of_the_identity(here: Path) -> None:
    def identity_of(**options: object) -> object:
        chosen = EnvSettings("custom", f"{module(here)}:toy", options)
        return of_part(chosen, find("env", chosen))

    assert identity_of() != identity_of(size=4)
    assert identity_of() == identity_of(size=3)


# -- objects given in Python ----------------------------------------------------------------------


def given(part: object) -> Part:
    return find("method", PartSettings("custom", part))


@dataclass(frozen=True)
class Word:
    text: str = "a"
    weights: Any = None


class Rounds(Method):
    """Its settings are the arguments of its constructor; a cache is none of them."""

    def __init__(self, rounds: int = 1, word: object = "a", _secret: int = 0) -> None:
        self.rounds, self.word, self._secret = rounds, word, _secret
        self.cache: dict[str, int] = {}

    def fit(self, base: Any, tasks: Any, lab: Any) -> Any:
        self.cache["fits"] = 1
        return base


class Slotted(Method):
    __slots__ = ("length", "nothing")

    def __init__(self, **anything: int) -> None:
        self.length, self.nothing = len(anything), lambda: None  # which cannot be pickled

    def fit(self, base: Any, tasks: Any, lab: Any) -> Any:
        return base


NOTHING = lambda: None  # noqa: E731 (which cannot be pickled)


def state(part: object) -> object:
    origin = given(part).origin
    assert origin is not None
    return origin.state


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Rounds(3), Rounds(4)),
        (Rounds(word=Word("a")), Rounds(word=Word("b"))),
        (Rounds(word=[{"a": {1, 2}}]), Rounds(word=[{"a": {1, 3}}])),
        (Rounds(word=np.zeros(3)), Rounds(word=np.ones(3))),
        (Rounds(word=len), Rounds(word=max)),
        (Slotted(a=1), Slotted(a=1, b=1)),
        (partial(Rounds, 3), partial(Rounds, 4)),
        (partial(Rounds, 3, NOTHING), partial(Rounds, 4, NOTHING)),
        (Rounds(word=partial(Rounds(1).fit)), Rounds(word=partial(Rounds(2).fit))),
        (Rounds(word="x" * 9000), Rounds(word="x" * 8999 + "y")),
        (Rounds(word=Rounds(1).fit), Rounds(word=Rounds(2).fit)),
    ],
)
def test_objects_of_other_arguments_are_other_runs(one: object, other: object) -> None:
    assert state(one) == state(copy.deepcopy(one))
    assert state(one) != state(other)
    json.dumps(state(one), allow_nan=False)


def test_what_a_function_closes_over_counts_and_what_an_object_remembers_does_not() -> None:
    def maker(rounds: int) -> Callable[[], Rounds]:
        return lambda: Rounds(rounds)

    assert state(maker(3)) == state(maker(3)) != state(maker(4))
    used = Rounds(3)
    used.fit(None, None, None)
    assert state(used) == state(Rounds(3)) == {"rounds": 3, "word": "a", "_secret": 0}


def test_an_object_of_the_package_counts_with_its_arguments() -> None:
    """Its class is one of ours, so that its name alone would not tell two of them apart."""
    suites = [EmbeddedSuite(), EmbeddedSuite("all_tools")]
    one, two = (find("env", EnvSettings("custom", suite)).origin for suite in suites)
    assert one is not None and two is not None and one.state != two.state


def test_two_of_our_own_parts_by_their_factory_are_two_runs() -> None:
    chosen = [PartSettings("custom", f"trace_bench.methods.grpo:{n}") for n in ("Base", "Grpo")]
    one, two = (of_part(c, find("method", c)) for c in chosen)
    assert one != two


def test_an_object_without_end_is_refused() -> None:
    endless = Rounds()
    endless.word = endless
    with pytest.raises(UserError, match=r"nested more than 12 levels deep.*as options"):
        given(endless)


# -- a folder of settings files, and installed packages -------------------------------------------


def test_settings_files_of_ones_own(here: Path) -> None:
    folder = here / "my_conf" / "env"
    folder.mkdir(parents=True)
    text = f"name: desk\nfactory: {module(here)}:toy\noptions: {{size: 8}}\ntrain_split: train\n"
    (folder / "desk.yaml").write_text(text)
    settings = compose(["env=desk"], here / "my_conf")
    assert settings.env.name == "desk" and settings.env.options == {"size": 8}
    assert settings.evaluation.split == "test"  # what our files have, too
    assert parts_of(settings)["env"].make(RunContext()).size == 8


def test_a_preset_is_a_method_with_a_setting_that_stands() -> None:
    trace = find("method", PartSettings("trace", options={"adapters": "joint"}))
    assert find("method", PartSettings("joint")).options == trace.options
    with pytest.raises(UserError, match=r"adapters=per_capability is not allowed with .*joint"):
        find("method", PartSettings("joint", options={"adapters": "per_capability"}))


def test_an_installed_package_adds_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package as pip leaves it: its modules, and a .dist-info with entry points."""
    site = tmp_path / "site"
    site.mkdir()
    (site / "guest_pkg.py").write_text(
        "import trace_bench\n"
        "class Idle(trace_bench.Method):\n"
        "    def __init__(self, rounds: int = 1): self.rounds = rounds\n"
        "    def fit(self, base, tasks, lab): return base\n"
    )
    info = site / "guest_pkg-1.2.3.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guest-pkg\nVersion: 1.2.3\n")
    (info / "top_level.txt").write_text("guest_pkg\n")
    (info / "RECORD").write_text("")
    (info / "entry_points.txt").write_text("[trace_bench.methods]\nguest = guest_pkg:Idle\n")
    monkeypatch.syspath_prepend(str(site))
    assert "guest" in names("method")
    part = find("method", PartSettings("guest", options={"rounds": 4}))
    assert part.label == "guest" and part.make(RunContext()).rounds == 4
    assert part.origin is not None
    assert (part.origin.module, part.origin.version) == ("guest_pkg", "1.2.3")
