"""One process at a time does this, and one that has lost the right is refused: one set of words for all stores.

The process that has the right is its *holder*. Each time the right is taken it gets a *generation* that it never had
before, and each write of the holder carries it, so the store refuses a holder that was suspended, cut off from it or
outrun by a clock: it raises a `LostError`, and what the next holder does stays. While it lives, a holder sends a *beat*
every few seconds; without one for so long, it is *dead*, and the next process takes over.

| store | module | holder | generation | dead | refuses a write |
|---|---|---|---|---|---|
| broker | `amqp.record` | a channel | a number in the value | the channel ends | after `Record.check` |
| database | `operations.lease` | `Operation.runner` | a number in the row | no beat | in its ``WHERE`` |
| files | `storage.locking` | a process | the name of a run | no beat, or it ended | in `Lock.held` |

Where nobody can lose a right, there is none: collectors work side by side, as each row of theirs says which of two
events is newer; rows that one transaction locks (prune) are free again at its end.
"""

from __future__ import annotations

import os
import socket


def process_name() -> str:
    """Return the name of this process, for people: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"
