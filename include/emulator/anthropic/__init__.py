"""Anthropic's HTTP API under /anthropic: Message Batches, Messages and the counting of tokens."""
