"""The embedded phone world: ToolSandbox's interface and scoring rules, written anew."""
