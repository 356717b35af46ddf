"""The official ToolSandbox (github.com/apple/ToolSandbox, commit 165848b), driven without its own
loop: our agent, our simulated user, its scenarios, tools and scoring. It has pins of its own, so it
runs in a worker with a Python of its own (an image, or `sandbox=process env.python=...`)."""
