"""`dry_run=true`: every experiment says what it would do and what is missing, and does nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from models import byte_tokenizer, save_model
from thinking import DROPS

from trace_bench.core.errors import UserError
from trace_bench.core.protocols import MethodPlan, RunContext
from trace_bench.rehearse.scripted import models, serve
from trace_bench.runner.build import run_context
from trace_bench.runner.forecast import describe
from trace_bench.runner.pipeline import run
from trace_bench.runner.plan import plan_of
from trace_bench.settings.choices import conf_dir
from trace_bench.settings.compose import compose
from trace_bench.settings.identity import parts_of
from trace_bench.settings.schema import Settings
from trace_bench.trainers.verl import preflight
from trace_bench.trainers.verl.trainer import VerlTrainer

EXPERIMENTS = sorted(p.stem for p in (conf_dir() / "experiment").glob("*.yaml"))
Said = pytest.CaptureFixture[str]
PAPER = [name for name in EXPERIMENTS if name.startswith(("paper_tau2", "paper_toolsandbox"))]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def described(settings: Settings) -> str:
    return describe(settings, parts_of(settings))[0]


def plan(settings: Settings, tasks: int) -> MethodPlan:
    """Raises UserError when the budget is too small."""
    parts = parts_of(settings)
    trainer = parts["trainer"].make(run_context(settings, parts))
    return plan_of(settings, parts["method"].make(RunContext()), trainer, tasks)


SLOW = {"train_large": [pytest.mark.slow]}


@pytest.mark.parametrize("name", [pytest.param(n, marks=SLOW.get(n, [])) for n in EXPERIMENTS])
def test_every_experiment_has_a_plan(name: str, tmp_path: Path, capsys: Said) -> None:
    code = run(compose([f"experiment={name}", "dry_run=true"]))
    said = capsys.readouterr().out
    assert "base evaluation" in said and "in all, at most" in said and "agent: about" in said
    assert not list(tmp_path.iterdir()), "a dry run leaves nothing behind"
    assert code == ("\nwhat keeps it from running here:" in said)
    if name in PAPER:
        assert "http://127.0.0.1:8000/v1" in said and "trainer=verl on 4 GPU(s): 30" in said
        who = ("analyst", "generator", "router") if "tau2" in name else ("generator",)
        assert "GPU-hours on 8 GPU(s)" in said and "optimizer step(s) each" in said
        assert ("\nuser: about " in said) == ("heldout" not in name or "tau2" in name)
        assert all(f"\n{role}: up to " in said for role in who)
        assert "completion tokens\ngenerator: up to" in said
    elif name == "paper_cm2":  # its recordings are the user's own
        assert "env=recorded needs env.folder" in said and "trainer=verl on 4 GPU(s)" in said
    elif code:  # its model has not been fetched yet
        assert name.startswith("smollm2") and "trace_bench.models get smollm2" in said
    else:
        assert "nothing keeps it from running here" in said


def test_the_papers_protocol_is_what_the_paper_says() -> None:
    for name in ("paper_tau2", "paper_toolsandbox"):
        s = compose([f"experiment={name}"])
        assert (s.protocol, s.accounting, s.seed) == ("paper", "paper", 42)
        assert (s.policy.max_turns, s.policy.eval_temperature) == (50, 0.0)
        assert s.llm.user.by == "endpoint" and s.llm.user.model == s.model.name
        assert (s.llm.user.temperature, s.llm.user.context) == (0.0, 32000)
        trainer = parts_of(s)["trainer"].options
        assert (trainer["group_size"], trainer["rank"], trainer["learning_rate"]) == (16, 16, 1e-5)
        method = parts_of(s)["method"].options
        assert (method["coverage"], method["gap"], method["keep_runs"]) == (0.10, 0.20, 8)
    assert compose(["experiment=paper_tau2"]).budget == 5120
    assert compose(["experiment=paper_toolsandbox"]).budget == 2560
    for name in ("paper_tau2_heldout", "paper_toolsandbox_heldout"):
        s = compose([f"experiment={name}"])
        assert (s.protocol, s.accounting) == ("held_out", "strict")
        assert s.env.train_split != s.evaluation.split


@pytest.mark.parametrize(
    ("name", "budgets"),
    [("paper_tau2", (1280, 2560, 3840, 5120)), ("paper_toolsandbox", (640, 1280, 1920, 2560))],
)
def test_a_budget_of_the_paper_pays_for_its_adapters(name: str, budgets: tuple[int, ...]) -> None:
    """Analysis and calibration are free there: all of the budget is training."""
    for budget in budgets:
        settings = compose([f"experiment={name}", f"budget={budget}"])
        adapters = plan(settings, 64).adapters
        assert adapters == budget // 640 or name != "paper_tau2"
    strict = compose([f"experiment={name}", "budget=640", "accounting=strict"])
    with pytest.raises(UserError, match="needs at least 928"):
        plan(strict, 64)


def test_a_method_is_not_forecast_to_spend_more_than_its_budget() -> None:
    """The upper bounds of TRACE's phases add up to more than the budget."""
    text = described(compose(["method=trace", "budget=640", "checkpoints=[]"]))
    rows = (line for line in text.splitlines()[3:] if line[34:].strip())
    numbers = {line[:34].strip(): line[34:].split()[-1] for line in rows}
    phases = ("analysis", "calibration", "training")
    others = ["base evaluation", "final evaluation", "every adapter alone"]
    others += ["one joint adapter, a yardstick"]
    assert sum(int(numbers[name]) for name in phases) > 640
    assert int(numbers["in all, at most"]) == 640 + sum(int(numbers[name]) for name in others)


