"""OpenAI's HTTP API under /openai/v1: files, batches, and the calls that batches are made of."""
