"""kvstead: the KV-cache memory manager for LLM inference that belongs to no engine."""
