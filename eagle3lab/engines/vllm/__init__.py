"""The vLLM engine: how a server is described, guarded, started and talked to, and how states are captured in it."""
