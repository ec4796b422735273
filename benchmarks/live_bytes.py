"""How much memory the tensors of a computation take at their most, counted as they are made and freed."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """`peak` is the most bytes that tensors made while it was on held at one time.

    Storages are counted, once each however many views they have. What was there before (weights, inputs) is not, nor
    what a kernel takes for itself while it runs.
    """

    def __init__(self):
        super().__init__()
        self.peak = self._live = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        for storage in _storages((args, kwargs)):
            self._note(storage, 0)  # not made under this mode, or it would be known
        result = function(*args, **kwargs)
        for storage in _storages(result):
            self._note(storage, storage.nbytes())
        return result

    def _note(self, storage, size: int) -> None:
        address = storage._cdata
        if address not in self._known:
            self._known.add(address)
            self._live += size
            self.peak = max(self.peak, self._live)
            weakref.finalize(storage, self._forget, address, size)

    def _forget(self, address: int, size: int) -> None:
        self._known.discard(address)
        self._live -= size


def _storages(tree):
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
