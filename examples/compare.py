# %% [markdown]
# Two methods on an environment of one's own, compared. Run the file (`python compare.py`), or its
# cells in an editor that knows `# %%`.

# %% Runs. The same call resumes an interrupted run and answers at once for a finished one.
from best_of_prompts import BestOfPrompts
from desk import Suite

import trace_bench as tb

desk = Suite(size=24)
grpo = tb.run(method="grpo", env=desk, budget=96, seed=1)
prompts = tb.run(method=BestOfPrompts(least=4), env=desk, budget=96, seed=1)
print(grpo.table, prompts.table, sep="\n\n")

# %% One run: scores, the trained agent, what it cost.
print(f"success {grpo.summary.base_score.success:.2f} -> {grpo.score.success:.2f}")
print("kept prompt:", repr(prompts.agent.prompt))
print("adapters:", [adapter.name for adapter in grpo.agent.adapters])
print("rollouts by purpose:", dict(grpo.summary.rollouts))

# %% Trajectories: how often the agent put the line right, early and late in training.
episodes = grpo.trajectories()
for name, some in {"first": episodes[:32], "last": episodes[-32:]}.items():
    switched = sum("set_wifi_status" in str(episode.messages) for episode in some)
    print(f"{name} {len(some)} rollouts: the line switched on in {switched}")
for message in episodes[-1].messages:
    calls = [call["function"]["name"] for call in message.get("tool_calls", [])]
    print(f"  {message['role']:10} {message['content'] or calls}")

# %% A run from its folder, and two runs on the same held-out tasks, paired by task.
again = tb.load(grpo.folder)
print(again)
change = tb.compare(again, prompts)
print(f"GRPO less prompts: {change.value:+.3f} [{change.low:+.3f}, {change.high:+.3f}]")