def test_the_smallest_difference_that_can_be_shown_is_reported_before_a_run() -> None:
    said = described(compose(["method=base", "evaluation.limit=100", "evaluation.trials=4"]))
    (line,) = (line for line in said.splitlines() if "can show" in line)
    # 2.802 sqrt(0.2 / 400), by hand.
    assert "that 100 tasks, 1 seed and 4 trials can show" in line and ": 0.063, if" in line
    assert "assumption `flips`" in line


def test_what_an_agent_cannot_be_played_by_keeps_a_run_from_going(tmp_path: Path) -> None:
    wrong = {
        "{% for a in range(99999) %}{{ 'a' * 99999 }}{% endfor %}": "more than 5 s or 2 GiB",
        "{{ raise_exception('no tools here') }}": "no tools here",
        "": "has no chat template",
    }
    folder = save_model(tmp_path / "model")
    for template, why in wrong.items():
        byte_tokenizer(template).save_pretrained(folder)
        (folder / "chat_template.jinja").write_text(template)
        text = described(compose(["method=base", f"model.path={folder}"]))
        assert "what keeps it from running here" in text and why in text, text


def test_phases_add_up_and_servers_are_looked_at() -> None:
    with serve(lambda path, body: models("tiny")) as server:
        there = [f"policy.base_url={server.url}", "policy=openai", "model.name=tiny"]
        text = described(compose(["method=grpo", "budget=320", "checkpoints=[]", *there]))
        lines = [line for line in text.splitlines()[3:8] if line]
        numbers = {line[:34].strip(): line[34:].split()[-1] for line in lines}
        assert numbers["base evaluation"] == numbers["final evaluation"] == "387"
        assert numbers["training"] == "320" and numbers["in all, at most"] == str(2 * 387 + 320)
        assert "nothing keeps it from running here" in text
        text = described(compose(["method=trace", *there]))
        assert "nothing keeps it from running here" in text, "the published router is the default"
        text = described(compose(["method=trace", "method.route=classifier", *there]))
    assert "what keeps it from running here" in text and "Policy.prompt_states" in text
    assert "`method.route` to zero_shot" in text
    gone = ["policy=openai", "policy.base_url=http://127.0.0.1:1/v1", "model.name=tiny"]
    text = described(compose(["method=base", *gone, "policy.key_env=NO_SUCH_VARIABLE"]))
    assert "the environment variable NO_SUCH_VARIABLE is empty" in text


def test_a_model_that_servers_lack_is_listed_in_the_words_of_the_run() -> None:
    with serve(lambda path, body: models("m")) as server:
        given = ["method=base", f"policy.base_url={server.url}", "policy=openai", "model.name=tiny"]
        with pytest.raises(UserError, match="unknown model at http") as refused:
            run(compose(given))
        given += ["method=grpo", "trainer.target_modules=[nope]"]
        said = described(compose(given))
        assert f"  - {refused.value}" in said and "unknown LoRA target 'nope'" in said
        assert {path for path, _ in server.requests} == {"/v1/models"}, "no turn is asked for"


MISSING = [
    (["model=hf", "model.path=/nope"], "a model in the folder /nope (there is no /nope/config"),
    (["model=hf", "model.path=../nope"], "a model in the folder ../nope"),
    (["policy.device=abacus"], "policy.device=abacus cannot be used on this machine"),
    (["method=sft", "method.data=/nope.jsonl"], "/nope.jsonl cannot be read"),
    (["method=trace", "budget=50"], "budget=50 is too small for method=trace"),
    (["checkpoints=[9000]"], "checkpoints=[9000] lie beyond budget=640"),
    (["method=base", "checkpoints=[9000]"], "checkpoints=[9000] lie beyond budget=640"),
]


