"""The data room: targets, prompts and conversations, chat rendering with loss spans, the corpus."""
