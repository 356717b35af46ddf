"""Trainers: turn (agent, tasks, reward) into a LoRA adapter in PEFT's format."""