@pytest.mark.parametrize(("given", "missing"), MISSING)
def test_a_plan_lists_what_is_missing(given: list[str], missing: str, capsys: Said) -> None:
    assert run(compose([*given, "dry_run=true"])) == 1
    assert f"  - {missing}" in capsys.readouterr().out


@pytest.mark.parametrize("typed", ["nowhere", "org/a-1B"])
def test_a_model_of_the_hub_is_there_or_missing(
    typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without network it must be in the hub's cache."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    text, missing = describe(s := compose(["model=hf", f"model.path={typed}"]), parts_of(s))
    assert missing and f"  - a model named {typed}: it is no folder here" in text
    assert "Change `model.path`" in text


SERVED = ["policy=openai", "policy.base_url=http://127.0.0.1:1/v1", "model.name=tiny"]
ROLE = ["llm.user.by=endpoint", "llm.user.model=m", "llm.shared.base_url=[http://127.0.0.1:1/v1]"]
WORDLESS = ["env=custom", "env.factory=wordless:Suite"]
WORDLESS_SUITE = """
from toy import ToySuite

import trace_bench as tb


class Suite(ToySuite):
    reference = tb.Suite.reference

    def __init__(self, broken: bool = False) -> None:
        super().__init__()
        self.broken = broken

    def splits(self):
        return ("train", "dev", "test")

    def about(self):
        return 1 / 0 if self.broken else {}
"""


FIRST = [
    (["run_dir=file/x"], "file/x cannot be made: Not a directory"),
    (["run_dir=full"], "full is not empty and not a run folder"),
    (["trainer.target_modules=[nope]"], "unknown LoRA target 'nope'"),
    (["policy.context=8"], "none of 8 first prompts of held-out tasks fits"),
    (["policy.context=9999999"], "policy.context=9999999 is not allowed; allowed: 2"),
    (["policy.thinking=true"], "has no `enable_thinking`"),
    ([*SERVED, "policy.thoughts=keep"], "policy.thoughts=keep needs prompts"),
    ([*SERVED, "policy.extra={messages: []}"], "`policy.extra` holds messages"),
    (["llm.generator.by=endpoint"], "needs llm.generator.model (or llm.shared.model)"),
    ([*ROLE, "llm.shared.base_url=[ftp://x]"], "llm.user.base_url='ftp://x' is not allowed"),
    ([*ROLE, "llm.user.key_env=NO_SUCH_VARIABLE"], "llm.user.key_env=NO_SUCH_VARIABLE, but"),
    ([*ROLE, "llm.user.extra={response_format: 1}"], "`llm.user.extra` holds response_format"),
    (["method=base", "policy=reference", *WORDLESS], "replays reference trajectories, and"),
    ([*WORDLESS, "env.options.broken=true"], "about() raised or is not JSON-safe"),
]


@pytest.mark.parametrize(("given", "why"), FIRST)
def test_what_a_run_refuses_first_is_listed(given: list[str], why: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "wordless.py").write_text(WORDLESS_SUITE)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("")
    with pytest.raises(UserError) as refused:
        run(compose(["method=grpo", *given]))
    said = described(compose(["method=grpo", *given]))
    assert why in str(refused.value) and f"  - {refused.value}" in said


REFUSED: dict[str, tuple[list[str], str]] = {
    "_packages": ([], "needs the package verl"),
    "_compiler": (["trainer.device=cuda"], "a C compiler (gcc) is not here"),
    "_cluster": (["trainer.nnodes=2"], "needs a running Ray cluster"),
    "_divergence": (["trainer.algorithm.kl=0.1"], "drops earlier thoughts"),
    "_roles": (
        ["trainer.nnodes=2", "llm.user.by=endpoint", "llm.user.model=m",
         "llm.shared.base_url=[http://localhost:1/v1]"],
        "which is the machine itself",
    ),
}  # fmt: skip
"""Settings that each check of verl's preflight refuses."""


@pytest.mark.parametrize("check", [c.__name__ for c in preflight.CHECKS])
def test_every_refusal_of_preflight_is_listed(
    check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, why = REFUSED[check]
    folder = save_model(tmp_path / "model")
    byte_tokenizer(DROPS).save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(DROPS)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(preflight, "VERL", "0")
    settings = compose(["method=grpo", "trainer=verl", f"model.path={folder}", *given])
    parts = parts_of(settings)
    trainer = parts["trainer"].make(run_context(settings, parts))
    assert isinstance(trainer, VerlTrainer)
    job = trainer.sample_job()
    function = getattr(preflight, check)
    with pytest.raises(UserError, match=re.escape(why)) as refused:
        function(job)
    assert f"  - {refused.value}" in described(settings)
