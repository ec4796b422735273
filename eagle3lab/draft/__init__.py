"""The drafter: its network, its training, its checkpoint and its reference decoding."""
