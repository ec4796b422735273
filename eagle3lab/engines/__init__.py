"""Engines run a target model: generate, capture hidden states, decode speculatively."""
