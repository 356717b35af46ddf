"""The phone world's tools and how they are shown to an agent."""
