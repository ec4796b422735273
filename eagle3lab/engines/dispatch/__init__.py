"""Answering many prompts unattended: work shared over servers, a journal that survives kill -9, honest time left."""
