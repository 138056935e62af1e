"""Recurrent layers of a model that is there already: from torch.nn's to ours, and back."""

import torch

from bppsa_nb.torch.layers import OWN, Scanned

KINDS = {}  # torch.nn's class to ours


def convert(model: torch.nn.Module, back: bool = False) -> torch.nn.Module:
    """Turn every `torch.nn.RNN`, `GRU` and `LSTM` of a model into ours, or ours into these, in place.

    Modules stay the same objects: parameters, hooks, and what an optimizer refers to. Classes of one's own that derive
    from these layers are left as they are. With `back`, ours forget `method` and the like. Returned is `model`.

    Examples
    --------
    >>> model = torch.nn.Sequential(torch.nn.GRU(3, 20))
    >>> type(convert(model)[0])
    <class 'bppsa_nb.torch.GRU'>
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    classes = {own: theirs for theirs, own in KINDS.items()} if back else KINDS
    for module in model.modules():
        now = type(module)
        if torch.nn.utils.parametrize.is_parametrized(module):  # its class is its own, and derives from the one meant
            if now.__base__ in classes:
                own = {name: each for name, each in vars(now).items() if name not in ("__dict__", "__weakref__")}
                module.__class__ = type(now.__name__, (classes[now.__base__],), own)
        elif now in classes:
            module.__class__ = classes[now]
        if back and not isinstance(module, Scanned):
            for name in OWN:
                module.__dict__.pop(name, None)
    return model
