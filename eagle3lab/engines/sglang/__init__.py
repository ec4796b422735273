"""The SGLang engine: how a server is described, started, guarded, talked to, and how states are captured inside it."""
