"""Keep large arrays' memory between training steps."""

import numpy as np


def keep_freed_memory():
    """Tell the C library to reuse the memory of large arrays rather than hand it back to the system.

    Every training step needs the same few large arrays again. Memory that went back to the system in between is
    fetched anew, page by page, which takes longer than a time loop does. glibc keeps chunks up to the size of
    the largest one it has seen freed, 32 MiB at most; so one is freed here, untouched and therefore free of
    charge. Other C libraries do not mind.
    """
    np.empty(2**25 - 2**13, np.uint8)
