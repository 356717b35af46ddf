"""A method of your own: try a few prompts on training tasks, keep the best one.

    python -m trace_bench method=custom method.factory=best_of_prompts:BestOfPrompts budget=160

Successive halving: the budget is shared equally by rounds and, in a round, by the agents that are
left; after each round the better half of them goes on.
"""

from collections.abc import Sequence
from dataclasses import replace

import trace_bench as tb

PROMPTS = (
    "When a tool fails, fix the cause and retry.",
    "Do every part of the request.",
    "Ask when something is missing.",
    "Be polite.",
)


class BestOfPrompts(tb.Method):
    """`prompts`: the candidates beside the base agent; `least`: episodes of each in the first
    round. Both are settings: method.options.least=16 'method.options.prompts=["Be brief."]'"""

    def __init__(self, prompts: tuple[str, ...] = PROMPTS, least: int = 8) -> None:
        self.prompts, self.least = prompts, least

    def plan(self, run: tb.PlannedRun) -> tb.MethodPlan:
        """A smaller budget than `least` is refused before anything is run."""
        agents = len(self.prompts) + 1
        least, setting = self.least * agents * rounds(agents), "method.options.least"
        phase = tb.Phase("prompts", run.budget, most=True, least=least, setting=setting)
        return tb.MethodPlan(phases=(phase,))

    def fit(self, base: tb.AgentSpec, tasks: Sequence[tb.Task], lab: tb.Lab) -> tb.AgentSpec:
        """The base agent with the prompt that did best; itself when none does better."""
        agents = [base]
        for number, prompt in enumerate(self.prompts, start=1):
            agents.append(replace(base, prompt=prompt, version=f"prompt-{number}"))
        start = 0
        for left in range(rounds(len(agents)), 0, -1):
            size = lab.budget_left() // left // len(agents)
            some = [tasks[n % len(tasks)] for n in range(start, start + size)]
            success = {a.version: self.success(f"{left} left", a, some, lab) for a in agents}
            lab.log(f"on {size} tasks: " + ", ".join(f"{k} {v:.2f}" for k, v in success.items()))
            lab.write(f"prompts/{left}.json", success)
            agents.sort(key=lambda agent: -success[agent.version])  # equals keep their order
            agents, start = agents[: len(agents) // 2], start + size
        return agents[0]

    def success(
        self, name: str, agent: tb.AgentSpec, tasks: Sequence[tb.Task], lab: tb.Lab
    ) -> float:
        """Mean success. The call's name is unique in the run and the same when the run is resumed:
        what was played before is then answered from the run's folder."""
        call = f"{name}/{agent.version}"
        played = lab.rollouts(call, agent, tasks, purpose=tb.Purpose.PROMPT)
        scores = [t.score.success for t in played if t.score is not None]  # None: an episode lost
        return sum(scores) / max(1, len(scores))


def rounds(agents: int) -> int:
    """How often a number can be halved until one is left."""
    return agents.bit_length() - 1
