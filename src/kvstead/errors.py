"""One class per fault, all under `KVSteadError`.

A message says what is wrong, with the ids, and in a second sentence the way out. A call that raises one of these has
changed nothing: every call checks all of its arguments before it changes anything. Lack of memory is not an error: a
call that finds no capacity returns None.
"""


class KVSteadError(Exception):
    """Base class of all errors that kvstead raises on purpose."""


class DoubleFree(KVSteadError):
    """A page was freed that is not live: it is free already, parked in the open group, or named twice in the call."""


class ForeignPage(KVSteadError):
    """A page id that the pool never hands out: the padding page 0, a negative id, or an id beyond the last page."""


class UseAfterFree(KVSteadError):
    """A row was to grow in a page that it no longer holds, or in which another row of the batch grows too."""


class MisalignedSegment(KVSteadError):
    """A row segment does not start at a page boundary, or its slots do not match the row's positions."""


class MisalignedSize(KVSteadError):
    """A number of tokens or slots is not a multiple of the page size, where it must be."""


class InvalidSize(KVSteadError):
    """A size, length or count is out of range (often negative), or several contradict each other."""


class FreeGroupError(KVSteadError):
    """A free group was begun while another was open."""


class AuditError(KVSteadError):
    """An audit found a fault: a page is lost, owned twice, or counted wrongly."""


class StaleRow(KVSteadError):
    """A request row was used that is not handed out: it was given back, or never taken."""


class RowOverflow(KVSteadError):
    """A request row was written beyond its width, or read beyond its length."""


class LockUnderflow(KVSteadError):
    """A node of the prefix tree was unlocked more often than it was locked."""


class WindowTaken(KVSteadError):
    """A window page was to be linked to a page that already has one."""


class OpenGroup(KVSteadError):
    """A free group is open, and the operation needs the frees in it to take effect first."""


class LayoutError(KVSteadError):
    """A model's configuration gives no memory layout that works here, or the memory is too small for the layout."""


class TraceError(KVSteadError):
    """A request trace or a file of prompts cannot be read; the message has the file, the line and what was expected."""


class RequestError(KVSteadError):
    """A request cannot be served as given: for example an empty prompt, no tokens to generate, or an id in use."""


class CheckpointError(KVSteadError):
    """A model or its tokenizer does not exist or cannot be read."""
