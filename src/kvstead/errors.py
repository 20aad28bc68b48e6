"""One class per fault, all under `KVSteadError`.

A message names the ids it is about and, in a second sentence, the way out. Whoever raises one of these has changed
nothing: the call is checked as a whole before anything moves. Running out of room is no fault; it is `None`.
"""


class KVSteadError(Exception):
    """Base of every error that kvstead raises on purpose."""


class DoubleFree(KVSteadError):
    """A page was freed that nobody holds: it is free already, parked in the open group, or named twice in one call."""


class ForeignPage(KVSteadError):
    """A page id that was never handed out by this pool: the padding page, a negative id or one past the end."""


class UseAfterFree(KVSteadError):
    """A row was to grow in a page that it does not hold any more, or that another row of the batch grows in as well."""


class MisalignedSegment(KVSteadError):
    """A row segment does not start on a page boundary, or its slots do not follow the row's positions."""


class MisalignedSize(KVSteadError):
    """A number of tokens that must be a multiple of the page size is not."""


class InvalidSize(KVSteadError):
    """A size, length or count is negative, or lengths contradict each other."""


class FreeGroupError(KVSteadError):
    """A free group was begun while one was open."""


class AuditError(KVSteadError):
    """The books do not balance: a page is lost, owned twice, or counted wrongly."""


class StaleRow(KVSteadError):
    """A request row was used after it was given back, or it was never handed out."""


class RowOverflow(KVSteadError):
    """More slots were written to a request row than it is wide."""


class LockUnderflow(KVSteadError):
    """A prefix-tree node was unlocked more often than it was locked."""


class WindowTaken(KVSteadError):
    """The window side of a page was to be put where one is already."""


class OpenGroup(KVSteadError):
    """An operation that needs its frees to take effect was called while a free group was open."""


class LayoutError(KVSteadError):
    """A model configuration that cannot be turned into a memory layout, or a memory size too small for one."""


class TraceError(KVSteadError):
    """A request trace, or file of prompts, that cannot be read: the message names file, line and what was expected."""


class RequestError(KVSteadError):
    """A request that cannot be served as given: an empty prompt, no token to generate, an id in use."""


class CheckpointError(KVSteadError):
    """A model, or its tokenizer, that is not there or cannot be read."""
