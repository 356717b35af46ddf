"""The official ToolSandbox (github.com/apple/ToolSandbox, commit 165848b), run without its own
loop: our agent and simulated user with its scenarios, tools and scoring. It pins its own package
versions, so it runs in a worker with its own Python (an image, or `sandbox=process
env.python=...`)."""
