"""Variables that may be behind: the newest values are in the workers' chunks."""

from typing import Any


def variable_class(mirrored: type) -> type:
    """The class of variables of which workers may own chunks.

    Args:
      mirrored: TensorFlow's class of variables that all workers hold.
    """

    class ChunkedVariable(mirrored):
        """Refuses to be read or written while it is behind; all its readers come by `_get_replica`."""

        may_be_behind = True  # of the class: asking a variable of another one for it would read it
        owner: Any = None  # what updates it later: its ChunkedUpdate, or, of a slice, DelayedUpdates

        def _get_replica(self, replica_id):
            check_read(self)
            return super()._get_replica(replica_id)

        def _update(self, update_fn, value, **kwargs):
            check_write(self)
            return super()._update(update_fn, value, **kwargs)

        def _gather_saveables_for_checkpoint(self):
            check_write(self)
            return super()._gather_saveables_for_checkpoint()

    return ChunkedVariable


def may_be_behind(value: Any) -> bool:
    """Whether it is a variable of such a class."""
    return getattr(type(value), "may_be_behind", False)


def owner_of(value: Any) -> Any:
    """What updates a variable that may be behind later; None for any other value."""
    return value.owner if may_be_behind(value) else None


def check_read(value: Any) -> None:
    """Raises RuntimeError where `value` is a variable that is behind."""
    if (owner := owner_of(value)) is not None:
        owner.check_read(value.name)


def check_write(value: Any) -> None:
    """Raises RuntimeError where `value` is a variable whose new value would be overwritten."""
    if (owner := owner_of(value)) is not None:
        owner.check_write(value.name)
